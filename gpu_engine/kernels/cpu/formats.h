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
//
// Integer products are twice as many an instruction as float ones, at the same rate on Intel since Skylake and AMD
// since Zen 3 (vpmaddwd, vpdpwssd). Weights have at most 13 bits and a sign, inputs 12, with a scale of their own in each row and chunk:
// 64 * 8191 * 4095 is below 2^31, so nothing overflows whatever the numbers. The error is below that of bf16
// inputs (Int16 weights: a step of a 8191th of the column's largest, where bf16 has a 256th of each weight).

#pragma once

#include "simd.h"

namespace headrace {

constexpr int kColumns = 2 * kLanes;
constexpr int kChunk = 64;  // k
constexpr int kMaxWeight = 8191, kMaxInput = 4095;

enum class Format : int { kFloat32 = 0, kBf16 = 1, kInt16 = 2, kInt8 = 3 };

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
  // Adds the sums of a chunk to out [R][kColumns]; `scales`: of each row's inputs.
  HEADRACE_INLINE void flush(float* out, const float* scales, const float* columns) {
    F::add_to(out, left, scales, columns);
    F::add_to(out + kLanes, right, scales, columns + kLanes);
    rest.flush(out + kColumns, scales + 1, columns);
  }
};
template <class F>
struct Rows<F, 0> {
  HEADRACE_INLINE void clear() {}
  HEADRACE_INLINE void step(typename F::Weights, const uint32_t*) {}
  HEADRACE_INLINE void flush(float*, const float*, const float*) {}
};

struct Floats {
  typedef Vec Sum;
  struct Weights {
    Vec left, right;
  };
  static constexpr int kPerWord = 1;
  static constexpr bool kIntegers = false, kChunkScales = false;

  static HEADRACE_INLINE Vec zero() { return splat(0.0f); }
  static HEADRACE_INLINE void multiply(Vec& left, Vec& right, Weights w, uint32_t input) {
    float x;
    std::memcpy(&x, &input, 4);
    const Vec all = splat(x);
    left = fma(w.left, all, left);
    right = fma(w.right, all, right);
  }
  static HEADRACE_INLINE void add_to(float* out, Vec sum, const float*, const float*) { store(out, add(load(out), sum)); }
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
  static constexpr int kPerWord = 2;
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
  static HEADRACE_INLINE Weights weights(const char* p) { return {load_ints(p), load_ints(p + 4 * kLanes)}; }
  static HEADRACE_INLINE void add_to(float* out, Ints sum, const float* scale, const float*) {
    store(out, fma(to_floats(sum), splat(*scale), load(out)));
  }
};

struct Int8 : Integers {
  static constexpr int kBytes = 2 * kColumns;
  static constexpr bool kChunkScales = true;
  static HEADRACE_INLINE Weights weights(const char* p) { return {widen_bytes(p), widen_bytes(p + 2 * kLanes)}; }
  static HEADRACE_INLINE void add_to(float* out, Ints sum, const float* scale, const float* columns) {
    store(out, fma(to_floats(sum), mul(splat(*scale), load(columns)), load(out)));
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
  }
}

constexpr int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// k of a packed row: padded with zeros, so that only whole chunks are computed.
constexpr int padded_k(int k) { return round_up(k, kChunk); }

}  // namespace headrace
