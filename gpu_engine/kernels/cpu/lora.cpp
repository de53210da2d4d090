#include "lora.h"

#include <algorithm>

#include "inputs.h"

namespace headrace {
namespace {

constexpr int kTogether = 2;  // rows that share each load of A
constexpr int kChains = 4;    // sums of a row, k by k in turn, so that additions need not wait for one another

struct Group {
  int begin, count;  // of `order`
};

// Up to `kTogether` rows of one adapter each; adapters that add nothing here are left out.
int cut(const LoraRows& rows, const LoraLayer* adapters, Group* groups) {
  int count = 0;
  for (int i = 0; i < rows.count; i++) {
    const int adapter = rows.of_row[rows.order[i]];
    if (!adapters[adapter].a) continue;
    const bool joins = count && groups[count - 1].begin + groups[count - 1].count == i &&
                       groups[count - 1].count < kTogether && rows.of_row[rows.order[i - 1]] == adapter;
    if (joins)
      groups[count - 1].count++;
    else
      groups[count++] = {i, 1};
  }
  return count;
}

// Vector `v` of h for R rows: a [inputs][kLanes], x [R][inputs].
template <int R>
void dot(const float* a, const float* x, int inputs, float* const* h, int v) {
  Vec sums[R][kChains];
  for (int r = 0; r < R; r++)
    for (int c = 0; c < kChains; c++) sums[r][c] = splat(0.0f);
  const int whole = inputs / kChains * kChains;
  for (int k = 0; k < whole; k += kChains)
    for (int c = 0; c < kChains; c++) {
      const Vec weights = load(a + int64_t(k + c) * kLanes);
      for (int r = 0; r < R; r++) sums[r][c] = fma(weights, splat(x[int64_t(r) * inputs + k + c]), sums[r][c]);
    }
  for (int k = whole; k < inputs; k++)
    for (int r = 0; r < R; r++)
      sums[r][0] = fma(load(a + int64_t(k) * kLanes), splat(x[int64_t(r) * inputs + k]), sums[r][0]);
  for (int r = 0; r < R; r++) store(h[r] + v * kLanes, add(add(sums[r][0], sums[r][1]), add(sums[r][2], sums[r][3])));
}

}  // namespace

Vec Shrunk::expand(int row, int v, Vec sums) const {
  const int adapter = of_row[row];
  if (adapter < 0) return sums;
  const LoraLayer& layer = adapters[adapter];
  for (int i = 0; i < (layer.a ? layer.num_parts : 0); i++) {
    const LoraPart& part = layer.parts[i];
    const int place = (v - part.first) / part.stride;
    if (v < part.first || (v - part.first) % part.stride || place >= part.count) continue;
    const float* b = part.b + int64_t(place) * part.ranks * kLanes;
    const float* from = h + int64_t(row) * stride + part.first_rank;
    Vec even = splat(0.0f), odd = splat(0.0f);
    int rank = 0;
    for (; rank + 2 <= part.ranks; rank += 2) {
      even = fma(load(b + rank * kLanes), splat(from[rank]), even);
      odd = fma(load(b + (rank + 1) * kLanes), splat(from[rank + 1]), odd);
    }
    if (rank < part.ranks) even = fma(load(b + rank * kLanes), splat(from[rank]), even);
    sums = add(sums, add(even, odd));
  }
  return sums;
}

Shrunk shrink(Pool& pool, const LoraRows& rows, const LoraLayer* adapters, int inputs, const float* x, const float* norm, float eps) {
  Group* groups = scratch_of<Group>(8, rows.count);
  const int count = cut(rows, adapters, groups);
  int stride = 0, last = 0;
  for (int i = 0; i < rows.count; i++) {
    stride = std::max(stride, adapters[rows.of_row[rows.order[i]]].ranks);
    last = std::max(last, rows.order[i]);
  }
  float* h = scratch_of<float>(9, (int64_t(last) + 1) * stride);
  pool.run(count, [&](int g) {
    const int* mine = rows.order + groups[g].begin;
    const LoraLayer& layer = adapters[rows.of_row[mine[0]]];
    float* inputs_of = scratch_of<float>(0, int64_t(kTogether) * inputs);
    float* outs[kTogether] = {};
    for (int r = 0; r < groups[g].count; r++) {
      const float* row = x + int64_t(mine[r]) * inputs;
      outs[r] = h + int64_t(mine[r]) * stride;
      if (norm)
        normalise(row, norm, eps, inputs, inputs_of + int64_t(r) * inputs);
      else
        std::memcpy(inputs_of + int64_t(r) * inputs, row, sizeof(float) * inputs);
    }
    for (int v = 0; v < layer.ranks / kLanes; v++) {
      const float* a = layer.a + int64_t(v) * inputs * kLanes;
      groups[g].count == 2 ? dot<2>(a, inputs_of, inputs, outs, v) : dot<1>(a, inputs_of, inputs, outs, v);
    }
  });
  return {adapters, rows.of_row, h, stride};
}

}  // namespace headrace
