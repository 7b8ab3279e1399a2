// Computes x @ W + bias in int8: W has int8 numbers and a scale for each column, and each row of x (a token)
// is quantized when it is read. The sums are exact int32, so all variants compute the same sums.
//
// A quantized number n of a row is x / scale, rounded to nearest even. The scale is the row's largest
// absolute value / 127, but at most LIMIT times the row's mean absolute value / 127: if a few columns of
// the row are far larger than the others (outliers), they do not make the scale coarse. Outliers have two
// digits: n = low + 256 * high, where low is an int8 number, and high is not 0; |n| is at most
// LARGEST_NUMBER. W has a second digit too, in steps of scale / 256, which only outliers multiply. So the
// sums are n * W + high * (second digit of W), without the product of low and the second digit.
//
// Four columns of x (two, without AVX-512's dot products of int8) fill a word of 32 bits, a unit. Packed
// weights are in panels of PANEL columns: [panel][unit][PANEL][UNIT] numbers, the same number of second
// digits, then PANEL scales. If all second digits are 0, they may be left out: the products are the same, to
// the bit. A variant with tiles multiplies more than a few rows as tiles.
#pragma once

#include "linear.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr float LIMIT = 6;
constexpr int LARGEST_NUMBER = 127 * 256 + 127;

// sums + the products of the numbers of a unit, for WIDTH columns.
#if defined(__AVX512VNNI__) || defined(QKV_TILES)
constexpr int UNIT = 4;
constexpr uint8_t OFFSET = 128;  // the instructions read weights as unsigned numbers: W + OFFSET is packed
typedef Words Weights;
QKV_INLINE Weights take_weights(const uint8_t* from) { return load_as<Words>(from); }
QKV_INLINE Ints add_unit(Ints sums, uint32_t x, Weights w) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(int(x)));
#else
  return (Ints)add_products_of_bytes((Words)sums, x, w);
#endif
}
#else
constexpr int UNIT = 2;  // as int16: a number needs no second digit
constexpr uint8_t OFFSET = 0;
typedef int8_t Small __attribute__((vector_size(2 * WIDTH)));
typedef int16_t Weights __attribute__((vector_size(4 * WIDTH)));
QKV_INLINE Weights take_weights(const uint8_t* from) {
  return __builtin_convertvector(load_as<Small>(from), Weights);
}
QKV_INLINE Ints add_unit(Ints sums, uint32_t x, Weights w) {
  return add_pair_products(sums, (Ints)w, splat_int(int32_t(x)));
}
#endif

constexpr int MULTIPLE = OfBfloat16::ALIGN;  // tiles need a multiple of 16 units
constexpr int FEW_ROWS = 4;                  // so many rows are multiplied without tiles
constexpr int LOW_TILE = MULTIPLE > 1 && TILE > FEW_ROWS ? FEW_ROWS : TILE;  // the rows of a product without tiles

inline int64_t units_in_int8(int64_t in) { return (in + UNIT * MULTIPLE - 1) / (UNIT * MULTIPLE) * MULTIPLE; }
inline int64_t digit_bytes(int64_t in) { return units_in_int8(in) * UNIT * PANEL; }  // of one digit of a panel
inline int64_t panel_bytes(int64_t in, int digits) { return digits * digit_bytes(in) + PANEL * int64_t(sizeof(float)); }
inline size_t packed_bytes_of_int8(int64_t in, int64_t out, Type type) {
  return size_t(panels_of(out) * panel_bytes(in, digits_of(type)));
}

// Packs two digits of W, with the same steps; only one if `more` is nullptr.
inline void pack_int8(const int8_t* weight, const int8_t* more, int64_t in_step, int64_t out_step,
                      const float* scales, int64_t in, int64_t out, void* packed, int threads) {
  const int digits = more ? 2 : 1;
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    for (int64_t panel; (panel = next++) < panels_of(out); worked(in * PANEL)) {
      uint8_t* to = static_cast<uint8_t*>(packed) + panel * panel_bytes(in, digits);
      for (int64_t c = 0; c < PANEL; ++c) {
        const int64_t column = panel * PANEL + c, rows = column < out ? in : 0;
        for (int64_t k = 0; k < units_in_int8(in) * UNIT; ++k) {
          const int64_t from = k * in_step + column * out_step;
          uint8_t* here = to + (k / UNIT * PANEL + c) * UNIT + k % UNIT;
          here[0] = uint8_t((k < rows ? weight[from] : 0) + OFFSET);
          if (more) here[digit_bytes(in)] = uint8_t((k < rows ? more[from] : 0) + OFFSET);
        }
        const float scale = rows ? scales[column] : 0;
        std::memcpy(to + digits * digit_bytes(in) + c * int64_t(sizeof scale), &scale, sizeof scale);
      }
    }
  });
}

// Returns the scale of a row: NaN if a number of the row is not finite, and 0 if all numbers count as 0.
inline float scale_of_row(const float* x, int64_t count) {
  constexpr int LANES = 16;  // in every variant, so that the sum is rounded alike
  Floats sums[LANES / WIDTH] = {};
  Ints largest{};
  for (int64_t k = 0; k < count; k += LANES) {
    QKV_UNROLL for (int v = 0; v < LANES / WIDTH; ++v) {
      const int64_t at = k + v * WIDTH;
      Ints size = as_ints(take_some(x + (at < count ? at : 0), count - at)) & 0x7fffffff;
      sums[v] += as_floats(size);
      largest = size > largest ? size : largest;
    }
  }
  float lanes[LANES];
  std::memcpy(lanes, sums, sizeof lanes);
  for (int step = LANES / 2; step; step /= 2)
    for (int k = 0; k < step; ++k) lanes[k] += lanes[k + step];
  int32_t bits = 0;
  for (int k = 0; k < WIDTH; ++k) bits = largest[k] > bits ? largest[k] : bits;
  float most;
  std::memcpy(&most, &bits, 4);
  if (bits >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  const float usual = lanes[0] / float(count) * LIMIT;
  const float fine = (usual < most ? usual : most) / 127, coarse = most / LARGEST_NUMBER;
  const float scale = fine > coarse ? fine : coarse;
  return scale < 0x1p-126f ? 0 : scale;
}

// Rows of x, quantized.
class Quantized {
 public:
  struct Outliers {  // the second digits of a unit
    int32_t unit, row;  // the row's number in its tile
    uint32_t high;
  };

  void read(const Linear& p, int64_t first, int64_t rows) {
    units_ = units_in_int8(p.in);
    digits_of_weights_ = digits_of(p.packed_type);
    rows_ = rows;
    low_.need(size_t((rows + MULTIPLE) * row_step()));
    found_.need(size_t(HIGHEST * units_));
    outliers_.need(size_t(rows * units_));
    ends_.need(size_t(units_));
    starts_.need(size_t(tiles() + 1));
    scales_.need(size_t(rows + MULTIPLE));  // the last tile may be higher than its rows
    offsets_.need(size_t(rows + MULTIPLE));
    digits_.need(size_t(units_ + WIDTH));
    starts_[0] = 0;
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      const int64_t begin = begin_of(tile), count = begin_of(tile + 1) - begin;
      count_ = 0;
      for (int64_t r = 0; r < count; ++r) {
        const float* x = static_cast<const float*>(p.x) + (first + begin + r) * p.x_step;
        quantize(x, p.in, begin + r, int32_t(r));
        if (as_tiles()) {
          std::memcpy(low_.data() + (begin + r) * row_step(), digits_.data(), size_t(units_) * 4);
          continue;
        }
        uint32_t* low = low_.data() + begin * units_ + r;
        for (int64_t u = 0; u < units_; ++u) low[u * count] = digits_[size_t(u)];
      }
      starts_[size_t(tile + 1)] = starts_[size_t(tile)] + count_;
      if (count_) sort_by_unit(outliers_.data() + starts_[size_t(tile)]);
    }
  }

  bool as_tiles() const { return MULTIPLE > 1 && rows_ > FEW_ROWS; }
  int64_t tiles() const { return as_tiles() ? tiles_of<OfBfloat16>(rows_) : tiles_of<Single>(rows_); }
  int64_t begin_of(int64_t tile) const {
    return as_tiles() ? tile_begin<OfBfloat16>(rows_, tile) : tile_begin<Single>(rows_, tile);
  }
  int64_t units() const { return units_; }
  int digits_of_weights() const { return digits_of_weights_; }
  // Without tiles, the units of the rows of a tile are side by side: [unit][row]. The units of a row of tiles
  // are contiguous, and rows at the distance `row_step` do not share cache sets.
  int64_t row_step() const { return as_tiles() ? units_ + 16 : units_; }
  // The units of the rows of a tile. Without second digits if UNIT is 4.
  const uint32_t* low(int64_t tile) const { return low_.data() + begin_of(tile) * row_step(); }
  bool has_outliers(int64_t tile) const { return outliers(tile) != outliers(tile + 1); }
  const Outliers* outliers(int64_t tile) const { return outliers_.data() + starts_[size_t(tile)]; }
  float scale(int64_t row) const { return scales_[size_t(row)]; }
  int32_t offset(int64_t row) const { return offsets_[size_t(row)]; }  // is added to the sums, because of OFFSET

 private:
  // Writes the numbers of a row to `digits_`, and adds the row's outliers to `found_`.
  void quantize(const float* x, int64_t count, int64_t row, int32_t in_tile) {
    const float scale = scale_of_row(x, count);
    const float factor = scale > 0 ? 1 / scale : 0;
    Ints sum{};
    for (int64_t k = 0; k < units_ * UNIT; k += WIDTH) {
      Floats some = take_some(x + (k < count ? k : 0), count - k);
      Ints n = scale > 0 ? to_nearest(some * factor) : Ints{}, high = (n + 128) >> 8;
      uint32_t* to = digits_.data() + k / UNIT;
      put_digits(n, to);
      sum += n;
      // numbers of int16 have their whole value, so only the second digits of W need `high`
      if ((UNIT == 2 && digits_of_weights_ == 1) || all_zero(high)) continue;
      if (digits_of_weights_ == 2) sum += high;
      uint32_t second[WIDTH / UNIT];
      put_digits(high, second);
      for (int u = 0; u < WIDTH / UNIT; ++u)
        if (second[u]) found_[size_t(count_++)] = {int32_t(k / UNIT) + u, in_tile, second[u]};
    }
    int32_t total = 0;
    for (int k = 0; k < WIDTH; ++k) total += sum[k];
    scales_[size_t(row)] = scale;
    offsets_[size_t(row)] = -int32_t(OFFSET) * total;
  }

  static QKV_INLINE void put_digits(Ints n, uint32_t* to) {
    typedef std::conditional_t<UNIT == 4, int8_t, int16_t> Digit;
    typedef Digit Digits __attribute__((vector_size(sizeof(Digit) * WIDTH)));
    Digits digits = __builtin_convertvector(n, Digits);
    std::memcpy(to, &digits, sizeof digits);
  }

  // Sorts `found_`, so that neighbours read the same weights and seldom add to the same sums.
  void sort_by_unit(Outliers* to) {
    std::memset(ends_.data(), 0, size_t(units_) * sizeof(int32_t));
    for (int64_t k = 0; k < count_; ++k) ++ends_[size_t(found_[size_t(k)].unit)];
    for (int64_t u = 1; u < units_; ++u) ends_[size_t(u)] += ends_[size_t(u - 1)];
    for (int64_t k = count_ - 1; k >= 0; --k) to[--ends_[size_t(found_[size_t(k)].unit)]] = found_[size_t(k)];
  }

  Buffer<uint32_t> low_, digits_;
  Buffer<Outliers> found_, outliers_;
  Buffer<int64_t> starts_;
  Buffer<int32_t> offsets_, ends_;
  Buffer<float> scales_;
  int64_t units_ = 0, rows_ = 0, count_ = 0;
  int digits_of_weights_ = 2;
};

// Computes the products of ROWS rows of a tile with one panel from their sums.
template <int ROWS>
QKV_INLINE void scale_sums(const Quantized& x, int64_t tile, const uint8_t* scales, const Ints (*sums)[2], float* to) {
  const Floats s0 = load_as<Floats>(scales), s1 = load_as<Floats>(scales + sizeof(Floats));
  const int64_t begin = x.begin_of(tile);
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
    const uint32_t offset = uint32_t(x.offset(begin + r));
    const float scale = x.scale(begin + r);
    store(to + r * PANEL, to_floats((Ints)((Words)sums[r][0] + offset)) * scale * s0);
    store(to + r * PANEL + WIDTH, to_floats((Ints)((Words)sums[r][1] + offset)) * scale * s1);
  }
}

// Adds the products of the second digits of a tile with one panel to `sums`.
QKV_INLINE void add_outliers(const Quantized& x, int64_t tile, const uint8_t* panel, Ints (*sums)[2]) {
  constexpr int64_t STEP = PANEL * UNIT;
  const uint8_t* more = panel + x.units() * STEP;
  const Quantized::Outliers* last = x.outliers(tile + 1);
  for (const Quantized::Outliers* one = x.outliers(tile); one != last; ++one) {
    const int64_t at = one->unit * STEP;
    Ints* to = sums[one->row];
    Ints first = to[0], second = to[1];
    if (x.digits_of_weights() == 2) {
      first = add_unit(first, one->high, take_weights(more + at));
      second = add_unit(second, one->high, take_weights(more + at + STEP / 2));
    }
    if constexpr (UNIT == 4) {
      first += add_unit(Ints{}, one->high, take_weights(panel + at)) << 8;
      second += add_unit(Ints{}, one->high, take_weights(panel + at + STEP / 2)) << 8;
    }
    to[0] = first;
    to[1] = second;
  }
}

// Computes x @ W of the ROWS rows of a tile and one panel, as floats.
template <int ROWS>
void multiply_int8(const Quantized& x, int64_t tile, const uint8_t* panel, float* sums) {
  constexpr int64_t STEP = PANEL * UNIT;
  const uint8_t *w = panel, *end = panel + x.units() * STEP, *scales = panel + x.digits_of_weights() * (end - panel);
  const int64_t skip = scales - end + PANEL * int64_t(sizeof(float));  // from `end` to the next panel
  Ints c[ROWS][2] = {};
  if (x.has_outliers(tile)) {
    Ints of_outliers[ROWS][2] = {};
    add_outliers(x, tile, panel, of_outliers);
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) c[r][0] = of_outliers[r][0], c[r][1] = of_outliers[r][1];
  }
  for (const uint32_t* here = x.low(tile); w != end; here += ROWS, w += STEP) {
    const Weights w0 = take_weights(w), w1 = take_weights(w + STEP / 2);
    if (ROWS <= TILE / 2) {
      const uint8_t* ahead = w + AHEAD * STEP;
      if (ahead >= end) ahead += skip;
      QKV_UNROLL for (int at = 0; at < STEP; at += 64) __builtin_prefetch(ahead + at);
    }
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
      c[r][0] = add_unit(c[r][0], here[r], w0);
      c[r][1] = add_unit(c[r][1], here[r], w1);
    }
  }
  scale_sums<ROWS>(x, tile, scales, c, sums);
}

#if defined(QKV_TILES)
// As `multiply_int8`, but ROWS (16 or 32) may exceed the rows of the last tile.
template <int ROWS>
void multiply_int8_tiles(const Quantized& x, int64_t tile, const uint8_t* panel, float* sums) {
  Ints c[ROWS][2];
  if (x.has_outliers(tile)) {
    std::memset(c, 0, sizeof c);
    add_outliers(x, tile, panel, c);
    load_sums<ROWS>(reinterpret_cast<const int32_t*>(c), PANEL);
  } else {
    clear_sums<ROWS>();
  }
  const uint32_t* w = reinterpret_cast<const uint32_t*>(panel);
  add_tile_products<Type::int8, ROWS>(x.low(tile), x.row_step(), w, PANEL, x.units());
  store_sums<ROWS>(reinterpret_cast<int32_t*>(c), PANEL);
  scale_sums<ROWS>(x, tile, panel + x.digits_of_weights() * x.units() * PANEL * UNIT, c, sums);
}
#endif

using MultiplyInt8 = void (*)(const Quantized&, int64_t, const uint8_t*, float*);

template <int ROWS = LOW_TILE>
inline MultiplyInt8 multiply_int8_for(int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return multiply_int8_for<ROWS - 1>(rows);
  return multiply_int8<ROWS>;
}
inline MultiplyInt8 multiply_int8_for(const Quantized& x, int64_t rows) {
#if defined(QKV_TILES)
  if (x.as_tiles()) return rows > TILE_ROWS ? multiply_int8_tiles<SIDE> : multiply_int8_tiles<TILE_ROWS>;
#endif
  (void)x;
  return multiply_int8_for(rows);
}

inline void multiply_all_int8(const Linear& p, int threads) {
  const int64_t panels = panels_of(p.out), chunks = (p.rows + X_ROWS<OfBfloat16> - 1) / X_ROWS<OfBfloat16>;
  const int64_t groups = groups_of(panels, chunks, p.rows, threads);
  const Finish finish_tile = finish_for<float>(p.activation);
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Quantized x;
    alignas(64) float sums[HIGHEST * PANEL];
    [[maybe_unused]] OfBfloat16::Registers registers;
    int64_t held = -1;  // the chunk that `x` holds
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = p.rows * chunk / chunks, rows = p.rows * (chunk + 1) / chunks - first;
      if (held != chunk) x.read(p, first, rows);
      held = chunk;
      for (int64_t panel = panels * group / groups; panel < panels * (group + 1) / groups; ++panel) {
        const uint8_t* w = static_cast<const uint8_t*>(p.packed) + panel * panel_bytes(p.in, digits_of(p.packed_type));
        for (int64_t tile = 0; tile < x.tiles(); ++tile) {
          const int64_t begin = x.begin_of(tile), count = x.begin_of(tile + 1) - begin;
          multiply_int8_for(x, count)(x, tile, w, sums);
          finish_tile(p, sums, first + begin, count, panel);
        }
        worked(rows * PANEL * p.in);
      }
    }
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
