// Inputs of a product: rows of floats, normalised if need be and laid out as the tiles that `formats.h` describes.

#pragma once

#include <algorithm>

#include "formats.h"
#include "pool.h"

namespace headrace {

struct Source {
  const float* x;
  const int32_t* rows;  // which of x; null: each in turn
  int columns;
  const float* norm;  // weight of an RMS normalisation (Zhang & Sennrich 2019), or null
  float eps;

  const float* row(int r) const { return x + int64_t(rows ? rows[r] : r) * columns; }
};

HEADRACE_INLINE float root_mean_square(const float* x, int count, float eps) {
  Vec squares = splat(0.0f);
  int k = 0;
  for (; k + kLanes <= count; k += kLanes) squares = fma(load(x + k), load(x + k), squares);
  float sum = sum_of(squares);
  for (; k < count; k++) sum += x[k] * x[k];
  return std::sqrt(sum / static_cast<float>(count) + eps);
}

// out [count] = x / rms(x) * weight.
HEADRACE_INLINE void normalise(const float* x, const float* weight, float eps, int count, float* out) {
  const float inverse = 1.0f / root_mean_square(x, count, eps);
  int k = 0;
  for (; k + kLanes <= count; k += kLanes) store(out + k, mul(mul(load(x + k), splat(inverse)), load(weight + k)));
  for (; k < count; k++) out[k] = x[k] * inverse * weight[k];
}

// Rounds a chunk to integers of 12 bits and a sign, two a word, and notes what one step is worth, and where the
// format wants it their sum. A chunk that is not finite is worth NaN: so is then whatever is computed from it.
template <class F>
HEADRACE_INLINE void round_chunk(const float* x, uint32_t* words, float* scales) {
  Vec most = splat(0.0f), finite = splat(0.0f);
  for (int k = 0; k < F::kChunk; k += kLanes) {
    const Vec v = load(x + k);
    most = max(most, abs(v));
    finite = fma(v, splat(0.0f), finite);
  }
  const float largest = max_of(most);
  const float not_finite = sum_of(finite);  // NaN, or zero
  const Vec steps = splat(largest > 0 ? static_cast<float>(kMaxInput) / largest : 0.0f);
  Vec sums = splat(0.0f);  // exact: of few and small integers
  for (int k = 0; k < F::kChunk; k += 2 * kLanes) {
    const Ints low = to_ints(mul(load(x + k), steps)), high = to_ints(mul(load(x + k + kLanes), steps));
    const Ints both = narrow(low, high);
    std::memcpy(words + k / 2, &both, sizeof both);
    if (F::kInputScales > 1) sums = add(sums, add(to_floats(low), to_floats(high)));
  }
  scales[0] = largest / static_cast<float>(kMaxInput) + not_finite;
  if (F::kInputScales > 1) scales[1] = scales[0] * sum_of(sums);
}

// One row into its place in a tile of `rows`: `words` [k / kPerWord][rows] and `scales` [chunk][rows][kInputScales]
// at this row.
template <class F>
void pack_row(const Source& source, const float* x, int rows, uint32_t* words, float* scales) {
  const int padded = padded_k(source.columns);
  float* row = scratch_of<float>(0, padded);
  if (source.norm)
    normalise(x, source.norm, source.eps, source.columns, row);
  else
    std::memcpy(row, x, sizeof(float) * source.columns);
  std::fill(row + source.columns, row + padded, 0.0f);
  if constexpr (!F::kIntegers) {
    for (int k = 0; k < padded; k++) std::memcpy(words + int64_t(k) * rows, row + k, 4);
  } else {
    constexpr int kWords = F::kChunk / 2;
    uint32_t chunk_words[kWords];
    for (int chunk = 0; chunk < padded / F::kChunk; chunk++) {
      round_chunk<F>(row + chunk * F::kChunk, chunk_words, scales + int64_t(chunk) * rows * F::kInputScales);
      uint32_t* to = words + int64_t(chunk) * kWords * rows;
      for (int k = 0; k < kWords; k++) to[k * rows] = chunk_words[k];
    }
  }
}

}  // namespace headrace
