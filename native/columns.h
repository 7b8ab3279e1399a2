// Copies neighbouring columns of an array to contiguous memory.
#pragma once

#include "simd.h"

namespace qkv {
namespace QKV_VARIANT {

// Loads the first `count` numbers of a vector, and zeros for the rest.
class First {
 public:
  explicit First(int64_t count) : count_(count < 0 ? 0 : count < WIDTH ? count : WIDTH) {}
#if defined(__AVX512F__)
  QKV_INLINE Floats operator()(const float* from) const {
    return (Floats)_mm512_maskz_loadu_ps(__mmask16((1u << count_) - 1), from);
  }
#elif defined(__AVX2__)
  QKV_INLINE Floats operator()(const float* from) const {
    return (Floats)_mm256_maskload_ps(from, (__m256i)(lanes() < int32_t(count_)));
  }
#else
  QKV_INLINE Floats operator()(const float* from) const {
    return count_ == WIDTH ? load(from) : load_some(from, count_);
  }
#endif

 private:
  int64_t count_;
};

// Copies `count` columns of `rows` rows into tiles of STEP columns: [tile][row][STEP]. The tiles
// are `tile_step` numbers apart. The function writes whole vectors, and the last vector of a tile
// can extend past the tile's last row. So each tile needs extra space after its last row. Missing
// columns of the last tile become zeros. The sums of the columns are added to `sums`, if given.
template <int STEP>
inline void copy_columns(const float* from, int64_t step, int64_t rows, int64_t count, float* to,
                         int64_t tile_step, float* sums) {
  static_assert(STEP <= 2 * WIDTH);
  const int64_t whole = count / STEP * STEP;
  const First low(STEP), high(STEP - WIDTH), last_low(count - whole), last_high(count - whole - WIDTH);
  for (int64_t k = 0; k < rows; ++k, from += step, to += STEP) {
    float* tile = to;
    for (int64_t c = 0; c < count; c += WIDTH) __builtin_prefetch(from + 8 * step + c);
    for (int64_t c = 0; c < whole; c += STEP, tile += tile_step) {
      store(tile, low(from + c));
      if (STEP > WIDTH) store(tile + WIDTH, high(from + c + WIDTH));
    }
    if (whole < count) {
      store(tile, last_low(from + whole));
      if (STEP > WIDTH)
        store(tile + WIDTH, count - whole > WIDTH ? last_high(from + whole + WIDTH) : Floats{});
    }
    if (sums)
      for (int64_t c = 0; c < count; ++c) sums[c] += from[c];
  }
}

// Copies PANEL columns without sums. Each column is contiguous, and columns are `step` apart.
inline void copy_transposed(const float* from, int64_t step, int64_t rows, int64_t count, float* to) {
  for (int64_t c = 0; c < PANEL; c += WIDTH) {
    for (int64_t k = 0; k < rows; k += WIDTH) {
      const First some(rows - k);
      Floats v[WIDTH];
      QKV_UNROLL for (int r = 0; r < WIDTH; ++r)
        v[r] = c + r < count ? some(from + (c + r) * step + k) : Floats{};
      transpose(v);
      QKV_UNROLL for (int r = 0; r < WIDTH; ++r)
        if (k + r < rows) store(to + (k + r) * PANEL + c, v[r]);
    }
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
