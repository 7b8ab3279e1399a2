// Packs keys and values of one head in the order in which the register tile reads them.
//
// Keys are in transposed panels of PANEL keys: [panel][d][PANEL]. Values are in blocks of BLOCK
// keys, and each block is divided into panels of PANEL columns: [block][column panel][key][PANEL].
// With `Pair` and `Tiles`, two bfloat16 numbers share one 32-bit number. The two numbers are neighbours in the
// dimension that the product sums over. This dimension is d for keys, and the axis of keys for
// values.
#pragma once

#include "exact.h"
#include "tile.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int BLOCK = 256;       // the keys of one step of the running softmax
constexpr int STEP = BLOCK + 16; // the distance between rows; powers of two slow down the cache
static_assert(MAX_SIZE <= STEP, "rows of queries are as long as rows of scores");

// Loads up to WIDTH of the 32-bit units that `Product` multiplies. The units hold neighbouring
// numbers of one row of the array; the product sums over the numbers of a row. `at` and `count` are
// in elements of the array, not in units.
template <class Product>
QKV_INLINE Floats load_depth(const Cells& from, int64_t at, int64_t count) {
  if constexpr (Product::DEPTH == 1) {
    return load_floats(from, at, count);
  } else {
    const uint16_t* x = static_cast<const uint16_t*>(from.data) + at;
    if (count >= 2 * WIDTH) return load_as<Floats>(x);
    uint16_t bits[2 * WIDTH];
    for (int k = 0; k < 2 * WIDTH; ++k) bits[k] = k < count ? x[k] : 0;
    return load_as<Floats>(bits);
  }
}

// Converts a depth to a number of 32-bit units, to which zeros are added if tiles need more.
template <class Product>
constexpr int64_t depth_of(int64_t size) {
  int64_t units = (size + Product::DEPTH - 1) / Product::DEPTH;
  return (units + Product::ALIGN - 1) / Product::ALIGN * Product::ALIGN;
}

// Converts a range of numbers to the range of their units; with tiles, whole tiles.
template <class Product>
inline Range depths_of(Range numbers) {
  constexpr int64_t each = Product::DEPTH * Product::ALIGN;
  return {numbers.begin / each * Product::ALIGN, (numbers.end + each - 1) / each * Product::ALIGN};
}

// Converts `count` numbers (at most MAX_SIZE) of an array to the units that `Product` multiplies.
template <class Product>
inline void copy_depth(const Cells& from, int64_t at, int64_t count, float* to) {
  constexpr int NUMBERS = WIDTH * Product::DEPTH;
  for (int64_t c = 0; c < count; c += NUMBERS, to += WIDTH)
    store(to, load_depth<Product>(from, at + c, count - c));
}

struct Packed {
  Buffer<float> keys, values;
  Buffer<uint8_t> unsound;         // for each key: whether its value has infinity or NaN, which are packed as 0
  Buffer<uint8_t> unsound_blocks;  // for each block: whether any key's value has infinity or NaN
  int64_t first = 0;               // the first block in the buffers
  int64_t end = 0;                 // the key after the last key
  bool with_values = true;
  Buffer<double> received;  // for a summary: the sums of weights per key, (group, part of queries, key)
};

template <class Product>
inline void reserve(Packed& head, int64_t blocks, int64_t size, int64_t value_size) {
  head.keys.need(size_t(blocks * BLOCK * depth_of<Product>(size)));
  head.values.need(size_t(blocks * BLOCK / Product::DEPTH * rounded_up(value_size, PANEL)));
  head.unsound.need(size_t(blocks * BLOCK));
  head.unsound_blocks.need(size_t(blocks));
}

// The addresses of a block's keys and values.
template <class Product>
QKV_INLINE float* keys_at(const Packed& head, int64_t size, int64_t block) {
  return head.keys.data() + (block - head.first) * BLOCK * depth_of<Product>(size);
}
template <class Product>
QKV_INLINE float* values_at(const Packed& head, int64_t value_size, int64_t block) {
  return head.values.data() +
         (block - head.first) * (BLOCK / Product::DEPTH) * rounded_up(value_size, PANEL);
}

// Packs keys first ... first + count - 1 into panels.
template <class Product>
inline void pack_keys(const Cells& key, int64_t at, int64_t size, int64_t count, float* to) {
  constexpr int NUMBERS = WIDTH * Product::DEPTH;
  int64_t depth = depth_of<Product>(size);
  for (int64_t k = 0; k < count; k += WIDTH) {
    float* panel = to + k / PANEL * PANEL * depth + k % PANEL;
    for (int64_t c = 0; c < size; c += NUMBERS) {
      Floats rows[WIDTH];
      QKV_UNROLL
      for (int r = 0; r < WIDTH; ++r)
        rows[r] = k + r < count ? load_depth<Product>(key, at + (k + r) * key.i + c, size - c)
                                : Floats{};
      transpose(rows);
      int64_t steps = depth - c / Product::DEPTH;
      QKV_UNROLL
      for (int r = 0; r < WIDTH; ++r)
        if (r < steps) store(panel + (c / Product::DEPTH + r) * PANEL, rows[r]);
    }
  }
  if (count % PANEL && count % PANEL <= WIDTH) {  // fill the other half of the last panel
    float* panel = to + count / PANEL * PANEL * depth + WIDTH;
    for (int64_t k = 0; k < depth; ++k) store(panel + k * PANEL, Floats{});
  }
}

// Packs the values of `count` keys into panels of columns. Returns false if a number is infinite or
// NaN.
template <class Product>
inline bool pack_values(const Cells& value, int64_t at, int64_t size, int64_t count, float* to) {
  Floats trace{};  // becomes NaN if a number is infinite or NaN
  int64_t steps = depth_of<Product>(count);
  for (int64_t k = 0; k < steps; ++k) {
    for (int64_t c = 0; c < size; c += WIDTH) {
      float* cell = to + (c / PANEL * steps + k) * PANEL + c % PANEL;
      int64_t row = at + k * Product::DEPTH * value.i + c;
      if constexpr (Product::DEPTH == 1) {
        Floats x = load_floats(value, row, size - c);
        trace += x * 0.0f;
        store(cell, x);
      } else {
        Floats x = 2 * k < count ? load_floats(value, row, size - c) : Floats{};
        Floats y = 2 * k + 1 < count ? load_floats(value, row + value.i, size - c) : Floats{};
        trace += (x + y) * 0.0f;
        store(cell, (Floats)(((Words)x >> 16) | (Words)y));
      }
    }
    if (int64_t c = rounded_up(size, WIDTH); c % PANEL)
      store(to + (c / PANEL * steps + k) * PANEL + WIDTH, Floats{});
  }
  return all_zero(trace);
}

// Marks the keys whose values have infinity or NaN, and replaces these numbers by 0. Called if
// `pack_values` returned false.
template <class Product>
inline void clean_values(const Cells& value, int64_t at, int64_t size, int64_t count, float* to,
                         uint8_t* unsound) {
  int64_t steps = depth_of<Product>(count);
  for (int64_t k = 0; k < count; ++k) {
    unsound[k] = 0;
    for (int64_t c = 0; c < size; ++c) {
      if (std::isfinite(number_at(value.data, value.type, at + k * value.i + c))) continue;
      unsound[k] = 1;
      float* cell = to + (c / PANEL * steps + k / Product::DEPTH) * PANEL + c % PANEL;
      std::memset(reinterpret_cast<char*>(cell) + k % Product::DEPTH * 2, 0, 4 / Product::DEPTH);
    }
  }
}

// Packs one block of a head's keys and values.
template <class Product>
inline void pack_block(const Attention& a, int64_t row, int64_t kv_head, int64_t block,
                       int64_t end, Packed& head) {
  int64_t begin = block * BLOCK, count = at_most(BLOCK, end - begin);
  Place p{row, kv_head, 0, 0};
  pack_keys<Product>(a.key, cell(a.key, p, 0) + begin * a.key.i, a.size, count,
                     keys_at<Product>(head, a.size, block));
  if (!head.with_values) return;
  int64_t at = cell(a.value, p, 0) + begin * a.value.i;
  float* values = values_at<Product>(head, a.value_size, block);
  bool sound = pack_values<Product>(a.value, at, a.value_size, count, values);
  head.unsound_blocks[block - head.first] = !sound;
  if (!sound)
    clean_values<Product>(a.value, at, a.value_size, count, values,
                          &head.unsound[(block - head.first) * BLOCK]);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
