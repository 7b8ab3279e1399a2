// LayerNorm and RMSNorm of rows of float32.
#pragma once

#include <atomic>
#include <cmath>

#include "problem.h"
#include "simd.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

// One row of `size` numbers, in two or three passes over what then stands in the nearest cache. The
// variance is that of what is centred: the mean of the squares less the square of the mean would
// lose every digit where the mean is large.
inline void norm_row(const Norm& p, const float* x, float* y, float* scale) {
  constexpr int CHAINS_OF_SUMS = 4;
  constexpr int STEP = CHAINS_OF_SUMS * WIDTH;
  const int64_t whole = p.size / STEP * STEP;
  float mean = 0;
  if (p.centred) {
    Floats sums[CHAINS_OF_SUMS] = {};
    for (int64_t k = 0; k < whole; k += STEP) {
      QKV_UNROLL for (int c = 0; c < CHAINS_OF_SUMS; ++c) sums[c] += load(x + k + c * WIDTH);
    }
    float total = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    for (int64_t k = whole; k < p.size; ++k) total += x[k];
    mean = total / float(p.size);
  }
  Floats squares[CHAINS_OF_SUMS] = {};
  for (int64_t k = 0; k < whole; k += STEP) {
    QKV_UNROLL for (int c = 0; c < CHAINS_OF_SUMS; ++c) {
      Floats d = load(x + k + c * WIDTH) - mean;
      squares[c] += d * d;
    }
  }
  float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (int64_t k = whole; k < p.size; ++k) total += (x[k] - mean) * (x[k] - mean);
  *scale = std::sqrt(total / float(p.size) + p.eps);
  const float factor = 1 / *scale;
  for (int64_t k = 0; k < whole; k += WIDTH) {
    Floats v = (load(x + k) - mean) * factor * load(p.weight + k);
    store(y + k, p.bias ? v + load(p.bias + k) : v);
  }
  for (int64_t k = whole; k < p.size; ++k) {
    float v = (x[k] - mean) * factor * p.weight[k];
    y[k] = p.bias ? v + p.bias[k] : v;
  }
}

inline void norm(const Norm& p, int threads) {
  constexpr int64_t PIECE = 8192;  // numbers that are worth a thread's while
  const int64_t rows = p.size < PIECE ? PIECE / p.size : 1;
  const int64_t pieces = (p.rows + rows - 1) / rows;
  std::atomic<int64_t> next{0};
  on_threads(pieces < 4 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces;)
      for (int64_t r = piece * rows; r < p.rows && r < (piece + 1) * rows; ++r)
        norm_row(p, p.x + r * p.x_step, p.y + r * p.y_step, p.scale + r);
  });
}

}  // namespace QKV_BODY
}  // namespace qkv
