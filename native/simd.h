// Vectors of floats, made with compiler extensions, as wide as the registers of the instruction set.
#pragma once

#if defined(__wasm__)
#include "freestanding.h"
#else
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#endif

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "problem.h"

#define QKV_UNROLL _Pragma("GCC unroll 32")
#define QKV_INLINE inline __attribute__((always_inline))
#define QKV_LAMBDA __attribute__((always_inline))

namespace qkv {
namespace QKV_VARIANT {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;  // the number of floats in a vector
constexpr int TILE = 14;   // the rows of a register tile, which is 2 vectors wide
#elif defined(QKV_TILES_MODEL)
constexpr int WIDTH = 16;  // a row of a tile register has 16 floats
constexpr int TILE = 2;    // few, so that the model is small
#elif defined(__AVX2__)
constexpr int WIDTH = 8;
constexpr int TILE = 6;
#else
constexpr int WIDTH = 4;
constexpr int TILE = 6;
#endif
constexpr int PANEL = 2 * WIDTH;  // the columns of a register tile

typedef float Floats __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
typedef int16_t Shorts __attribute__((vector_size(4 * WIDTH)));
typedef uint8_t Bytes __attribute__((vector_size(WIDTH)));
typedef int8_t SignedBytes __attribute__((vector_size(WIDTH)));

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float LOG2_E = 1.44269504088896340736f;
constexpr double LN_2 = 0.693147180559945309417;

QKV_INLINE Floats splat(float x) { return x - Floats{}; }
QKV_INLINE Ints splat_int(int32_t x) { return x - Ints{}; }

template <class T>
QKV_INLINE T load_as(const void* from) {  // `from` may be unaligned
  T v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
QKV_INLINE Floats load(const float* from) { return load_as<Floats>(from); }
QKV_INLINE void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }

// Stores the first `count` numbers of a vector, and writes no memory after these numbers.
QKV_INLINE Floats load_some(const float* from, int64_t count) {
  float all[WIDTH];
  for (int k = 0; k < WIDTH; ++k) all[k] = k < count ? from[k] : 0;
  return load(all);
}
QKV_INLINE void store_some(float* to, Floats v, int64_t count) {
  for (int k = 0; k < WIDTH; ++k)
    if (k < count) to[k] = v[k];
}

QKV_INLINE Ints lanes() {  // 0, 1, 2, ...
  Ints v;
  for (int k = 0; k < WIDTH; ++k) v[k] = k;
  return v;
}

QKV_INLINE Floats to_floats(Ints v) { return __builtin_convertvector(v, Floats); }
// Rounds to the nearest whole numbers, ties to even. The numbers must be in the range of int32.
QKV_INLINE Ints to_nearest(Floats v) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtps_epi32(0xffff, (__m512)v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32((__m256)v);
#else
  Ints whole;
  for (int k = 0; k < WIDTH; ++k) whole[k] = int32_t(__builtin_lrintf(v[k]));
  return whole;
#endif
}

// Returns sum + the products of the two int16 numbers in each lane of a and b.
QKV_INLINE Ints add_pair_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512F__)
  return sum + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && !defined(QKV_TILES_MODEL)
  return sum + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return sum + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

QKV_INLINE Floats as_floats(Ints v) { return (Floats)v; }
QKV_INLINE Ints as_ints(Floats v) { return (Ints)v; }

QKV_INLINE Floats select(Ints where, Floats yes, Floats no) { return where ? yes : no; }

// Some processors need about 150 cycles for a multiply-add with a subnormal number. So no computed
// number is subnormal when it enters a product. Weights below 2**-NEGLIGIBLE become 0, so that their
// products with values, and sums of only such products, are not subnormal either.
constexpr int NEGLIGIBLE = 100;
constexpr int SHOWN = 125;  // the limit for weights that are results
constexpr float TINY = 0x1p-125f;

// Replaces numbers below TINY by 0.
QKV_INLINE Floats without_tiny(Floats v) {
  return (Floats)((Ints)v & (Ints)(((Ints)v & 0x7fffffff) >= as_ints(splat(TINY))));
}
inline double without_tiny(double x) { return x < TINY ? 0 : x; }  // for x >= 0, or NaN

// Returns the larger of two numbers, or b if a or b is NaN.
QKV_INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

QKV_INLINE bool all_zero(Ints v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) == 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)v, (__m256i)v);
#else
  int32_t any = 0;
  for (int k = 0; k < WIDTH; ++k) any |= v[k];
  return any == 0;
#endif
}
QKV_INLINE bool all_zero(Floats v) { return all_zero((Ints)(v != Floats{})); }

// Returns a vector whose lane l is lane l ^ DISTANCE of the argument.
template <int DISTANCE, int... LANE>
QKV_INLINE Floats swapped(Floats v, std::integer_sequence<int, LANE...>) {
  return __builtin_shufflevector(v, v, (LANE ^ DISTANCE)...);
}
using Lanes = std::make_integer_sequence<int, WIDTH>;

template <int DISTANCE = WIDTH / 2>
QKV_INLINE float sum(Floats v) {
  v += swapped<DISTANCE>(v, Lanes{});
  if constexpr (DISTANCE > 1) return sum<DISTANCE / 2>(v);
  return v[0];
}

// Transposes WIDTH vectors.
template <int DISTANCE, int... LANE>
QKV_INLINE void exchange(Floats& a, Floats& b, std::integer_sequence<int, LANE...>) {
  Floats low = __builtin_shufflevector(a, b, (LANE & DISTANCE ? WIDTH + LANE - DISTANCE : LANE)...);
  b = __builtin_shufflevector(a, b, (LANE & DISTANCE ? WIDTH + LANE : LANE + DISTANCE)...);
  a = low;
}
template <int DISTANCE = WIDTH / 2>
QKV_INLINE void transpose(Floats (&v)[WIDTH]) {
  QKV_UNROLL
  for (int k = 0; k < WIDTH; ++k)
    if (!(k & DISTANCE)) exchange<DISTANCE>(v[k], v[k + DISTANCE], Lanes{});
  if constexpr (DISTANCE > 1) transpose<DISTANCE / 2>(v);
}

// Returns 2**x for x <= 127, with a relative error below 1.7e-7; 0 for x < -LEAST (without AVX-512, for
// x < 0.5 - LEAST); NaN for NaN. The result is never subnormal.
//
// 2**x = 2**n * 2**f, where n is a whole number and |f| <= 1/2. A polynomial approximates 2**f; it was
// fitted by reweighted least squares.
template <int LEAST = NEGLIGIBLE>
QKV_INLINE Floats exp2(Floats x) {
#if defined(__AVX512F__)
  __mmask16 enough = _mm512_cmp_ps_mask((__m512)x, (__m512)splat(-LEAST), _CMP_NLT_UQ);
  constexpr float UNIT = 1;
  Floats n = (Floats)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, 8);  // round to nearest, without exceptions
  Floats f = x - n;
#else
  x = larger(splat(-LEAST), x);
  // 1.5 * 2**23: the addition rounds and leaves n + LEAST in the bits, which are the exponent of
  // 2**(n + LEAST - 127), or 0. The polynomial has the other factor.
  constexpr float magic = 12582912.0f + LEAST, UNIT = 1 << (127 - LEAST);
  Floats shifted = x + magic;
  Floats f = x - (shifted - magic);
#endif
  Floats p = splat(UNIT * 0x1.5bba12p-10f);
  p = p * f + UNIT * 0x1.3cea88p-7f;
  p = p * f + UNIT * 0x1.c6b752p-5f;
  p = p * f + UNIT * 0x1.ebf9bcp-3f;
  p = p * f + UNIT * 0x1.62e42ap-1f;
  p = p * f + UNIT;
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_scalef_ps(enough, (__m512)p, (__m512)n);
#else
  return p * as_floats(as_ints(shifted) << 23);
#endif
}

// Returns tanh(x), with a relative error below 4e-7 and between -1 and 1; NaN for NaN.
//
// The formula is x * P(x**2) / Q(x**2), fitted on [0, 9.02] by reweighted least squares. For larger x,
// tanh(x) is 1 in float32.
QKV_INLINE Floats tanh(Floats x) {
  Floats bounded = larger(splat(-9.02f), x);
  bounded = -larger(splat(-9.02f), -bounded);
  Floats square = bounded * bounded;
  Floats p = splat(0x1.c9a494p-27f);
  p = p * square + 0x1.5955b0p-16f;
  p = p * square + 0x1.c9f880p-9f;
  p = p * square + 0x1.120446p-3f;
  p = p * square + 1.0f;
  Floats q = splat(0x1.a0b8eap-21f);
  q = q * square + 0x1.58420cp-12f;
  q = q * square + 0x1.a7df38p-6f;
  q = q * square + 0x1.de576cp-2f;
  q = q * square + 1.0f;
  Floats y = larger(splat(-1.0f), bounded * p / q);
  return -larger(splat(-1.0f), -y);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
