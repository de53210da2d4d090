#include "lora.h"

#include <algorithm>

#include "inputs.h"

namespace headrace {
namespace {

constexpr int kTogether = 2;  // rows that share each load of A
constexpr int kChains = 2;    // sums of a vector, k by k in turn: fewer additions wait for one another

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

// Vectors v … v + V - 1 of h for R rows: a [vectors][inputs][kLanes] at the first of them, x [R][inputs].
template <int R, int V>
void dot(const float* a, const float* x, int inputs, float* const* h, int v) {
  Vec sums[R][V][kChains];
  for (auto& row : sums)
    for (auto& vector : row)
      for (Vec& sum : vector) sum = splat(0.0f);
  const auto step = [&](int k, int chain) {
    for (int i = 0; i < V; i++) {
      const Vec weights = load(a + (int64_t(i) * inputs + k) * kLanes);
      for (int r = 0; r < R; r++) sums[r][i][chain] = fma(weights, splat(x[int64_t(r) * inputs + k]), sums[r][i][chain]);
    }
  };
  int k = 0;
  for (; k + kChains <= inputs; k += kChains)
    for (int chain = 0; chain < kChains; chain++) step(k + chain, chain);
  for (; k < inputs; k++) step(k, 0);
  for (int r = 0; r < R; r++)
    for (int i = 0; i < V; i++) store(h[r] + (v + i) * kLanes, add(sums[r][i][0], sums[r][i][1]));
}

template <int R>
void dot_all(const LoraLayer& layer, const float* x, int inputs, float* const* h) {
  const int vectors = layer.ranks / kLanes;
  int v = 0;
  for (; v + 2 <= vectors; v += 2) dot<R, 2>(layer.a + int64_t(v) * inputs * kLanes, x, inputs, h, v);
  if (v < vectors) dot<R, 1>(layer.a + int64_t(v) * inputs * kLanes, x, inputs, h, v);
}

// Adds B h to V neighbouring vectors of columns: b [V][ranks][kLanes], h [ranks].
template <int V>
HEADRACE_INLINE void add_product(const float* b, const float* h, int ranks, Vec* const* sums) {
  Vec even[V], odd[V];
  for (int i = 0; i < V; i++) even[i] = odd[i] = splat(0.0f);
  int rank = 0;
  for (; rank + 2 <= ranks; rank += 2)
    for (int i = 0; i < V; i++) {
      even[i] = fma(load(b + (int64_t(i) * ranks + rank) * kLanes), splat(h[rank]), even[i]);
      odd[i] = fma(load(b + (int64_t(i) * ranks + rank + 1) * kLanes), splat(h[rank + 1]), odd[i]);
    }
  if (rank < ranks)
    for (int i = 0; i < V; i++) even[i] = fma(load(b + (int64_t(i) * ranks + rank) * kLanes), splat(h[rank]), even[i]);
  for (int i = 0; i < V; i++) *sums[i] = add(*sums[i], add(even[i], odd[i]));
}

// The place of vector `v` among those of a part, or -1.
HEADRACE_INLINE int place_in(const LoraPart& part, int v) {
  const int behind = v - part.first, place = part.stride == 1 ? behind : behind / 2;
  return behind < 0 || behind % part.stride || place >= part.count ? -1 : place;
}

}  // namespace

void Shrunk::expand(int row, int block, Vec& left, Vec& right) const {
  const int adapter = of_row[row];
  if (adapter < 0 || !adapters[adapter].a) return;
  const LoraLayer& layer = adapters[adapter];
  for (int i = 0; i < layer.num_parts; i++) {
    const LoraPart& part = layer.parts[i];
    const float* from = h + int64_t(row) * stride + part.first_rank;
    const int64_t size = int64_t(part.ranks) * kLanes;
    const int at[] = {place_in(part, 2 * block), place_in(part, 2 * block + 1)};
    Vec* const both[] = {&left, &right};
    if (at[0] >= 0 && at[1] >= 0) {
      add_product<2>(part.b + at[0] * size, from, part.ranks, both);
    } else if (at[0] >= 0 || at[1] >= 0) {
      const int side = at[0] >= 0 ? 0 : 1;
      add_product<1>(part.b + at[side] * size, from, part.ranks, both + side);
    }
  }
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
    groups[g].count == 2 ? dot_all<2>(layer, inputs_of, inputs, outs) : dot_all<1>(layer, inputs_of, inputs, outs);
  });
  return {adapters, rows.of_row, h, stride};
}

}  // namespace headrace
