// Computes x @ W + bias with W in the quantized blocks of GGUF files, as `linear.h` does with floats.
//
// A row of x becomes int16 numbers with one scale for each block of 32. They are multiplied with the
// whole numbers in the blocks of W, and the sums over (a half of) a block are exact in int32. These
// sums are multiplied with the scales, and added as floats, in the order of k.
//
// W is packed by src/qkv/ops/_blocks.py: COLUMNS columns side by side, and behind each other the units
// of their blocks, in the layout of the structs below.
#pragma once

#include "linear.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int BLOCK_SIZE = 32;  // the numbers of x that share a scale
constexpr int PAIRS = 16;       // the pairs of numbers in a block
constexpr int COLUMNS = 32;     // the columns of W side by side
constexpr int FETCH = 2048;     // how many bytes ahead blocks are prefetched
constexpr int64_t BLOCK_ROWS = 64;  // the rows of x that are quantized for each pass over W

// The packed blocks of COLUMNS columns. Nibble n of word w of `q` has number 16 * (n % 2) + 4 * w + n / 2
// of a block of 32. Byte n of word w of bytes has number 4 * w + n. The scale is d, or d * scales.
struct Q4 {
  uint32_t q[4][COLUMNS];
  QKV_INLINE void pairs(int w, int c, Words (&to)[4]) const {  // the pairs 4 * w + s
    Words v = load_as<Words>(q[w] + c);
    QKV_UNROLL for (int s = 0; s < 4; ++s) to[s] = (v >> (4 * s)) & 0x000f000f;
  }
};
struct Q8 {
  uint32_t q[8][COLUMNS];
  QKV_INLINE void pairs(int w, int c, Words (&to)[4]) const {
    QKV_UNROLL for (int half = 0; half < 2; ++half) {
      Shorts v = load_as<Shorts>(q[w + 4 * half] + c);
      to[half] = (Words)((v << 8) >> 8);
      to[half + 2] = (Words)(v >> 8);
    }
  }
};
struct Q6 {
  Q4 low;
  uint32_t high[2][COLUMNS];  // bits 2 * p of word h have the high bits of pair 8 * h + p
  QKV_INLINE void pairs(int w, int c, Words (&to)[4]) const {
    low.pairs(w, c, to);
    Words v = load_as<Words>(high[w / 2] + c) >> (w % 2 * 8);
    QKV_UNROLL for (int s = 0; s < 4; ++s) to[s] |= ((v >> (2 * s)) & 0x00030003) << 4;
  }
};

template <class Numbers, bool HAS_MINIMUM, int ZERO>
struct Plain {  // one block of 32
  static constexpr int PARTS = 1, HALVES = 1, FROM = ZERO;
  static constexpr bool MINIMUM = HAS_MINIMUM;
  Numbers numbers;
  uint16_t d[COLUMNS], m[HAS_MINIMUM ? COLUMNS : 0];
  QKV_INLINE const Numbers& part(int) const { return numbers; }
  QKV_INLINE Floats scale(int, int, int c) const { return from_float16(load_as<HalfBits>(d + c)); }
  QKV_INLINE Floats minimum(int, int c) const { return from_float16(load_as<HalfBits>(m + c)); }
};
typedef Plain<Q4, false, 8> UnitQ4_0;
typedef Plain<Q4, true, 0> UnitQ4_1;
typedef Plain<Q8, false, 0> UnitQ8_0;

struct UnitQ4_K {
  static constexpr int PARTS = 8, HALVES = 1, FROM = 0;
  static constexpr bool MINIMUM = true;
  struct Part {
    Q4 numbers;
    uint8_t scales[COLUMNS], minima[COLUMNS];
  } parts[PARTS];
  uint16_t d[COLUMNS], m[COLUMNS];
  QKV_INLINE const Q4& part(int p) const { return parts[p].numbers; }
  QKV_INLINE Floats scale(int p, int, int c) const {
    Bytes v = load_as<Bytes>(parts[p].scales + c);
    return from_float16(load_as<HalfBits>(d + c)) * __builtin_convertvector(v, Floats);
  }
  QKV_INLINE Floats minimum(int p, int c) const {
    Bytes v = load_as<Bytes>(parts[p].minima + c);
    return -(from_float16(load_as<HalfBits>(m + c)) * __builtin_convertvector(v, Floats));
  }
};

struct UnitQ6_K {
  static constexpr int PARTS = 8, HALVES = 2, FROM = 32;
  static constexpr bool MINIMUM = false;
  struct Part {
    Q6 numbers;
    int8_t scales[2][COLUMNS];
  } parts[PARTS];
  uint16_t d[COLUMNS];
  QKV_INLINE const Q6& part(int p) const { return parts[p].numbers; }
  QKV_INLINE Floats scale(int p, int half, int c) const {
    SignedBytes v = load_as<SignedBytes>(parts[p].scales[half] + c);
    return from_float16(load_as<HalfBits>(d + c)) * __builtin_convertvector(v, Floats);
  }
  QKV_INLINE Floats minimum(int, int) const { return Floats{}; }
};

// One part of a unit with its numbers as pairs and its scales as floats, for PANEL columns. The sums are the
// same to the bit. If several tiles of rows read the units of K types, it is faster to unpack them once.
template <int OF_HALVES, int ZERO, bool HAS_MINIMUM>
struct Unpacked {
  static constexpr int PARTS = 1, HALVES = OF_HALVES, FROM = ZERO;
  static constexpr bool MINIMUM = HAS_MINIMUM;
  uint32_t words[PAIRS][PANEL];
  float scales[HALVES][PANEL], minima[HAS_MINIMUM ? PANEL : 0];
  QKV_INLINE const Unpacked& part(int) const { return *this; }
  QKV_INLINE void pairs(int w, int c, Words (&to)[4]) const {
    QKV_UNROLL for (int s = 0; s < 4; ++s) to[s] = load_as<Words>(words[4 * w + s] + c);
  }
  QKV_INLINE Floats scale(int, int half, int c) const { return load(scales[half] + c); }
  QKV_INLINE Floats minimum(int, int c) const { return load(minima + c); }
};
template <class Unit>
using UnpackedOf = Unpacked<Unit::HALVES, Unit::FROM, Unit::MINIMUM>;

// Unpacks the PANEL columns from c.
template <class Unit>
inline void unpack(const Unit* from, int64_t units, int c, UnpackedOf<Unit>* to) {
  for (const Unit* end = from + units; from != end; ++from)
    for (int part = 0; part < Unit::PARTS; ++part, ++to)
      for (int v = 0; v < PANEL; v += WIDTH) {
        for (int w = 0; w < 4; ++w) {
          Words q[4];
          from->part(part).pairs(w, c + v, q);
          for (int s = 0; s < 4; ++s) std::memcpy(to->words[4 * w + s] + v, &q[s], sizeof q[s]);
        }
        for (int half = 0; half < Unit::HALVES; ++half)
          store(to->scales[half] + v, from->scale(part, half, c + v));
        if constexpr (Unit::MINIMUM) store(to->minima + v, from->minimum(part, c + v));
      }
}

// A row of x as whole numbers. Pair 4 * w + s has the numbers first and first + 2 of the block, where
// `first` is 4 * w + 16 * (s % 2) + s / 2.
struct QuantizedBlock {
  int32_t pairs[PAIRS];
  int32_t sums[2];  // the sum of each half
  float scale;
  float sum;  // of all numbers, times the scale
};

// Quantizes a block. If a number is not finite, the scale is NaN.
inline void quantize(const float* x, QuantizedBlock& to) {
  Floats most{}, odd{};
  QKV_UNROLL for (int k = 0; k < BLOCK_SIZE; k += WIDTH) {
    Floats v = load(x + k);
    most = larger((Floats)((Words)v & 0x7fffffff), most);
    odd += v - v;  // NaN for an infinite number
  }
  float largest = 0;
  for (int k = 0; k < WIDTH; ++k) largest = most[k] > largest ? most[k] : largest;
  // A block of very small numbers is 0, because the factor would be infinite.
  const float factor = largest >= 0x1p-100f ? 32767.0f / largest : 0.0f;
  alignas(64) int32_t q[BLOCK_SIZE];
  QKV_UNROLL for (int k = 0; k < BLOCK_SIZE; k += WIDTH) {
    Floats scaled = load(x + k) * factor;
    Ints whole = to_nearest(select((Ints)(scaled == scaled), scaled, Floats{}));
    std::memcpy(q + k, &whole, sizeof whole);
  }
  to.sums[0] = to.sums[1] = 0;
  for (int k = 0; k < BLOCK_SIZE; ++k) to.sums[k / 16] += q[k];
  for (int p = 0; p < PAIRS; ++p) {
    const int first = p / 4 * 4 + p % 2 * 16 + p % 4 / 2;
    to.pairs[p] = int32_t(uint32_t(q[first + 2]) << 16 | (uint32_t(q[first]) & 0xffff));
  }
  to.scale = largest / 32767.0f + sum(odd);
  to.sum = to.scale * float(to.sums[0] + to.sums[1]);
}

// Adds the exact sums of ROWS rows of x and one part of a unit, for the PANEL columns from c.
template <class Unit, int ROWS>
QKV_INLINE void add_pairs(const Unit& unit, int part, int c, const QuantizedBlock* x, int64_t step,
                          Ints (&sums)[ROWS][Unit::HALVES][2]) {
  QKV_UNROLL for (int r = 0; r < ROWS; ++r)
    QKV_UNROLL for (int half = 0; half < Unit::HALVES; ++half) {
      const int32_t* all = x[r * step].sums;
      sums[r][half][0] = sums[r][half][1] =
          splat_int(-Unit::FROM * (Unit::HALVES == 2 ? all[half] : Unit::FROM ? all[0] + all[1] : 0));
    }
  QKV_UNROLL for (int w = 0; w < 4; ++w) {
    Words q[2][4];
    unit.part(part).pairs(w, c, q[0]);
    unit.part(part).pairs(w, c + WIDTH, q[1]);
    QKV_UNROLL for (int s = 0; s < 4; ++s)
      QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
        const Ints one = splat_int(x[r * step].pairs[4 * w + s]);
        QKV_UNROLL for (int v = 0; v < 2; ++v)
          sums[r][s % Unit::HALVES][v] = add_pair_products(sums[r][s % Unit::HALVES][v], (Ints)q[v][s], one);
      }
  }
}

// Computes the sums of ROWS rows and the PANEL columns from c; the rows of x are `step` blocks apart.
template <class Unit, int ROWS>
void multiply_block_tile(const QuantizedBlock* x, int64_t step, const void* packed, int64_t units, int c, float* to) {
  const Unit* unit = static_cast<const Unit*>(packed);
  Floats total[ROWS][2];
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) total[r][0] = total[r][1] = Floats{};
  for (const Unit* end = unit + units; unit != end; ++unit)
    for (int part = 0; part < Unit::PARTS; ++part, ++x) {
      constexpr int bytes = std::is_same_v<Unit, UnpackedOf<Unit>> ? 0 : int(sizeof(Unit)) / Unit::PARTS;
      QKV_UNROLL for (int at = 0; at < bytes; at += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(unit) + part * bytes + at + FETCH);
      Ints sums[ROWS][Unit::HALVES][2];
      add_pairs<Unit, ROWS>(*unit, part, c, x, step, sums);
      QKV_UNROLL for (int v = 0; v < 2; ++v) {
        QKV_UNROLL for (int half = 0; half < Unit::HALVES; ++half) {
          const Floats scale = unit->scale(part, half, c + v * WIDTH);
          QKV_UNROLL for (int r = 0; r < ROWS; ++r)
            total[r][v] += to_floats(sums[r][half][v]) * (scale * x[r * step].scale);
        }
        if (Unit::MINIMUM) {
          const Floats least = unit->minimum(part, c + v * WIDTH);
          QKV_UNROLL for (int r = 0; r < ROWS; ++r) total[r][v] += least * x[r * step].sum;
        }
      }
    }
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
    store(to + r * PANEL, total[r][0]);
    store(to + r * PANEL + WIDTH, total[r][1]);
  }
}

using BlockTile = void (*)(const QuantizedBlock*, int64_t, const void*, int64_t, int, float*);

#if defined(__AVX512F__)
constexpr int BLOCK_TILE = 6;  // the rows of a tile
#else
constexpr int BLOCK_TILE = 4;
#endif
template <class Unit, int ROWS = BLOCK_TILE>
inline BlockTile block_tile_for(int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return block_tile_for<Unit, ROWS - 1>(rows);
  return multiply_block_tile<Unit, ROWS>;
}

template <class Unit>
void multiply_all_blocks(const Linear& p, int threads) {
  const int64_t units = p.in / (Unit::PARTS * BLOCK_SIZE), blocks = p.in / BLOCK_SIZE, panels = panels_of(p.out);
  const int64_t chunks = (p.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int64_t groups = groups_of(panels, chunks, p.rows, threads);
  const Finish finish_tile = finish_for<float>(p.activation);
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Buffer<QuantizedBlock> copy;
    Buffer<UnpackedOf<Unit>> unpacked;
    alignas(64) float sums[BLOCK_TILE * PANEL];
    int64_t held = -1;  // the chunk that the copy holds
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = p.rows * chunk / chunks, rows = p.rows * (chunk + 1) / chunks - first;
      if (held != chunk) {
        copy.need(size_t(rows * blocks));
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t b = 0; b < blocks; ++b)
            quantize(static_cast<const float*>(p.x) + (first + r) * p.x_step + b * BLOCK_SIZE,
                     copy[size_t(r * blocks + b)]);
        held = chunk;
      }
      const int64_t tiles = (rows + BLOCK_TILE - 1) / BLOCK_TILE;
      for (int64_t panel = panels * group / groups; panel < panels * (group + 1) / groups; ++panel) {
        const int64_t column = panel * PANEL;
        const Unit* w = static_cast<const Unit*>(p.packed) + column / COLUMNS * units;
        const int c = int(column % COLUMNS);
        const bool unpacks = Unit::PARTS > 1 && tiles > 1;
        if (unpacks) {
          unpacked.need(size_t(blocks));
          unpack(w, units, c, unpacked.data());
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t at = rows * tile / tiles, count = rows * (tile + 1) / tiles - at;
          const QuantizedBlock* x = copy.data() + at * blocks;
          if (unpacks) block_tile_for<UnpackedOf<Unit>>(count)(x, blocks, unpacked.data(), blocks, 0, sums);
          else block_tile_for<Unit>(count)(x, blocks, w, units, c, sums);
          finish_tile(p, sums, first + at, count, panel);
        }
        worked(rows * PANEL * p.in);
      }
    }
  });
}

// Calls `run` with a unit of blocks of this kind; the kinds are numbered as in src/qkv/ops/_blocks.py.
template <class Run>
inline auto with_unit(int64_t kind, const Run& run) {
  if (kind == 0) return run(UnitQ4_0{});
  if (kind == 1) return run(UnitQ4_1{});
  if (kind == 2) return run(UnitQ8_0{});
  if (kind == 3) return run(UnitQ4_K{});
  if (kind == 4) return run(UnitQ6_K{});
  throw std::invalid_argument("there are no such blocks");
}

inline size_t block_bytes(int64_t in, int64_t out, int64_t kind) {
  return with_unit(kind, [&](auto unit) {
    constexpr int64_t size = decltype(unit)::PARTS * BLOCK_SIZE;
    if (in % size) throw std::invalid_argument("in is not a multiple of a block");
    return size_t(in / size) * size_t((out + COLUMNS - 1) / COLUMNS) * sizeof unit;
  });
}

inline void multiply_blocks(const Linear& p, int64_t kind, int threads) {
  threads = threads_for_product(double(p.rows) * double(p.in) * double(p.out), threads);
  with_unit(kind, [&](auto unit) { multiply_all_blocks<decltype(unit)>(p, threads); });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
