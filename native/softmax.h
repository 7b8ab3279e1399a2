// The running softmax of a tile of rows (Milakov and Gimelshein 2018), in powers of 2.
#pragma once

#include "scores.h"

namespace qkv {
namespace QKV_BODY {

// One per row of a chunk. A row's sum counts in units of 2**top.
struct Running {
  float top;     // the largest score so far
  float faded;   // 2**(the top before - top): what is summed so far, seen from the new top
  double total;  // the sum of 2**(score - top)
};

inline Running start_row(const Attention& a, int64_t query_head) {
  Running row{-INF, 1, 0};
  const float* sinks = a.sinks + query_head * a.num_sinks;
  for (int64_t k = 0; k < a.num_sinks; ++k)
    row.top = sinks[k] * LOG2_E > row.top ? sinks[k] * LOG2_E : row.top;
  for (int64_t k = 0; k < a.num_sinks; ++k)
    row.total += std::exp2(double(sinks[k] * LOG2_E) - double(row.top == -INF ? 0 : row.top));
  return row;
}

// Two bfloat16 in place of two floats: WIDTH numbers in half a vector's room.
QKV_INLINE void store_narrow(float* to, Floats v) {
#if defined(__AVX512BF16__)
  __m256bh bits = _mm512_cvtneps_pbh((__m512)v);
  std::memcpy(to, &bits, sizeof bits);
#else
  (void)to, (void)v;
#endif
}

// Scores in columns begin ... end (multiples of WIDTH), times `factor` > 0, become
// 2**(score - top), in what `Product` multiplies; the row's top, total and `faded` follow.
template <class Product>
QKV_INLINE void exponentiate_row(float* scores, int64_t begin, int64_t end, float factor,
                                 Running& row) {
  Floats top = splat(-INF);
  for (int64_t c = begin; c < end; c += WIDTH) top = larger(load(scores + c), top);
  float highest = largest(top) * factor;
  float higher = highest > row.top ? highest : row.top;
  float base = higher == -INF ? 0 : higher;
  row.faded = row.top == higher ? 1.0f : exp2(splat(row.top - base))[0];
  row.top = higher;
  Floats total{}, by = splat(factor), from = splat(base);
  float* narrow = scores + begin / Product::DEPTH;
  for (int64_t c = begin; c < end; c += WIDTH) {
    Floats power = exp2(load(scores + c) * by - from);
    total += power;
    if constexpr (Product::DEPTH == 1)
      store(scores + c, power);
    else
      store_narrow(narrow, power), narrow += WIDTH / 2;
  }
  row.total = row.total * double(row.faded) + double(sum(total));
}

inline double log_sum_exp(const Running& row) {
  return double(row.top) * LN_2 + std::log(row.total);
}

}  // namespace QKV_BODY
}  // namespace qkv
