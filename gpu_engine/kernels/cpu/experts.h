// A mixture of experts in place of an MLP (Shazeer et al. 2017): each token takes the few that a router finds
// likeliest, weighted by their probabilities.

#pragma once

#include "linear.h"

namespace headrace {

// Mirrored in native/declarations.py. `gate_up` and `down` [count] are alike in shape and format. `normalised`: the
// weights of a token's experts add up to one.
struct Experts {
  Linear router;
  const Linear *gate_up, *down;
  int32_t count, per_token, normalised;  // count 0: there are none
};

// x [tokens][hidden] += what its experts make of x, normalised by `norm`. What a token gets is added up in the
// order of its experts, so that it does not depend on the others. Of experts that are equally likely a token takes
// the first ones.
void add_experts(Pool& pool, const Experts& experts, Into gate, const float* norm, float eps, int tokens, float* x);

}  // namespace headrace
