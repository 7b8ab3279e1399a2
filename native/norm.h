// LayerNorm and RMSNorm of rows of float32 or bfloat16, computed in float32.
#pragma once

#include <atomic>
#include <cmath>

#include "linear.h"
#include "problem.h"
#include "simd.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

// The sum of f(x[k]) over a row, in a few vectors of sums.
template <class T, class F>
QKV_INLINE float sum_over(const T* x, int64_t size, const F& f) {
  constexpr int VECTORS = 4;
  Floats sums[VECTORS] = {};
  int64_t k = 0;
  for (; k + VECTORS * WIDTH <= size; k += VECTORS * WIDTH) {
    QKV_UNROLL for (int c = 0; c < VECTORS; ++c) sums[c] += f(take(x + k + c * WIDTH));
  }
  float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; k < size; ++k) total += f(take_some(x + k, 1))[0];
  return total;
}

// One row. The variance is that of what is centred: the mean of the squares less the square of the
// mean would lose every digit where the mean is large. What is centred has a mean of its own, by
// which the first was rounded; it is taken away as well.
template <class T>
inline void norm_row(const Norm& p, const T* x, T* y, float* scale) {
  const float size = float(p.size);
  float mean = 0, rest = 0;
  if (p.centred) {
    mean = sum_over(x, p.size, [](Floats v) { return v; }) / size;
    rest = sum_over(x, p.size, [&](Floats v) { return v - mean; }) / size;
  }
  auto square = [&](Floats v) { return (v - mean - rest) * (v - mean - rest); };
  *scale = std::sqrt(sum_over(x, p.size, square) / size + p.eps);
  const float factor = 1 / *scale;
  for (int64_t k = 0; k < p.size; k += WIDTH) {
    const int64_t count = p.size - k;
    Floats v = (take_some(x + k, count) - mean - rest) * factor * take_some(p.weight + k, count);
    put_some(y + k, p.bias ? v + take_some(p.bias + k, count) : v, count);
  }
}

template <class T>
inline void norm_rows(const Norm& p, int threads) {
  constexpr int64_t PIECE = 8192;  // numbers that are worth a thread's while
  const int64_t rows = p.size < PIECE ? PIECE / p.size : 1;
  const int64_t pieces = (p.rows + rows - 1) / rows;
  std::atomic<int64_t> next{0};
  on_threads(pieces < 4 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces;)
      for (int64_t r = piece * rows; r < p.rows && r < (piece + 1) * rows; ++r)
        norm_row(p, static_cast<const T*>(p.x) + r * p.x_step,
                 static_cast<T*>(p.y) + r * p.y_step, p.scale + r);
  });
}

inline void norm(const Norm& p, int threads) {
  if (p.type == Type::bfloat16) return norm_rows<Bfloat16>(p, threads);
  norm_rows<float>(p, threads);
}

}  // namespace QKV_BODY
}  // namespace qkv
