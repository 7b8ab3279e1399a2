// Attention of one query in double precision, for queries whose float32 result is infinity or NaN.
//
// The fast loops do not test whether numbers are finite. If the result of a query is not finite, or
// if the query saw no finite score, the query is computed again here. So masked numbers never affect
// a result, a visible NaN always affects the result, and sums outside the range of float32 are
// correct.
#pragma once

#include "buffer.h"
#include "cells.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

typedef double Doubles __attribute__((vector_size(8 * WIDTH)));

// The weights of one query in double precision, and the log-sum-exp of its scores.
class ExactRow {
 public:
  // Allocates memory for `keys` keys in advance, so that no later step can fail.
  void need(int64_t keys, int64_t size, int64_t value_size) {
    weights_.need(size_t(keys) + 1);
    visible_.need(size_t(keys) + 1);
    query_.need(size_t(rounded_up(size, WIDTH)));
    context_.need(size_t(rounded_up(value_size, WIDTH)));
  }

  void compute(const Attention& a, const Place& p) {
    range_ = keys_of(a, p.row, p.i);
    int64_t count = range_.end - range_.begin, query = cell(a.query, p, 0);
    for (int64_t c = 0; count && c < a.size; c += WIDTH)
      put_doubles(&query_[size_t(c)], load_floats(a.query, query + c, a.size - c));
    double top = -HUGE_VAL;
    any_ = false;
    const float* sinks = a.sinks + (p.head * a.group + p.group) * a.num_sinks;
    for (int64_t k = 0; k < a.num_sinks; ++k) top = sinks[k] > top ? sinks[k] : top;
    for (int64_t k = 0; k < count; ++k) {
      worked(a.size);
      visible_[k] = mask_allows(a, p, range_.begin + k);
      if (!visible_[k]) continue;
      any_ = true;
      double s = weights_[k] = score(a, p, range_.begin + k);
      if (s > top || s != s) top = s;  // if top is NaN, it stays NaN
    }
    if (top == -HUGE_VAL) top = 0;
    double total = 0;
    for (int64_t k = 0; k < a.num_sinks; ++k) total += std::exp(double(sinks[k]) - top);
    if (top == top)
      for (int64_t k = 0; k < count; ++k)
        if (visible_[k]) total += weights_[k] = std::exp(weights_[k] - top);
    lse_ = top != top ? top : top + std::log(total);
    for (int64_t k = 0; k < count; ++k)
      weights_[k] = !visible_[k] ? 0 : top != top ? top : without_tiny(weights_[k] / total);
  }

  double lse() const { return lse_; }
  Range range() const { return range_; }
  double weight(int64_t j) const { return weights_[j - range_.begin]; }
  bool visible(int64_t j) const { return visible_[j - range_.begin]; }

  // Computes the weighted mean of the values, for all columns.
  const double* context(const Attention& a, const Place& p) {
    for (int64_t c = 0; c < a.value_size; ++c) context_[c] = 0;
    for (int64_t j = range_.begin; any_ && j < range_.end; ++j) {
      if (!visible(j)) continue;
      worked(a.value_size);
      int64_t value = cell(a.value, {p.row, p.head, p.group, j}, 0);
      for (int64_t c = 0; c < a.value_size; c += WIDTH) {
        Floats x = load_floats(a.value, value + c, a.value_size - c);
        Doubles sum = load_as<Doubles>(&context_[c]);
        sum += weight(j) * __builtin_convertvector(x, Doubles);
        std::memcpy(&context_[c], &sum, sizeof sum);
      }
    }
    return context_.data();
  }

 private:
  double score(const Attention& a, const Place& p, int64_t j) const {
    int64_t key = cell(a.key, {p.row, p.head, p.group, j}, 0);
    Doubles sums{};
    for (int64_t c = 0; c < a.size; c += WIDTH) {
      Floats x = load_floats(a.key, key + c, a.size - c);
      sums += load_as<Doubles>(&query_[c]) * __builtin_convertvector(x, Doubles);
    }
    double s = 0;
    for (int k = 0; k < WIDTH; ++k) s += sums[k];
    s *= a.scale;
    if (a.softcap > 0) s = a.softcap * std::tanh(s / a.softcap);
    if (a.bias) s += narrowed(number_at(a.bias.data, a.bias.type, cell(a.bias, p, j)));
    if (a.slopes) {
      int64_t away = p.i + a.offset[p.row] - j;
      s -= double(a.slopes[p.head * a.group + p.group]) * double(away < 0 ? -away : away);
    }
    if (a.mask && a.mask.type != Type::boolean)
      s += narrowed(number_at(a.mask.data, a.mask.type, cell(a.mask, p, j)));
    return s;
  }

  static void put_doubles(double* to, Floats x) {
    Doubles wide = __builtin_convertvector(x, Doubles);
    std::memcpy(to, &wide, sizeof wide);
  }

  Range range_{0, 0};
  bool any_ = false;
  double lse_ = 0;
  Buffer<double> weights_, query_, context_;
  Buffer<uint8_t> visible_;
};

// Computes output, log-sum-exp and weights of one query.
inline void attend_exactly(const Attention& a, const Place& p, ExactRow& row) {
  row.compute(a, p);
  int64_t out = cell(a.out, p, 0);
  const double* context = row.context(a, p);
  for (int64_t c = 0; c < a.value_size; ++c) put(a.out, out + c, float(context[c]));
  if (a.lse) static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = row.lse();
  if (!a.weights) return;
  float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, 0);
  for (int64_t j = 0; j < a.keys[p.row]; ++j) {
    bool inside = j >= row.range().begin && j < row.range().end;
    weights[j] = inside && row.visible(j) ? float(row.weight(j)) : 0.0f;
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
