// The register tile: a few rows times one panel of columns, summed over a depth.
//
// Rows come as numbers to broadcast, at a distance known at compile time; a panel comes as PANEL
// numbers for each step of the depth. A tile of 14 x 32 keeps 28 vectors of sums in AVX-512's 32
// registers, so that one load of the panel serves 14 rows.
#pragma once

#include "simd.h"

namespace qkv {
namespace QKV_BODY {

// What is multiplied: 32 bits hold one float, or two bfloat16 that lie beside each other in depth.
struct Single {
  static constexpr int DEPTH = 1;  // numbers in 32 bits
  static constexpr int RUN = 64;   // of a depth that is summed in one chain
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
struct Pair {
  static constexpr int DEPTH = 2;
  static constexpr int RUN = 256;  // rounding to bfloat16 is far above that of the sums
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  // Two vectors as bfloat16 in the place of one; gives `sum` and what they add to it, so rounded.
  static QKV_INLINE Floats store_two(float* to, Floats first, Floats second, Floats sum) {
    __m512bh bits = _mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    std::memcpy(to, &bits, sizeof bits);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, bits, ones);
  }
};
#endif

// Sums over `depth` of rows[i * STEP + k] * panel[k * NEXT + column]: each row's two vectors go to
// `put(i, first, second)`, which is called again with what the next RUN of the depth adds, as
// `add(i, first, second)`: long chains of additions would add up their roundings.
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

}  // namespace QKV_BODY
}  // namespace qkv
