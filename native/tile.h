// The register tile: the product of a few rows with one panel of columns, summed over a depth.
//
// The numbers of a row are broadcast to whole vectors; rows have a distance that is known at compile
// time. A panel has PANEL numbers for each step of the depth. A tile of 14 x 32 keeps 28 vectors of
// sums in the 32 registers of AVX-512, so each loaded vector of the panel is used for 14 rows.
#pragma once

#include "half.h"
#include "tiles.h"

namespace qkv {
namespace QKV_VARIANT {

// The units of multiplication: 32 bits hold one float, or two bfloat16 numbers that are neighbours
// along the depth.
struct Single {
  static constexpr const char* NAME = "float32";
  static constexpr int DEPTH = 1;  // the numbers in 32 bits
  static constexpr int RUN = 64;   // the depth that is summed in one chain
  static constexpr int HEIGHT = TILE;  // the rows of a tile
  static constexpr int ALIGN = 1;      // the rows of a tile, and its depth in units, are multiples of this
  typedef std::make_integer_sequence<int, TILE> Heights;  // the possible numbers of rows, less one
  static constexpr float SLACK = 0;  // how far a score may exceed the maximum by which scores are divided
  struct Registers {
    Registers() {}
  };
  static QKV_INLINE Floats power(Floats x) { return exp2(x); }
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }
};

#if defined(__AVX512BF16__) && !defined(QKV_TILES)
struct Pair {
  static constexpr const char* NAME = "dot products";
  static constexpr int DEPTH = 2;
  static constexpr int RUN = 256;  // longer, because rounding to bfloat16 outweighs the rounding of the sums
  static constexpr int HEIGHT = TILE;
  static constexpr int ALIGN = 1;
  static constexpr float SLACK = 0;
  typedef Single::Heights Heights;
  typedef Single::Registers Registers;
  static QKV_INLINE Floats power(Floats x) { return exp2(x); }
  static QKV_INLINE Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  // Stores two vectors as bfloat16 in the space of one vector; returns `sum` plus the rounded numbers.
  static QKV_INLINE Floats store_two(float* to, Floats first, Floats second, Floats sum) {
    Bfloat16 both[2 * WIDTH];
    put_two(both, first, second);
    std::memcpy(to, both, sizeof both);
    const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    return (Floats)_mm512_dpbf16_ps((__m512)sum, load_as<__m512bh>(both), ones);
  }
};
#endif

#if defined(QKV_TILES)
// Pairs of bfloat16 numbers, multiplied as tiles.
struct Tiles {
  static constexpr const char* NAME = "tiles";
  static constexpr int DEPTH = 2;
  static constexpr int HEIGHT = SIDE;
  static constexpr int ALIGN = TILE_ROWS;
  // A new maximum costs a product with all sums so far, and bfloat16 has room for larger weights.
  static constexpr float SLACK = 8;
  typedef std::integer_sequence<int, TILE_ROWS - 1, SIDE - 1> Heights;
  typedef UsingTiles Registers;

  // Writes, or adds, the products of ROWS rows with one panel to `sums`. All steps count floats.
  template <int ROWS>
  static QKV_INLINE void multiply(const float* rows, int64_t row_step, const float* panel, int64_t depth,
                                  float* sums, int64_t step, bool add, int64_t next = PANEL) {
    if (add) load_sums<ROWS>(sums, step);
    else clear_sums<ROWS>();
    add_tile_products<Type::bfloat16, ROWS>(rows, row_step, panel, next, depth);
    store_sums<ROWS>(sums, step);
  }

  // 2**x as `exp2`, with a relative error below 3e-6, and 0 below -125. Rounding to bfloat16 loses more.
  static QKV_INLINE Floats power(Floats x) {
    Floats bounded = larger(splat(-126.0f), x);
    const float magic = 12582912.0f + 127.0f;  // as in `exp2`
    Floats shifted = bounded + magic;
    Floats f = bounded - (shifted - magic);
    Floats p = splat(0x1.3a02ccp-7f);
    p = p * f + 0x1.c9fc46p-5f;
    p = p * f + 0x1.ec0378p-3f;
    p = p * f + 0x1.62e12cp-1f;
    p = p * f + 1.0f;
    return select((Ints)(x < splat(-125.0f)), Floats{}, p * as_floats(as_ints(shifted) << 23));
  }
  // As in `Pair`, but the rounded numbers are summed as floats, because AVX-512's BF16 dot products are slow
  // on processors with tiles.
  static QKV_INLINE Floats store_two(float* to, Floats first, Floats second, Floats sum) {
    Bfloat16 both[2 * WIDTH];
    put_two(both, first, second);
    Words words = load_as<Words>(both);
    std::memcpy(to, &words, sizeof words);
    return sum + ((Floats)(words << 16) + (Floats)(words & 0xffff0000));
  }
};
typedef Tiles OfBfloat16;  // how the variant multiplies bfloat16
#elif defined(__AVX512BF16__)
typedef Pair OfBfloat16;
#else
typedef Single OfBfloat16;
#endif
constexpr int HIGHEST = OfBfloat16::HEIGHT;  // the rows of the highest tile

// The tiles of `rows` rows: with `Single`, all tiles have nearly the same height.
template <class Product>
constexpr int64_t tiles_of(int64_t rows) {
  return (rows + Product::HEIGHT - 1) / Product::HEIGHT;
}
template <class Product>
constexpr int64_t tile_begin(int64_t rows, int64_t tile) {
  if (Product::ALIGN > 1) return tile * Product::HEIGHT < rows ? tile * Product::HEIGHT : rows;
  return tile * rows / tiles_of<Product>(rows);
}

// Sums rows[i * STEP + k] * panel[k * NEXT + column] over k < `depth`, in runs of RUN steps, because
// long chains of additions would accumulate rounding errors. After the first run, the two vectors of
// each row go to `put(i, first, second)`; after each later run, to `add(i, first, second)`. If VECTORS
// is 1, only the first half of the panel is multiplied, and `second` is a copy of `first`.
template <class Product, int ROWS, int STEP, int NEXT = PANEL, int VECTORS = 2, class Put, class Add>
QKV_INLINE void multiply_tile(const float* rows, const float* panel, int64_t depth, Put put,
                              Add add) {
  for (int64_t done = 0; done < depth || !done; done += Product::RUN) {
    Floats sums[ROWS][VECTORS];
    QKV_UNROLL
    for (auto& row : sums)
      for (Floats& v : row) v = Floats{};
    int64_t run = depth - done < Product::RUN ? depth - done : Product::RUN;
    for (int64_t k = 0; k < run; ++k) {
      Floats left = load(panel), right = load(panel + WIDTH);
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) {
        Floats x = splat(rows[i * STEP]);
        sums[i][0] = Product::add_product(sums[i][0], x, left);
        if (VECTORS == 2) sums[i][VECTORS - 1] = Product::add_product(sums[i][VECTORS - 1], x, right);
      }
      panel += NEXT;
      rows += 1;
    }
    if (!done) {
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) put(i, sums[i][0], sums[i][VECTORS - 1]);
    } else {
      QKV_UNROLL
      for (int i = 0; i < ROWS; ++i) add(i, sums[i][0], sums[i][VECTORS - 1]);
    }
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
