// Conversions between float32 and float16 or bfloat16: of a number, a vector or an array.
#pragma once

#include <algorithm>
#include <atomic>

#include "simd.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

// Integer types that hold the bits of float16 and bfloat16.
struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
typedef uint16_t HalfBits __attribute__((vector_size(2 * WIDTH)));

// Converts bits to float32.
QKV_INLINE float from_bfloat16(uint16_t bits) {
  uint32_t wide = uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}
QKV_INLINE Floats from_bfloat16(HalfBits bits) {
  return (Floats)(__builtin_convertvector(bits, Words) << 16);
}
QKV_INLINE Floats from_float16(HalfBits bits) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
#elif defined(__F16C__)
  return (Floats)_mm256_cvtph_ps((__m128i)bits);
#else
  Words wide = __builtin_convertvector(bits, Words);
  Words sign = (wide & 0x8000) << 16;
  Words rest = (wide & 0x7fff) << 13;
  // this multiplication changes the exponent's bias from 15 to 127, and converts subnormals too
  Floats value = (Floats)rest * 0x1p112f;
  Words special = (Words)(rest >= (0x7c00u << 13));  // infinity and NaN
  value = (Floats)(((Words)value & ~special) | ((rest | 0x7f800000u) & special));
  return (Floats)((Words)value | sign);
#endif
}
QKV_INLINE float from_float16(uint16_t bits) {
  HalfBits v{};
  v[0] = bits;
  return from_float16(v)[0];
}

// Converts float32 to bits: rounds to nearest, and ties to even. NaN stays NaN.
QKV_INLINE uint16_t to_bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline uint16_t to_float16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return uint16_t(sign | 0x7e00);   // NaN
  if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to infinity
  if (bits < 0x38800000) {                                 // subnormal: the addition rounds
    float scaled;
    std::memcpy(&scaled, &bits, 4);
    scaled += 0.5f;
    uint32_t shifted;
    std::memcpy(&shifted, &scaled, 4);
    return uint16_t(sign | (shifted - 0x3f000000));
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return uint16_t(sign | ((bits - 0x38000000) >> 13));
}

// Loads one number of any float type.
inline double number_at(const void* data, Type type, int64_t at) {
  switch (type) {
    case Type::float16: return from_float16(static_cast<const uint16_t*>(data)[at]);
    case Type::bfloat16: return from_bfloat16(static_cast<const uint16_t*>(data)[at]);
    case Type::float32: return static_cast<const float*>(data)[at];
    case Type::float64: return static_cast<const double*>(data)[at];
    case Type::boolean: return static_cast<const uint8_t*>(data)[at];
    default: return static_cast<double>(static_cast<const int64_t*>(data)[at]);
  }
}

// Loads a vector of any working type as floats.
QKV_INLINE Floats take(const float* from) { return load(from); }
QKV_INLINE Floats take(const Float16* from) { return from_float16(load_as<HalfBits>(from)); }
QKV_INLINE Floats take(const Bfloat16* from) { return from_bfloat16(load_as<HalfBits>(from)); }

QKV_INLINE void put(float* to, Floats v) { store(to, v); }
QKV_INLINE void put(Float16* to, Floats v) {
#if defined(__AVX512F__)
  __m256i bits = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &bits, sizeof bits);
#elif defined(__AVX2__)
  __m128i bits = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to, &bits, sizeof bits);
#else
  for (int k = 0; k < WIDTH; ++k) to[k].bits = to_float16(v[k]);
#endif
}
// The upper half of each word is the number rounded to bfloat16.
QKV_INLINE Words round_to_bfloat16(Floats v) {
  Words bits = (Words)v, nan = (Words)(v != v);
  return ((bits + 0x7fff + ((bits >> 16) & 1)) & ~nan) | ((bits | 0x400000) & nan);
}
QKV_INLINE void put(Bfloat16* to, Floats v) {
#if defined(__AVX512BF16__)
  __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
#else
  HalfBits rounded = __builtin_convertvector(round_to_bfloat16(v) >> 16, HalfBits);
#endif
  std::memcpy(to, &rounded, sizeof rounded);
}

// Loads the first `count` numbers of a vector, and zeros for the rest.
template <class T>
QKV_INLINE Floats take_some(const T* from, int64_t count) {
  if (count >= WIDTH) return take(from);
  T all[WIDTH] = {};
  if (count > 0) std::memcpy(static_cast<void*>(all), from, size_t(count) * sizeof(T));
  return take(all);
}
// Converts two vectors to bfloat16; the numbers of a lane share a word.
QKV_INLINE Words pair_up(Floats low, Floats high) {
  return (round_to_bfloat16(low) >> 16) | (round_to_bfloat16(high) & 0xffff0000);
}

// Converts two vectors to bfloat16, and stores them one after the other.
QKV_INLINE void put_two(Bfloat16* to, Floats first, Floats second) {
#if defined(__AVX512BF16__)
  __m512bh bits = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
  std::memcpy(to, &bits, sizeof bits);
#else
  put(to, first);
  put(to + WIDTH, second);
#endif
}

template <class T>
QKV_INLINE void put_some(T* to, Floats v, int64_t count) {
  if (count >= WIDTH) return put(to, v);
  T all[WIDTH];
  put(all, v);
  if (count > 0) std::memcpy(static_cast<void*>(to), all, size_t(count) * sizeof(T));
}

// Converts an array of float32 to bfloat16.
inline void narrow(const float* x, int64_t count, void* y, int threads) {
  constexpr int64_t PIECE = 1 << 15;  // the smallest number of elements for a thread
  Bfloat16* to = static_cast<Bfloat16*>(y);
  std::atomic<int64_t> next{0};
  on_threads(count < 4 * PIECE ? 1 : threads, [&](int) {
    for (int64_t k; (k = PIECE * next++) < count; worked(PIECE))
      for (const int64_t end = std::min(k + PIECE, count); k < end; k += WIDTH)
        put_some(to + k, take_some(x + k, end - k), end - k);
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
