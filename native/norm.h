// LayerNorm and RMSNorm of rows of float32 or bfloat16, computed in float32.
#pragma once

#include <atomic>
#include <cmath>

#include "buffer.h"
#include "linear.h"
#include "problem.h"
#include "simd.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

// Returns the sum of f(x[k]) over a row, computed in several vectors.
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

// Normalizes one row. The variance is computed from centred numbers, because the formula "mean of
// squares minus square of the mean" loses all digits if the mean is large. Because the mean is
// rounded, the centred numbers still have a small mean, which is subtracted too.
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
  constexpr int64_t PIECE = 8192;  // the smallest number of elements for a thread
  const int64_t rows = p.size < PIECE ? PIECE / p.size : 1;
  const int64_t pieces = (p.rows + rows - 1) / rows;
  std::atomic<int64_t> next{0};
  on_threads(pieces < 4 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces; worked(rows * p.size))
      for (int64_t r = piece * rows; r < p.rows && r < (piece + 1) * rows; ++r)
        norm_row(p, static_cast<const T*>(p.x) + r * p.x_step,
                 static_cast<T*>(p.y) + r * p.y_step, p.scale + r);
  });
}

inline void norm(const Norm& p, int threads) {
  if (p.type == Type::bfloat16) return norm_rows<Bfloat16>(p, threads);
  norm_rows<float>(p, threads);
}

// The backward pass of one row: computes the gradient for x, and adds the row's terms to the gradients
// for weight and bias.
inline void norm_grad_row(const NormGrad& p, const float* x, const float* upstream, float scale,
                          float* y, float* weight_sums, float* bias_sums) {
  const float size = float(p.size), factor = 1 / scale;
  float mean = 0, rest = 0;
  if (p.centred) {
    mean = sum_over(x, p.size, [](Floats v) { return v; }) / size;
    rest = sum_over(x, p.size, [&](Floats v) { return v - mean; }) / size;
  }
  Floats plain{}, along{};  // sums of g and of g * n, where n are normalized numbers and g is their gradient
  for (int64_t k = 0; k < p.size; k += WIDTH) {
    const int64_t count = p.size - k;
    Floats normal = (take_some(x + k, count) - mean - rest) * factor;
    Floats g = take_some(upstream + k, count), inner = g * take_some(p.weight + k, count);
    plain += inner;
    along += inner * normal;
    put_some(weight_sums + k, take_some(weight_sums + k, count) + g * normal, count);
    if (p.bias_sums) put_some(bias_sums + k, take_some(bias_sums + k, count) + g, count);
    put_some(y + k, inner, count);
  }
  const float shift = p.centred ? sum(plain) / size : 0, tilt = sum(along) / size;
  for (int64_t k = 0; k < p.size; k += WIDTH) {
    const int64_t count = p.size - k;
    Floats normal = (take_some(x + k, count) - mean - rest) * factor;
    put_some(y + k, (take_some(y + k, count) - shift - normal * tilt) * factor, count);
  }
}

// Divides the rows into pieces (groups of rows), sums each column in each piece, and then adds the
// pieces' sums. The pieces depend only on the shape.
inline void norm_grad(const NormGrad& p, int threads) {
  constexpr int64_t PIECE = 8192, MOST = 128;  // elements per piece (about), pieces (at most)
  int64_t rows = p.size < PIECE ? PIECE / p.size : 1;
  if (rows * MOST < p.rows) rows = (p.rows + MOST - 1) / MOST;
  const int64_t pieces = (p.rows + rows - 1) / rows;
  Buffer<float> sums(size_t(2 * (pieces + 1) * p.size));
  std::memset(sums.data(), 0, size_t(2 * pieces * p.size) * sizeof(float));
  std::atomic<int64_t> next{0};
  on_threads(pieces < 2 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces;)
      for (int64_t r = piece * rows; r < p.rows && r < (piece + 1) * rows; ++r, worked(p.size))
        norm_grad_row(p, p.x + r * p.x_step, p.upstream + r * p.upstream_step, p.scale[r],
                      p.y + r * p.size, sums.data() + 2 * piece * p.size,
                      sums.data() + (2 * piece + 1) * p.size);
  });
  for (float* to : {p.weight_sums, p.bias_sums}) {
    if (!to) continue;
    const float* from = sums.data() + (to == p.bias_sums ? p.size : 0);
    for (int64_t c = 0; c < p.size; ++c) to[c] = 0;
    for (int64_t piece = 0; piece < pieces; ++piece)
      for (int64_t c = 0; c < p.size; ++c) to[c] += from[2 * piece * p.size + c];
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
