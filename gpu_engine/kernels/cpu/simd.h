// Vectors of the widest kind that the processor has: 16 floats with AVX-512, 8 with AVX2 and FMA.
//
// A `Vec` holds floats, an `Ints` as many 32-bit integers or twice as many 16-bit ones. Everything else in
// this folder is written in these few operations.

#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#if !defined(__AVX2__) || !defined(__FMA__)
#error "these kernels need AVX2 and FMA; without them torch serves"
#endif

namespace headrace {

#define HEADRACE_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(HEADRACE_AVX2_ONLY)

constexpr int kLanes = 16;
constexpr int kMaxRows = 12;  // rows of a tile: two accumulators each, of 32 registers
typedef __m512 Vec;
typedef __m512i Ints;

HEADRACE_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
HEADRACE_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
HEADRACE_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
HEADRACE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
HEADRACE_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
HEADRACE_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
HEADRACE_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
HEADRACE_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
HEADRACE_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
HEADRACE_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
HEADRACE_INLINE Vec abs(Vec a) { return _mm512_abs_ps(a); }
HEADRACE_INLINE Vec keep_unless_less(Vec v, Vec a, Vec b) {  // v, but 0 where a < b
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), v);
}
HEADRACE_INLINE Vec to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
HEADRACE_INLINE Ints to_ints(Vec a) { return _mm512_cvtps_epi32(a); }  // to nearest, ties to even
HEADRACE_INLINE Vec exp2_of(Ints n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23)); }
HEADRACE_INLINE float sum_of(Vec a) { return _mm512_reduce_add_ps(a); }
HEADRACE_INLINE float max_of(Vec a) { return _mm512_reduce_max_ps(a); }

HEADRACE_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
HEADRACE_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
HEADRACE_INLINE Ints splat_word(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
HEADRACE_INLINE Ints widen_bytes(const void* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
HEADRACE_INLINE Ints widen_unsigned(const void* p) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
HEADRACE_INLINE Ints lower_nibbles(Ints bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi16(15)); }
HEADRACE_INLINE Ints upper_nibbles(Ints bytes) { return _mm512_srli_epi16(bytes, 4); }
HEADRACE_INLINE Vec load_half(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }

// bf16 is the upper half of a float.
HEADRACE_INLINE Vec load(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
HEADRACE_INLINE Vec upper_halves(Ints a) { return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000)))); }
HEADRACE_INLINE Vec lower_halves(Ints a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }

// Two vectors of integers in order, as 16-bit ones.
HEADRACE_INLINE Ints narrow(Ints low, Ints high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)), _mm512_cvtepi32_epi16(high), 1);
}

// acc += the products of pairs of 16-bit integers, each pair added up.
HEADRACE_INLINE void dot_pairs(Ints& acc, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  acc = _mm512_dpwssd_epi32(acc, a, b);
#else
  Ints products;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+v"(acc), "=&v"(products) : "v"(a), "v"(b));
#endif
}

#else

constexpr int kLanes = 8;
constexpr int kMaxRows = 6;  // rows of a tile: two accumulators each, of 16 registers
typedef __m256 Vec;
typedef __m256i Ints;

HEADRACE_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
HEADRACE_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
HEADRACE_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
HEADRACE_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
HEADRACE_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
HEADRACE_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
HEADRACE_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
HEADRACE_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
HEADRACE_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
HEADRACE_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
HEADRACE_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
HEADRACE_INLINE Vec keep_unless_less(Vec v, Vec a, Vec b) {  // v, but 0 where a < b
  return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ), v);
}
HEADRACE_INLINE Vec to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
HEADRACE_INLINE Ints to_ints(Vec a) { return _mm256_cvtps_epi32(a); }  // to nearest, ties to even
HEADRACE_INLINE Vec exp2_of(Ints n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)); }
HEADRACE_INLINE float sum_of(Vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
HEADRACE_INLINE float max_of(Vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

HEADRACE_INLINE Ints load_ints(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
HEADRACE_INLINE Ints zero_ints() { return _mm256_setzero_si256(); }
HEADRACE_INLINE Ints splat_word(uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
HEADRACE_INLINE Ints widen_bytes(const void* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
HEADRACE_INLINE Ints widen_unsigned(const void* p) { return _mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
HEADRACE_INLINE Ints lower_nibbles(Ints bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(15)); }
HEADRACE_INLINE Ints upper_nibbles(Ints bytes) { return _mm256_srli_epi16(bytes, 4); }
HEADRACE_INLINE Vec load_half(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }

// bf16 is the upper half of a float.
HEADRACE_INLINE Vec load(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
HEADRACE_INLINE Vec upper_halves(Ints a) { return _mm256_castsi256_ps(_mm256_and_si256(a, _mm256_set1_epi32(static_cast<int>(0xffff0000)))); }
HEADRACE_INLINE Vec lower_halves(Ints a) { return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16)); }

// Two vectors of integers in order, as 16-bit ones.
HEADRACE_INLINE Ints narrow(Ints low, Ints high) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

// acc += the products of pairs of 16-bit integers, each pair added up. The two instructions are one block for
// the compiler: left alone it moves them apart, and then runs out of registers.
HEADRACE_INLINE void dot_pairs(Ints& acc, Ints a, Ints b) {
#if defined(__AVXVNNI__)
  acc = _mm256_dpwssd_avx_epi32(acc, a, b);
#else
  Ints products;
  asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(products) : "x"(a), "x"(b));
#endif
}

#endif

HEADRACE_INLINE void store(uint16_t* p, float x) {  // rounds to bf16, ties to even; NaN stays NaN
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  *p = static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
HEADRACE_INLINE void store(float* p, float x) { *p = x; }

// e^x: 2^n times a polynomial on [-ln2/2, ln2/2] (Cephes' expf), for x held between -87 and 88. Relative error
// below 2e-7. NaN stays NaN: the order of the operands of min and max sees to it.
HEADRACE_INLINE Vec exp(Vec x) {
  x = min(splat(88.0f), max(splat(-87.0f), x));
  const Ints n = to_ints(mul(x, splat(1.44269504f)));
  const Vec k = to_floats(n);
  const Vec r = fma(k, splat(2.12194440e-4f), fma(k, splat(-0.693359375f), x));
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  return mul(fma(p, mul(r, r), add(r, splat(1.0f))), exp2_of(n));
}

// e^x as softmax needs it: exactly 0 below -87.
HEADRACE_INLINE Vec exp_or_zero(Vec x) { return keep_unless_less(exp(x), x, splat(-87.0f)); }

}  // namespace headrace
