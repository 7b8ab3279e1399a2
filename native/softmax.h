// The running softmax of a tile of rows (Milakov and Gimelshein 2018), with powers of 2.
#pragma once

#include "scores.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int ROUND = (HIGHEST + WIDTH - 1) / WIDTH * WIDTH;  // the rows of a tile, rounded up to whole vectors

// The state of a tile's rows. The sum of a row is in units of 2**top.
struct Running {
  alignas(64) float top[ROUND];    // the largest score, or up to SLACK less
  alignas(64) float faded[ROUND];  // 2**(previous top - top): the factor of the previous sum
  alignas(64) double total[ROUND]; // the sum of 2**(score - top)
  alignas(64) double given[ROUND]; // the sum of the weights; of `Pair` and `Tiles`, after they were rounded to bfloat16

  void start() {
    for (int i = 0; i < ROUND; ++i) top[i] = -INF, faded[i] = 1, total[i] = given[i] = 0;
  }
  // Starts the sums with the weights of the sinks.
  void start(const Attention& a, int64_t query_head) {
    start();
    const float* sinks = a.sinks + query_head * a.num_sinks;
    float highest = -INF;
    double sum = 0;
    for (int64_t k = 0; k < a.num_sinks; ++k) highest = sinks[k] > highest ? sinks[k] : highest;
    for (int64_t k = 0; k < a.num_sinks; ++k)
      if (!(sinks[k] == -INF)) sum += std::exp2(double(sinks[k] * LOG2_E) - double(highest * LOG2_E));
    if (a.num_sinks)
      for (int i = 0; i < ROUND; ++i) top[i] = highest * LOG2_E, total[i] = given[i] = sum;
  }
  double log_sum_exp(int64_t i) const { return double(top[i]) * LN_2 + std::log(total[i]); }
};

// Reduces each of WIDTH vectors with `join`; lane l of the result is the reduction of vector l.
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

// Computes totals * faded + the sums of WIDTH vectors, in double precision.
QKV_INLINE void add_sums(double* totals, const float* faded, Floats* each) {
  Doubles sums = __builtin_convertvector(fold(each, Sum{}), Doubles);
  sums += load_as<Doubles>(totals) * __builtin_convertvector(load(faded), Doubles);
  std::memcpy(totals, &sums, sizeof sums);
}

// Converts ROWS rows of scores, STEP apart, to weights 2**(score * factor - top), in the units of
// `Product`. Columns `begin` and `end` are multiples of WIDTH, or of PANEL if `Product` is not `Single`.
// Updates `top`, `total` and `faded`.
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
    if (Product::SLACK > 0) top = select((Ints)(top > before + Product::SLACK), top, before);
    Floats base = select(top == splat(-INF), Floats{}, top);
    store(rows.faded + v * WIDTH, exp2(before - base));
    store(rows.top + v * WIDTH, top);
    store(bases + v * WIDTH, base);
  }
  Floats rounded[Product::DEPTH == 1 ? 1 : VECTORS * WIDTH];
  for (int i = 0; i < VECTORS * WIDTH; ++i) each[i] = Floats{};
  for (Floats& v : rounded) v = Floats{};
  for (int i = 0; i < ROWS; ++i) {
    float* row = scores + i * STEP;
    Floats total{}, by = splat(factor), from = splat(bases[i]);
    auto power = [&](int64_t c) QKV_LAMBDA { return Product::power(load(row + c) * by - from); };
    if constexpr (Product::DEPTH == 1) {
      for (int64_t c = begin; c < end; c += WIDTH) {
        Floats p = power(c);
        total += p;
        store(row + c, p);
      }
    } else {
      Floats given{};
      for (int64_t c = begin; c < end; c += 2 * WIDTH) {
        Floats first = power(c), second = power(c + WIDTH);
        total += first + second;
        given = Product::store_two(row + c / 2, first, second, given);
      }
      rounded[i] = given;
    }
    each[i] = total;
  }
  for (int v = 0; v < VECTORS; ++v) {
    int at = v * WIDTH;
    add_sums(rows.total + at, rows.faded + at, each + at);
    if constexpr (Product::DEPTH == 1)
      std::memcpy(rows.given + at, rows.total + at, WIDTH * sizeof(double));
    else
      add_sums(rows.given + at, rows.faded + at, rounded + at);
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
