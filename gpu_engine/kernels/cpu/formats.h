// How weights lie in memory, and what one tile of a product does with them.
//
// Weights W [N][K] are packed into blocks of kColumns = 2 * kLanes columns; a block holds its words for k = 0, 1,
// … one after the other. Inputs are packed into tiles of up to kMaxRows rows: for each word of k one 32-bit word
// of each row. A tile's step multiplies a word of the weights with one of the inputs, for all rows and columns.
//
//   format    a word of weights holds        of inputs        a step does        sums
//   Float32   1 k, float                     1 k, float       1 k                in float
//   Bf16      1 k, bf16                      1 k, float       1 k                in float, weights exact
//   Int16     2 k, 16 bits, scale a column   2 k, 13 bits     2 k in integers    exact over a chunk of 64 k
//   Int8      2 k, 8 bits, scale a column    2 k, 13 bits     2 k in integers    exact over a chunk of 64 k
//             and chunk
//   Int4      2 k, 4 bits, step and lowest   2 k, 13 bits     2 k in integers    exact over a chunk of 32 k
//             a column and chunk
//
// Integer products are twice as many an instruction as float ones, at the same rate on Intel since Skylake and AMD
// since Zen 3 (vpmaddwd, vpdpwssd). Weights have at most 13 bits and a sign, inputs 12, with a scale of their own in each row and chunk:
// 64 * 8191 * 4095 is below 2^31, so nothing overflows whatever the numbers. The error is below that of bf16
// inputs (Int16 weights: a step of a 8191th of the column's largest, where bf16 has a 256th of each weight).

#pragma once

#include "simd.h"

namespace headrace {

constexpr int kColumns = 2 * kLanes;
constexpr int kMostChunk = 64;  // k; what rows are padded to
constexpr int kMaxWeight = 8191, kMaxInput = 4095;

enum class Format : int { kFloat32 = 0, kBf16 = 1, kInt16 = 2, kInt8 = 3, kInt4 = 4 };

// The accumulators of a tile, as a list of rows. (An array of vectors would live in memory: the compiler unrolls
// loops too late to see that each of its places could be a register.)
template <class F, int R>
struct Rows {
  typename F::Sum left, right;
  Rows<F, R - 1> rest;

  HEADRACE_INLINE void clear() {
    left = right = F::zero();
    rest.clear();
  }
  HEADRACE_INLINE void step(typename F::Weights w, const uint32_t* inputs) {
    F::multiply(left, right, w, *inputs);
    rest.step(w, inputs + 1);
  }
  // Adds the sums of a chunk to out [R][kColumns]; `scales`: of each row's inputs, `columns`: of the weights.
  HEADRACE_INLINE void flush(float* out, const float* scales, const typename F::Scales* columns) {
    F::add_to(out, left, scales, columns[0]);
    F::add_to(out + kLanes, right, scales, columns[1]);
    rest.flush(out + kColumns, scales + F::kInputScales, columns);
  }
};
template <class F>
struct Rows<F, 0> {
  HEADRACE_INLINE void clear() {}
  HEADRACE_INLINE void step(typename F::Weights, const uint32_t*) {}
  HEADRACE_INLINE void flush(float*, const float*, const typename F::Scales*) {}
};

// A format says: kChunk, k that are summed up before scales; kInputScales, floats that `pack_row` notes of each
// row and chunk; kChunkScales, whether each chunk of a column has `Scales` of its own, a float of memory each.
struct Floats {
  typedef Vec Sum;
  struct Weights {
    Vec left, right;
  };
  struct Scales {};
  static constexpr int kPerWord = 1, kChunk = kMostChunk, kInputScales = 1;
  static constexpr bool kIntegers = false, kChunkScales = false;

  static HEADRACE_INLINE Scales scales(const float*, int) { return {}; }
  static HEADRACE_INLINE Vec zero() { return splat(0.0f); }
  static HEADRACE_INLINE void multiply(Vec& left, Vec& right, Weights w, uint32_t input) {
    float x;
    std::memcpy(&x, &input, 4);
    const Vec all = splat(x);
    left = fma(w.left, all, left);
    right = fma(w.right, all, right);
  }
  static HEADRACE_INLINE void add_to(float* out, Vec sum, const float*, Scales) { store(out, add(load(out), sum)); }
};

struct Float32 : Floats {
  static constexpr int kBytes = 4 * kColumns;  // of one word of a block
  static HEADRACE_INLINE Weights weights(const char* p) {
    const float* f = reinterpret_cast<const float*>(p);
    return {load(f), load(f + kLanes)};
  }
};

// Columns i and i + kLanes share a 32-bit lane.
struct Bf16 : Floats {
  static constexpr int kBytes = 2 * kColumns;
  static HEADRACE_INLINE Weights weights(const char* p) {
    const Ints pair = load_ints(p);
    return {lower_halves(pair), upper_halves(pair)};
  }
};

struct Integers {
  typedef Ints Sum;
  struct Weights {
    Ints left, right;
  };
  static constexpr int kPerWord = 2, kChunk = kMostChunk, kInputScales = 1;
  static constexpr bool kIntegers = true;

  static HEADRACE_INLINE Ints zero() { return zero_ints(); }
  static HEADRACE_INLINE void multiply(Ints& left, Ints& right, Weights w, uint32_t input) {
    const Ints all = splat_word(input);
    dot_pairs(left, w.left, all);
    dot_pairs(right, w.right, all);
  }
};

struct Int16 : Integers {
  static constexpr int kBytes = 4 * kColumns;
  static constexpr bool kChunkScales = false;
  struct Scales {};
  static HEADRACE_INLINE Scales scales(const float*, int) { return {}; }
  static HEADRACE_INLINE Weights weights(const char* p) { return {load_ints(p), load_ints(p + 4 * kLanes)}; }
  static HEADRACE_INLINE void add_to(float* out, Ints sum, const float* input, Scales) {
    store(out, fma(to_floats(sum), splat(*input), load(out)));
  }
};

struct Int8 : Integers {
  static constexpr int kBytes = 2 * kColumns;
  static constexpr bool kChunkScales = true;
  typedef Vec Scales;
  static HEADRACE_INLINE Scales scales(const float* p, int side) { return load(p + side * kLanes); }
  static HEADRACE_INLINE Weights weights(const char* p) { return {widen_bytes(p), widen_bytes(p + 2 * kLanes)}; }
  static HEADRACE_INLINE void add_to(float* out, Ints sum, const float* input, Scales columns) {
    store(out, fma(to_floats(sum), mul(splat(*input), columns), load(out)));
  }
};

// A weight is lowest + n * step, n from 0 to 15: sum(w x) = step * sum(n x) + lowest * sum(x), so that the tile
// multiplies n alone, and the inputs bring their sum. Steps and lowest ones are of 16 bits (IEEE half), kLanes of
// the one before kLanes of the other: the scales of the formats Q4_1 and, but for a shift, Q4_0 of ggml.
// Columns i and i + kLanes share a byte.
struct Int4 : Integers {
  static constexpr int kBytes = kColumns;
  static constexpr int kChunk = 32, kInputScales = 2;  // of a step of the inputs, and of their sum
  static constexpr bool kChunkScales = true;
  struct Scales {
    Vec step, lowest;
  };
  static HEADRACE_INLINE Scales scales(const float* p, int side) {
    return {load_half(p + side * kLanes), load_half(p + side * kLanes + kLanes / 2)};
  }
  static HEADRACE_INLINE Weights weights(const char* p) {
    const Ints both = widen_unsigned(p);
    return {lower_nibbles(both), upper_nibbles(both)};
  }
  static HEADRACE_INLINE void add_to(float* out, Ints sum, const float* input, Scales columns) {
    const Vec before = fma(columns.lowest, splat(input[1]), load(out));
    store(out, fma(to_floats(sum), mul(splat(input[0]), columns.step), before));
  }
};

// f(F{}) for the format called `format`.
template <class Function>
HEADRACE_INLINE void with_format(Format format, const Function& f) {
  switch (format) {
    case Format::kFloat32: return f(Float32{});
    case Format::kBf16: return f(Bf16{});
    case Format::kInt16: return f(Int16{});
    case Format::kInt8: return f(Int8{});
    case Format::kInt4: return f(Int4{});
  }
}

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// k of a packed row: padded with zeros, so that only whole chunks are computed.
constexpr int padded_k(int k) { return round_up(k, kMostChunk); }

template <class F>
constexpr int chunks_of(int k) {
  return padded_k(k) / F::kChunk;
}

}  // namespace headrace
