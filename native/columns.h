// Some neighbouring columns of an array, copied so that they stand together.
#pragma once

#include "simd.h"

namespace qkv {
namespace QKV_BODY {

// Reads the first `count` of a vector's numbers, zeros in place of the rest; fast for any count.
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

// `count` columns (at most STEP) of `rows` rows; the rows of the copy are STEP apart, and the last
// one has room for whole vectors. What the columns come to is added to `sums`, where they are wanted.
template <int STEP>
inline void copy_columns(const float* from, int64_t step, int64_t rows, int64_t count, float* to,
                         float* sums) {
  constexpr int VECTORS = (STEP + WIDTH - 1) / WIDTH;
  static_assert(VECTORS <= 2);
  const First low(count), high(count - WIDTH);
  Floats total[2] = {};
  for (int64_t k = 0; k < rows; ++k, from += step, to += STEP) {
    Floats x = low(from);
    store(to, x);
    total[0] += x;
    if constexpr (VECTORS > 1) {
      Floats y = count > WIDTH ? high(from + WIDTH) : Floats{};
      store(to + WIDTH, y);
      total[1] += y;
    }
  }
  if (sums)
    for (int64_t c = 0; c < count; ++c) sums[c] += total[c / WIDTH][c % WIDTH];
}

// The same of columns that stand in one piece each, `step` apart: PANEL of them, without sums.
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

}  // namespace QKV_BODY
}  // namespace qkv
