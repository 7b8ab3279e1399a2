// The register tile: the product of a few rows with one panel of columns, summed over a depth.
//
// The numbers of a row are broadcast to whole vectors; rows have a distance that is known at compile
// time. A panel has PANEL numbers for each step of the depth. A tile of 14 x 32 keeps 28 vectors of
// sums in the 32 registers of AVX-512, so each loaded vector of the panel is used for 14 rows.
#pragma once

#include "simd.h"

namespace qkv {
namespace QKV_VARIANT {

// The units of multiplication: 32 bits hold one float, or two bfloat16 numbers that are neighbours
// along the depth.
struct Single {
  static constexpr int DEPTH = 1;  // the numbers in 32 bits
  static constexpr int RUN = 64;   // the depth that is summed in one chain
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
struct Pair {
  static constexpr int DEPTH = 2;
  static constexpr int RUN = 256;  // longer, because rounding to bfloat16 outweighs the rounding of the sums
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  // Stores two vectors as bfloat16 in the space of one vector; returns `sum` plus the rounded numbers.
  static QKV_INLINE Floats store_two(float* to, Floats first, Floats second, Floats sum) {
    __m512bh bits = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    std::memcpy(to, &bits, sizeof bits);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, bits, ones);
  }
};
#endif

// Sums rows[i * STEP + k] * panel[k * NEXT + column] over k < `depth`, in runs of RUN steps, because
// long chains of additions would accumulate rounding errors. After the first run, the two vectors of
// each row go to `put(i, first, second)`; after each later run, to `add(i, first, second)`.
template <class Product, int ROWS, int STEP, int NEXT = PANEL, class Put, class Add>
QKV_INLINE void multiply_tile(const float* rows, const float* panel, int64_t depth, Put put,
                              Add add) {
  for (int64_t done = 0; done < depth || !done; done += Product::RUN) {
    Floats sums[ROWS][2];
    QKV_UNROLL
    for (int i = 0; i < ROWS; ++i) sums[i][0] = sums[i][1] = Floats{};
    int64_t run = depth - done < Product::RUN ? depth - done : Product::RUN;
    for (int64_t k = 0; k < run; ++k) {
      Floats left = load(panel), right = load(panel + WIDTH);
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) {
        Floats x = splat(rows[i * STEP]);
        sums[i][0] = Product::add_product(sums[i][0], x, left);
        sums[i][1] = Product::add_product(sums[i][1], x, right);
      }
      panel += NEXT;
      rows += 1;
    }
    if (!done) {
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) put(i, sums[i][0], sums[i][1]);
    } else {
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) add(i, sums[i][0], sums[i][1]);
    }
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
