// Functions for training: activations and their gradients, the loss, and AdamW.
#pragma once

#include <atomic>
#include <cmath>

#include "activation.h"
#include "buffer.h"
#include "columns.h"
#include "linear.h"
#include "problem.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

// Calls `work(first, last, piece)` on pieces of a range. The pieces depend only on the range's length.
constexpr int64_t STRETCH = 1 << 14;
template <class Work>
inline void over_stretches(int64_t count, int threads, const Work& work) {
  const int64_t pieces = (count + STRETCH - 1) / STRETCH;
  std::atomic<int64_t> next{0};
  on_threads(pieces < 2 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces; worked(STRETCH * EXPONENTIAL)) {
      const int64_t first = piece * STRETCH;
      work(first, first + STRETCH < count ? first + STRETCH : count, piece);
    }
  });
}

// y = activation(x), or grad * activation'(x) if a gradient is given.
template <Activation A, bool BACK>
inline void map_all(const float* x, const float* grad, float* y, int64_t count, int threads) {
  constexpr int N = 4;
  over_stretches(count, threads, [&](int64_t k, int64_t end, int64_t) {
    auto step = [&](auto get, auto set) QKV_LAMBDA {
      Floats v[N];
      QKV_UNROLL for (int n = 0; n < N; ++n) v[n] = get(x + k + n * WIDTH, n);
      if constexpr (BACK) {
        Floats g[N];
        QKV_UNROLL for (int n = 0; n < N; ++n) g[n] = get(grad + k + n * WIDTH, n);
        slope<A>(v);
        // if relu's slope is 0, the result is 0, even if the gradient is NaN
        QKV_UNROLL for (int n = 0; n < N; ++n)
          v[n] = A == Activation::relu ? select((Ints)(v[n] > Floats{}), g[n], splat(0)) : v[n] * g[n];
      } else {
        activate<A>(v);
      }
      QKV_UNROLL for (int n = 0; n < N; ++n) set(y + k + n * WIDTH, v[n], n);
    };
    for (; k + N * WIDTH <= end; k += N * WIDTH)
      step([](const float* from, int) QKV_LAMBDA { return load(from); },
           [](float* to, Floats v, int) QKV_LAMBDA { store(to, v); });
    if (k < end)
      step([&](const float* from, int n) QKV_LAMBDA {
             return end - k > n * WIDTH ? take_some(from, end - k - n * WIDTH) : Floats{}; },
           [&](float* to, Floats v, int n) QKV_LAMBDA {
             if (end - k > n * WIDTH) put_some(to, v, end - k - n * WIDTH); });
  });
}

inline void map(Activation activation, const float* x, const float* grad, float* y, int64_t count,
                int threads) {
  with_activation(activation, [&](auto of) {
    constexpr Activation A = decltype(of)::value;
    if (grad) return map_all<A, true>(x, grad, y, count, threads);
    map_all<A, false>(x, grad, y, count, threads);
  });
}

// Computes the loss of one row, and its gradient: the softmax, minus 1 at the target.
inline void cross_entropy_row(const float* x, int64_t size, int64_t target, float weight, float* loss,
                              float* grad) {
  constexpr int N = 4;
  Floats most[N], total[N] = {};
  QKV_UNROLL for (int n = 0; n < N; ++n) most[n] = splat(-INF);
  int64_t k = 0;
  for (; k + N * WIDTH <= size; k += N * WIDTH)
    QKV_UNROLL for (int n = 0; n < N; ++n) most[n] = larger(load(x + k + n * WIDTH), most[n]);
  float largest = -INF;
  QKV_UNROLL for (int n = 0; n < N; ++n)
    for (int c = 0; c < WIDTH; ++c) largest = most[n][c] > largest ? most[n][c] : largest;
  for (; k < size; ++k) largest = x[k] > largest ? x[k] : largest;

  // if a number is NaN, for example -INF - -INF, the whole row becomes NaN
  auto power = [&](Floats v) QKV_LAMBDA { return exp2((v - largest) * LOG2_E); };
  for (k = 0; k + N * WIDTH <= size; k += N * WIDTH) {
    QKV_UNROLL for (int n = 0; n < N; ++n) {
      Floats e = power(load(x + k + n * WIDTH));
      store(grad + k + n * WIDTH, e);
      total[n] += e;
    }
  }
  float whole = sum((total[0] + total[1]) + (total[2] + total[3]));
  for (; k < size; k += WIDTH) {
    const int64_t count = size - k < WIDTH ? size - k : WIDTH;
    Floats e = power(take_some(x + k, count));
    put_some(grad + k, e, count);
    for (int c = 0; c < count; ++c) whole += e[c];
  }
  const bool inside = target >= 0 && target < size;
  *loss = inside ? float((std::log(double(whole)) - (double(x[target]) - double(largest))) * weight)
                 : NAN;
  const float factor = weight / whole;
  for (k = 0; k < size; k += WIDTH)
    put_some(grad + k, without_tiny(take_some(grad + k, size - k) * factor), size - k);
  if (inside) grad[target] -= weight;
}

inline void cross_entropy(const CrossEntropy& p, int threads) {
  const int64_t rows = p.size < STRETCH ? STRETCH / (p.size + 1) + 1 : 1;  // at least these rows per thread
  const int64_t pieces = (p.rows + rows - 1) / rows;
  std::atomic<int64_t> next{0};
  on_threads(pieces < 2 ? 1 : threads, [&](int) {
    for (int64_t piece; (piece = next++) < pieces; worked(rows * p.size * EXPONENTIAL))
      for (int64_t r = piece * rows; r < p.rows && r < (piece + 1) * rows; ++r)
        cross_entropy_row(p.logits + r * p.step, p.size, p.targets[r],
                          p.weights ? p.weights[r] : 1.0f, p.losses + r, p.grad + r * p.size);
  });
}

// Loshchilov and Hutter 2019, algorithm 2; plain loops, which the compiler vectorises.
template <bool EACH>
inline void adamw_stretch(const AdamW& p, int64_t first, int64_t last) {
  float* __restrict value = p.parameters + first;
  float* __restrict mean = p.mean + first;
  float* __restrict square = p.square + first;
  const float* __restrict gradient = p.gradient + first;
  const float* __restrict decay = EACH ? p.decays + first : nullptr;
  const float keep_mean = p.keep_mean, keep_square = p.keep_square;
  const float add_mean = p.add_mean, add_square = p.add_square;
  const float size = p.size, root = p.root, eps = p.eps, rate = p.rate, factor = p.factor;
  const float shrink = p.rate * p.decay;
  for (int64_t k = 0; k < last - first; ++k) {
    const float g = gradient[k] * factor;
    float m = mean[k] * keep_mean + g * add_mean;
    const float s = square[k] * keep_square + g * g * add_square;
    m = std::fabs(m) < TINY ? 0 : m;  // the mean of a parameter without gradients fades away
    mean[k] = m;
    square[k] = s;
    const float v = value[k] - value[k] * (EACH ? rate * decay[k] : shrink);
    value[k] = v - size * m / (std::sqrt(s) * root + eps);
  }
}

inline void adamw(const AdamW& p, int threads) {
  over_stretches(p.count, threads, [&](int64_t first, int64_t last, int64_t) {
    if (p.decays) return adamw_stretch<true>(p, first, last);
    adamw_stretch<false>(p, first, last);
  });
}

// Returns the sum of all squares.
inline double squares(const float* x, int64_t count, int threads) {
  Objects<double> parts(size_t((count + STRETCH - 1) / STRETCH) + 1);
  over_stretches(count, threads, [&](int64_t k, int64_t end, int64_t piece) {
    constexpr int N = 16;
    double sums[N] = {};
    for (; k + N <= end; k += N)
      for (int n = 0; n < N; ++n) sums[n] += double(x[k + n]) * double(x[k + n]);
    for (; k < end; ++k) sums[0] += double(x[k]) * double(x[k]);
    for (int n = 0; n < N; ++n) parts[size_t(piece)] += sums[n];
  });
  double total = 0;
  for (int64_t piece = 0; piece < (count + STRETCH - 1) / STRETCH; ++piece)
    total += parts[size_t(piece)];
  return total;
}

}  // namespace QKV_VARIANT
}  // namespace qkv
