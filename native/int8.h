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
// digits, then PANEL scales.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "linear.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr float LIMIT = 6;
constexpr int LARGEST_NUMBER = 127 * 256 + 127;

// sums + the products of the numbers of a unit, for WIDTH columns.
#if defined(__AVX512VNNI__)
constexpr int UNIT = 4;
constexpr uint8_t OFFSET = 128;  // the instruction reads weights as unsigned numbers: W + OFFSET is packed
typedef Ints Weights;
QKV_INLINE Weights take_weights(const uint8_t* from) { return load_as<Ints>(from); }
QKV_INLINE Ints add_unit(Ints sums, uint32_t x, Weights w) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(int(x)));
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
#if defined(__AVX512F__)
  return sums + (Ints)_mm512_madd_epi16((__m512i)w, _mm512_set1_epi32(int(x)));
#elif defined(__AVX2__)
  return sums + (Ints)_mm256_madd_epi16((__m256i)w, _mm256_set1_epi32(int(x)));
#elif defined(__SSE2__) && !defined(QKV_TILES_MODEL)
  return sums + (Ints)_mm_madd_epi16((__m128i)w, _mm_set1_epi32(int(x)));
#else
  Ints pairs = (Ints)w;
  return sums + (pairs << 16 >> 16) * (int32_t(x << 16) >> 16) + (pairs >> 16) * (int32_t(x) >> 16);
#endif
}
#endif

inline int64_t units_in_int8(int64_t in) { return (in + UNIT - 1) / UNIT; }
inline int64_t digit_bytes(int64_t in) { return units_in_int8(in) * UNIT * PANEL; }  // of one digit of a panel
inline int64_t panel_bytes(int64_t in) { return 2 * digit_bytes(in) + PANEL * int64_t(sizeof(float)); }
inline size_t packed_bytes_of_int8(int64_t in, int64_t out) { return size_t(panels_of(out) * panel_bytes(in)); }

// Packs two digits of W, with the same steps.
inline void pack_int8(const int8_t* weight, const int8_t* more, int64_t in_step, int64_t out_step,
                      const float* scales, int64_t in, int64_t out, void* packed, int threads) {
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    for (int64_t panel; (panel = next++) < panels_of(out); worked(in * PANEL)) {
      uint8_t* to = static_cast<uint8_t*>(packed) + panel * panel_bytes(in);
      for (int64_t c = 0; c < PANEL; ++c) {
        const int64_t column = panel * PANEL + c, rows = column < out ? in : 0;
        for (int64_t k = 0; k < units_in_int8(in) * UNIT; ++k) {
          const int64_t from = k * in_step + column * out_step;
          uint8_t* here = to + (k / UNIT * PANEL + c) * UNIT + k % UNIT;
          here[0] = uint8_t((k < rows ? weight[from] : 0) + OFFSET);
          here[digit_bytes(in)] = uint8_t((k < rows ? more[from] : 0) + OFFSET);
        }
        const float scale = rows ? scales[column] : 0;
        std::memcpy(to + 2 * digit_bytes(in) + c * int64_t(sizeof scale), &scale, sizeof scale);
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
    rows_ = rows;
    low_.need(size_t(rows * units_));
    found_.need(size_t(TILE * units_));
    outliers_.need(size_t(rows * units_));
    ends_.need(size_t(units_));
    starts_.need(size_t(tiles() + 1));
    scales_.need(size_t(rows));
    offsets_.need(size_t(rows));
    digits_.need(size_t(units_ + WIDTH));
    starts_[0] = 0;
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      const int64_t begin = begin_of(tile), count = begin_of(tile + 1) - begin;
      count_ = 0;
      for (int64_t r = 0; r < count; ++r) {
        const float* x = static_cast<const float*>(p.x) + (first + begin + r) * p.x_step;
        quantize(x, p.in, begin + r, int32_t(r));
        uint32_t* low = low_.data() + begin * units_ + r;
        for (int64_t u = 0; u < units_; ++u) low[u * count] = digits_[size_t(u)];
      }
      starts_[size_t(tile + 1)] = starts_[size_t(tile)] + count_;
      if (count_) sort_by_unit(outliers_.data() + starts_[size_t(tile)]);
    }
  }

  int64_t tiles() const { return tiles_of<Single>(rows_); }
  int64_t begin_of(int64_t tile) const { return tile_begin<Single>(rows_, tile); }
  int64_t units() const { return units_; }
  // The units of the rows of a tile, side by side: [unit][row]. Without second digits if UNIT is 4.
  const uint32_t* low(int64_t tile) const { return low_.data() + begin_of(tile) * units_; }
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
      if (all_zero(high)) continue;
      sum += high;
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
};

// Computes x @ W of the ROWS rows of a tile and one panel, as floats.
template <int ROWS>
void multiply_int8(const Quantized& x, int64_t tile, const uint8_t* panel, float* sums) {
  constexpr int64_t STEP = PANEL * UNIT;
  const uint8_t *w = panel, *more = panel + x.units() * STEP, *end = more;
  const int64_t skip = x.units() * STEP + PANEL * int64_t(sizeof(float));  // from `end` to the next panel
  Ints c[ROWS][2] = {};
  const Quantized::Outliers *one = x.outliers(tile), *last = x.outliers(tile + 1);
  if (one != last) {
    Ints of_outliers[ROWS][2] = {};
    for (; one != last; ++one) {
      const int64_t at = one->unit * STEP;
      Ints* to = of_outliers[one->row];
      Ints first = add_unit(to[0], one->high, take_weights(more + at));
      Ints second = add_unit(to[1], one->high, take_weights(more + at + STEP / 2));
      if constexpr (UNIT == 4) {
        first += add_unit(Ints{}, one->high, take_weights(w + at)) << 8;
        second += add_unit(Ints{}, one->high, take_weights(w + at + STEP / 2)) << 8;
      }
      to[0] = first;
      to[1] = second;
    }
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
  const uint8_t* scales = more + x.units() * STEP;
  const Floats s0 = load_as<Floats>(scales), s1 = load_as<Floats>(scales + sizeof(Floats));
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
    const int32_t offset = x.offset(x.begin_of(tile) + r);
    const float scale = x.scale(x.begin_of(tile) + r);
    store(sums + r * PANEL, to_floats(c[r][0] + offset) * scale * s0);
    store(sums + r * PANEL + WIDTH, to_floats(c[r][1] + offset) * scale * s1);
  }
}

template <int ROWS = TILE>
inline auto multiply_int8_for(int64_t rows) {
  if constexpr (ROWS > 1)
    if (rows < ROWS) return multiply_int8_for<ROWS - 1>(rows);
  return multiply_int8<ROWS>;
}

inline void multiply_all_int8(const Linear& p, int threads) {
  const int64_t panels = panels_of(p.out), chunks = (p.rows + X_ROWS<Single> - 1) / X_ROWS<Single>;
  const int64_t groups = groups_of(panels, chunks, p.rows, threads);
  const Finish finish_tile = finish_for<float>(p.activation);
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Quantized x;
    alignas(64) float sums[TILE * PANEL];
    int64_t held = -1;  // the chunk that `x` holds
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = p.rows * chunk / chunks, rows = p.rows * (chunk + 1) / chunks - first;
      if (held != chunk) x.read(p, first, rows);
      held = chunk;
      for (int64_t panel = panels * group / groups; panel < panels * (group + 1) / groups; ++panel) {
        const uint8_t* w = static_cast<const uint8_t*>(p.packed) + panel * panel_bytes(p.in);
        for (int64_t tile = 0; tile < x.tiles(); ++tile) {
          const int64_t begin = x.begin_of(tile), count = x.begin_of(tile + 1) - begin;
          multiply_int8_for(count)(x, tile, w, sums);
          finish_tile(p, sums, first + begin, count, panel);
        }
        worked(rows * PANEL * p.in);
      }
    }
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
