// Tiles: registers of 16 rows of 64 bytes, and products of two tiles of bfloat16 or int8 numbers (AMX). Each
// instruction has one function here. A variant without the instructions computes them with a model, which
// equals them to the bit; so every machine can test the code that uses tiles.
//
// A product of bfloat16 takes 16 rows of 32 numbers, and 16 rows of 16 pairs of numbers: row k holds the
// numbers 2 k and 2 k + 1 of 16 columns. A product of int8 takes 16 rows of 64 int8 numbers, and 16 rows of
// 16 times 4 uint8 numbers in the same order. The sums are float32 or int32.
#pragma once

#include "simd.h"
#include "threads.h"

#if defined(__AMX_BF16__) || defined(QKV_TILES_MODEL)
#define QKV_TILES

namespace qkv {
namespace QKV_VARIANT {

constexpr int TILE_ROWS = 16;
constexpr int SIDE = 2 * TILE_ROWS;  // the rows of a product of two tiles by two tiles
static_assert(PANEL == SIDE, "a panel is two tiles wide");

// The sums are tiles 0 to 3, the rows are tiles 4 and 5, and the columns are tiles 6 and 7.
template <int TILE> void clear_tile();
template <int TILE> void load_tile(const void* from, int64_t step);  // rows are `step` bytes apart
template <int TILE> void store_tile(void* to, int64_t step);
template <Type TYPE, int SUMS, int ROWS, int COLUMNS> void add_tile_product();  // TYPE is bfloat16 or int8

#if defined(__AMX_BF16__)

struct alignas(64) TileShapes {
  uint8_t palette = 0, start = 0, unused[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};
};

// Tells the compiler that the next instruction reads or writes memory. The intrinsics of GCC do not tell it.
QKV_INLINE void settle(const void* memory) { __asm__ volatile("" : : "r"(memory) : "memory"); }

// While this object exists, the thread's 8 tiles have 16 rows of 64 bytes. Afterwards the tiles have the
// shapes that they had before, because another library may rely on these shapes.
class UsingTiles {
 public:
  UsingTiles() {
    settle(&before_);
    _tile_storeconfig(&before_);
    settle(&before_);
    TileShapes shapes;
    shapes.palette = 1;
    for (int k = 0; k < 8; ++k) shapes.bytes[k] = 64, shapes.rows[k] = TILE_ROWS;
    settle(&shapes);
    _tile_loadconfig(&shapes);
  }
  ~UsingTiles() {
    settle(&before_);
    if (before_.palette) _tile_loadconfig(&before_);
    else _tile_release();
  }
  UsingTiles(const UsingTiles&) = delete;

 private:
  TileShapes before_;
};

#define QKV_TILE(N)                                                                             \
  template <> QKV_INLINE void clear_tile<N>() { _tile_zero(N); }                                \
  template <> QKV_INLINE void load_tile<N>(const void* from, int64_t step) {                    \
    settle(from);                                                                               \
    _tile_loadd(N, from, step);                                                                 \
  }                                                                                             \
  template <> QKV_INLINE void store_tile<N>(void* to, int64_t step) { _tile_stored(N, to, step); }
#define QKV_TILE_PRODUCT(SUMS, ROWS, COLUMNS)                                            \
  template <> QKV_INLINE void add_tile_product<Type::bfloat16, SUMS, ROWS, COLUMNS>() { \
    _tile_dpbf16ps(SUMS, ROWS, COLUMNS);                                                \
  }                                                                                     \
  template <> QKV_INLINE void add_tile_product<Type::int8, SUMS, ROWS, COLUMNS>() {     \
    _tile_dpbsud(SUMS, ROWS, COLUMNS);                                                  \
  }
QKV_TILE(0) QKV_TILE(1) QKV_TILE(2) QKV_TILE(3) QKV_TILE(4) QKV_TILE(5) QKV_TILE(6) QKV_TILE(7)
QKV_TILE_PRODUCT(0, 4, 6) QKV_TILE_PRODUCT(1, 4, 7) QKV_TILE_PRODUCT(2, 5, 6) QKV_TILE_PRODUCT(3, 5, 7)
#undef QKV_TILE
#undef QKV_TILE_PRODUCT

#else

struct UsingTiles {
  UsingTiles() {}
};

struct Tile {
  alignas(64) uint32_t words[TILE_ROWS][16];
};
// State: the tile registers of a thread.
inline thread_local Tile tiles[8];

template <int TILE> inline void clear_tile() { std::memset(&tiles[TILE], 0, sizeof(Tile)); }
template <int TILE> inline void load_tile(const void* from, int64_t step) {
  for (int r = 0; r < TILE_ROWS; ++r)
    std::memcpy(tiles[TILE].words[r], static_cast<const char*>(from) + r * step, 64);
}
template <int TILE> inline void store_tile(void* to, int64_t step) {
  for (int r = 0; r < TILE_ROWS; ++r)
    std::memcpy(static_cast<char*>(to) + r * step, tiles[TILE].words[r], 64);
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Numbers below the smallest normal number become 0 and keep their sign.
inline float without_denormal(float x) {
  uint32_t bits = bits_of(x);
  return bits & 0x7f800000 ? x : float_of(bits & 0x80000000);
}

// Of several operands that are NaN, the first one is returned, made quiet. A NaN that an operation makes
// of other numbers is 0xffc00000.
template <class... More>
inline float first_nan(float x, More... more) {
  if (x != x) return float_of(bits_of(x) | 0x00400000);
  if constexpr (sizeof...(more) > 0) return first_nan(more...);
  return float_of(0xffc00000);
}

// a * b + c, rounded once. A result is tiny if it is below 2**-126 after it is rounded to 24 bits.
inline float fused_tile_step(float a, float b, float c) {
  float sum = std::fma(a, b, c);
  if (sum != sum) return first_nan(a, b, c);
  double exact = double(a) * double(b) + double(c);
  if (std::fabs(sum) == 0x1p-126f && std::fabs(exact) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, sum);
  return without_denormal(sum);
}

inline float add_in_tile(float a, float b) {
  float sum = a + b;
  return sum == sum ? without_denormal(sum) : first_nan(a, b);
}

QKV_INLINE Floats without_denormals(Floats x) {
  Ints bits = as_ints(x);
  return as_floats(bits & ((bits & 0x7f800000) != 0 ? splat_int(-1) : splat_int(int32_t(0x80000000))));
}
QKV_INLINE Floats magnitude(Floats x) { return as_floats(as_ints(x) & 0x7fffffff); }

// sums + row * columns, as `fused_tile_step`. A product of two bfloat16 numbers is exact in float32, so the
// addition is the only rounding, except near 0 and near infinity.
QKV_INLINE Floats add_step_of_tile(Floats sums, float row, Floats columns) {
  Floats product = columns * row, found = sums + product;
  Ints usual = (magnitude(found) <= splat(0x1p127f)) & (magnitude(product) <= splat(0x1p127f)) &
               ((magnitude(found) > splat(0x1p-126f)) | (found == Floats{})) &
               ((magnitude(product) >= splat(0x1p-126f)) | (columns == Floats{}) | (splat(row) == Floats{}));
  if (all_zero(~usual)) return found;
  for (int c = 0; c < 16; ++c) found[c] = fused_tile_step(row, columns[c], sums[c]);
  return found;
}

// The even and the odd numbers of a row are summed apart, each by fused multiply-adds that begin with 0; then
// both sums are added to the sums before.
inline void add_bfloat16_product(Tile& sums, const Tile& rows, const Tile& columns) {
  for (int r = 0; r < TILE_ROWS; ++r) {
    Floats even{}, odd{};
    for (int k = 0; k < 16; ++k) {
      uint32_t word = rows.words[r][k];
      Words words = load_as<Words>(columns.words[k]);
      even = add_step_of_tile(even, without_denormal(float_of(word << 16)),
                              without_denormals((Floats)(words << 16)));
      odd = add_step_of_tile(odd, without_denormal(float_of(word & 0xffff0000)),
                             without_denormals((Floats)(words & 0xffff0000)));
    }
    for (int c = 0; c < 16; ++c) {
      uint32_t& sum = sums.words[r][c];
      sum = bits_of(add_in_tile(without_denormal(float_of(sum)), add_in_tile(even[c], odd[c])));
    }
  }
}

// Returns sums + the products of the 4 int8 numbers of x and the 4 uint8 numbers in each lane, modulo 2**32.
QKV_INLINE Words add_products_of_bytes(Words sums, uint32_t x, Words lanes) {
  QKV_UNROLL for (int k = 0; k < 32; k += 8) sums += (lanes >> k & 0xff) * uint32_t(int32_t(int8_t(x >> k)));
  return sums;
}

inline void add_int8_product(Tile& sums, const Tile& rows, const Tile& columns) {
  for (int r = 0; r < TILE_ROWS; ++r) {
    Words row = load_as<Words>(sums.words[r]);
    for (int k = 0; k < 16; ++k)
      row = add_products_of_bytes(row, rows.words[r][k], load_as<Words>(columns.words[k]));
    std::memcpy(sums.words[r], &row, sizeof row);
  }
}

template <Type TYPE, int SUMS, int ROWS, int COLUMNS>
inline void add_tile_product() {
  if (TYPE == Type::int8) return add_int8_product(tiles[SUMS], tiles[ROWS], tiles[COLUMNS]);
  add_bfloat16_product(tiles[SUMS], tiles[ROWS], tiles[COLUMNS]);
}

#endif

// Adds rows @ columns to the tiles 0 to 3: ROWS rows (16 or 32), `row_step` words apart, and a panel of 32
// columns, whose rows are `next` words apart. A word has 32 bits. `depth` counts words and is a multiple of 16.
template <Type TYPE, int ROWS, class Word>
QKV_INLINE void add_tile_products(const Word* rows, int64_t row_step, const Word* panel, int64_t next,
                                  int64_t depth) {
  for (int64_t k = 0; k < depth; k += 16, panel += 16 * next) {
    load_tile<6>(panel, 4 * next);
    load_tile<4>(rows + k, 4 * row_step);
    load_tile<7>(panel + 16, 4 * next);
    add_tile_product<TYPE, 0, 4, 6>();
    add_tile_product<TYPE, 1, 4, 7>();
    if constexpr (ROWS == SIDE) {
      load_tile<5>(rows + k + TILE_ROWS * row_step, 4 * row_step);
      add_tile_product<TYPE, 2, 5, 6>();
      add_tile_product<TYPE, 3, 5, 7>();
    }
  }
}

// Loads, clears or stores the sums of ROWS rows and 32 columns.
template <int ROWS>
QKV_INLINE void clear_sums() {
  clear_tile<0>();
  clear_tile<1>();
  if constexpr (ROWS == SIDE) {
    clear_tile<2>();
    clear_tile<3>();
  }
}
template <int ROWS, class Sum>
QKV_INLINE void load_sums(const Sum* from, int64_t step) {
  load_tile<0>(from, 4 * step);
  load_tile<1>(from + 16, 4 * step);
  if constexpr (ROWS == SIDE) {
    load_tile<2>(from + TILE_ROWS * step, 4 * step);
    load_tile<3>(from + TILE_ROWS * step + 16, 4 * step);
  }
}
template <int ROWS, class Sum>
QKV_INLINE void store_sums(Sum* to, int64_t step) {
  store_tile<0>(to, 4 * step);
  store_tile<1>(to + 16, 4 * step);
  if constexpr (ROWS == SIDE) {
    store_tile<2>(to + TILE_ROWS * step, 4 * step);
    store_tile<3>(to + TILE_ROWS * step + 16, 4 * step);
  }
}

// sums (16, 16) += rows (16, 16 words) @ columns (16, 16 words): one instruction, for tests.
inline void multiply_tiles(Type type, void* sums, const void* rows, const void* columns) {
  on_threads(1, [&](int) {
    UsingTiles registers;
    load_tile<0>(sums, 64);
    load_tile<4>(rows, 64);
    load_tile<6>(columns, 64);
    if (type == Type::int8) add_tile_product<Type::int8, 0, 4, 6>();
    else add_tile_product<Type::bfloat16, 0, 4, 6>();
    store_tile<0>(sums, 64);
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
#endif
