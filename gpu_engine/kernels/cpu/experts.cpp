#include "experts.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr int kTokens = 8;  // a chunk of work

// Which experts each token takes, and which rows each expert thus gets.
struct Routing {
  int per_token;
  std::vector<int32_t> experts;  // [tokens][per_token], in rising order
  std::vector<float> weights;    // [tokens][per_token]
  std::vector<int32_t> places;   // [tokens][per_token]: the row of its expert's
  std::vector<int32_t> sources;  // [rows]: the token of each row

  Routing(int tokens, int per_token)
      : per_token(per_token), experts(int64_t(tokens) * per_token), weights(experts.size()), places(experts.size()), sources(experts.size()) {}

  // `scores` [count] of the token. Never fails, whatever the numbers: NaN goes on into the weights.
  void choose(int token, const float* scores, int count, bool normalised) {
    int32_t* chosen = experts.data() + int64_t(token) * per_token;
    int held = 0;
    for (int expert = 0; expert < count; expert++) {
      int at = held;
      while (at > 0 && scores[expert] > scores[chosen[at - 1]]) at--;
      if (at == per_token) continue;
      held = std::min(held + 1, per_token);
      std::copy_backward(chosen + at, chosen + held - 1, chosen + held);
      chosen[at] = expert;
    }
    const float most = scores[chosen[0]];
    std::sort(chosen, chosen + per_token);
    float total = 0;
    for (int i = 0; i < (normalised ? per_token : count); i++) total += std::exp(scores[normalised ? chosen[i] : i] - most);
    for (int i = 0; i < per_token; i++) weights[int64_t(token) * per_token + i] = std::exp(scores[chosen[i]] - most) / total;
  }

  // Rows in the order of their experts, then of their tokens; returns from where the rows of each expert go.
  std::vector<int32_t> group(int count) {
    std::vector<int32_t> starts(count + 1, 0);
    for (int32_t expert : experts) starts[expert + 1]++;
    for (int expert = 0; expert < count; expert++) starts[expert + 1] += starts[expert];
    std::vector<int32_t> next = starts;
    for (size_t i = 0; i < experts.size(); i++) {
      places[i] = next[experts[i]]++;
      sources[places[i]] = static_cast<int32_t>(i) / per_token;
    }
    return starts;
  }
};

// Those of [count] matrices that have rows.
std::vector<Share> shares_of(const Linear* layers, const std::vector<int32_t>& starts) {
  std::vector<Share> shares;
  for (size_t i = 0; i + 1 < starts.size(); i++)
    if (starts[i + 1] > starts[i]) shares.push_back({layers + i, starts[i], starts[i + 1] - starts[i]});
  return shares;
}

template <class F>
void each_token(Pool& pool, int tokens, const F& f) {
  pool.run((tokens + kTokens - 1) / kTokens, [&](int chunk) {
    for (int t = chunk * kTokens; t < std::min(tokens, (chunk + 1) * kTokens); t++) f(t);
  });
}

}  // namespace

void add_experts(Pool& pool, const Experts& experts, Into gate, const float* norm, float eps, int tokens, float* x) {
  if (tokens == 0) return;
  const int count = experts.count, hidden = experts.router.inputs;
  float* scores = scratch_of<float>(7, int64_t(tokens) * count);
  linear(pool, experts.router, x, tokens, norm, eps, Into::kStore, scores);
  Routing routing(tokens, experts.per_token);
  each_token(pool, tokens, [&](int t) { routing.choose(t, scores + int64_t(t) * count, count, experts.normalised != 0); });
  const std::vector<int32_t> starts = routing.group(count);
  const int64_t rows = starts.back();
  float* gated = scratch_of<float>(6, rows * experts.down[0].inputs);
  float* products = scratch_of<float>(5, rows * hidden);
  linear(pool, shares_of(experts.gate_up, starts), x, routing.sources.data(), norm, eps, gate, gated);
  linear(pool, shares_of(experts.down, starts), gated, nullptr, nullptr, 0, Into::kStore, products);
  each_token(pool, tokens, [&](int t) {
    float* row = x + int64_t(t) * hidden;
    for (int i = t * experts.per_token; i < (t + 1) * experts.per_token; i++) {
      const float* product = products + int64_t(routing.places[i]) * hidden;
      for (int h = 0; h < hidden; h++) row[h] += routing.weights[i] * product[h];
    }
  });
}

}  // namespace headrace
