// The running softmax of a tile of rows (Milakov and Gimelshein 2018), in powers of 2.
#pragma once

#include "scores.h"

namespace qkv {
namespace QKV_BODY {

constexpr int ROUND = (TILE + WIDTH - 1) / WIDTH * WIDTH;  // a tile's rows in whole vectors

typedef double Doubles __attribute__((vector_size(8 * WIDTH)));

// What a tile's rows have come to so far. A row's sum counts in units of 2**top.
struct Running {
  alignas(64) float top[ROUND];    // the largest score
  alignas(64) float faded[ROUND];  // 2**(the top before - top): the sum so far, seen from the new top
  alignas(64) double total[ROUND]; // the sum of 2**(score - top)

  void start() {
    for (int i = 0; i < ROUND; ++i) top[i] = -INF, faded[i] = 1, total[i] = 0;
  }
  // Sinks take weight from the beginning.
  void start(const Attention& a, int64_t query_head) {
    start();
    const float* sinks = a.sinks + query_head * a.num_sinks;
    float highest = -INF;
    double sum = 0;
    for (int64_t k = 0; k < a.num_sinks; ++k) highest = sinks[k] > highest ? sinks[k] : highest;
    for (int64_t k = 0; k < a.num_sinks; ++k)
      if (!(sinks[k] == -INF)) sum += std::exp2(double(sinks[k] * LOG2_E) - double(highest * LOG2_E));
    if (a.num_sinks)
      for (int i = 0; i < ROUND; ++i) top[i] = highest * LOG2_E, total[i] = sum;
  }
  double log_sum_exp(int64_t i) const { return double(top[i]) * LN_2 + std::log(total[i]); }
};

// Two bfloat16 in place of two floats: WIDTH numbers in half a vector's room.
QKV_INLINE void store_narrow(float* to, Floats v) {
#if defined(__AVX512BF16__)
  __m256bh bits = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &bits, sizeof bits);
#else
  (void)to, (void)v;
#endif
}

// One vector that holds, lane by lane, what `join` makes of all lanes of each of WIDTH vectors.
template <int DISTANCE, class Join, int... LANE>
QKV_INLINE Floats fold_two(Floats a, Floats b, Join join, std::integer_sequence<int, LANE...>) {
  return join(
      __builtin_shufflevector(a, b, (LANE & DISTANCE ? WIDTH + LANE : LANE)...),
      __builtin_shufflevector(a, b, ((LANE & DISTANCE ? WIDTH + LANE : LANE) ^ DISTANCE)...));
}
template <int DISTANCE = WIDTH / 2, class Join>
QKV_INLINE Floats fold(Floats* v, Join join) {
  QKV_UNROLL
  for (int k = 0; k < DISTANCE; ++k)
    v[k] = fold_two<DISTANCE>(v[k], v[k + DISTANCE], join, Lanes{});
  if constexpr (DISTANCE > 1) return fold<DISTANCE / 2>(v, join);
  return v[0];
}
struct Larger {
  QKV_INLINE Floats operator()(Floats a, Floats b) const { return larger(a, b); }
};
struct Sum {
  QKV_INLINE Floats operator()(Floats a, Floats b) const { return a + b; }
};

// ROWS rows of scores, STEP apart, in columns begin ... end (multiples of WIDTH): times `factor` > 0
// they become 2**(score - top), in what `Product` multiplies; top, total and `faded` follow.
template <class Product, int ROWS>
QKV_INLINE void exponentiate(float* scores, int64_t begin, int64_t end, float factor,
                             Running& rows) {
  constexpr int VECTORS = (ROWS + WIDTH - 1) / WIDTH;
  Floats each[VECTORS * WIDTH];
  for (int i = 0; i < VECTORS * WIDTH; ++i) {
    each[i] = splat(-INF);
    if (i < ROWS)
      for (int64_t c = begin; c < end; c += WIDTH)
        each[i] = larger(load(scores + i * STEP + c), each[i]);
  }
  alignas(64) float bases[VECTORS * WIDTH];
  for (int v = 0; v < VECTORS; ++v) {
    Floats before = load(rows.top + v * WIDTH);
    Floats top = larger(fold(each + v * WIDTH, Larger{}) * factor, before);
    Floats base = select(top == splat(-INF), Floats{}, top);
    store(rows.faded + v * WIDTH, exp2(before - base));
    store(rows.top + v * WIDTH, top);
    store(bases + v * WIDTH, base);
  }
  for (int i = 0; i < VECTORS * WIDTH; ++i) each[i] = Floats{};
  for (int i = 0; i < ROWS; ++i) {
    float* row = scores + i * STEP;
    float* narrow = row + begin / Product::DEPTH;
    Floats total{}, by = splat(factor), from = splat(bases[i]);
    for (int64_t c = begin; c < end; c += WIDTH) {
      Floats power = exp2(load(row + c) * by - from);
      total += power;
      if constexpr (Product::DEPTH == 1)
        store(row + c, power);
      else
        store_narrow(narrow, power), narrow += WIDTH / 2;
    }
    each[i] = total;
  }
  for (int v = 0; v < VECTORS; ++v) {
    Doubles sums = __builtin_convertvector(fold(each + v * WIDTH, Sum{}), Doubles);
    Doubles faded = __builtin_convertvector(load(rows.faded + v * WIDTH), Doubles);
    Doubles totals = load_as<Doubles>(rows.total + v * WIDTH) * faded + sums;
    std::memcpy(rows.total + v * WIDTH, &totals, sizeof totals);
  }
}

}  // namespace QKV_BODY
}  // namespace qkv
