// One query at a time, in double precision: for rows in which float32 met infinity or NaN.
//
// The fast loops need not ask which numbers are finite: a row whose result is not, or that saw no
// finite score, is computed again here. So what is hidden never shows, what is visible always does,
// and sums that leave float32's range come out right.
#pragma once

#include "buffer.h"
#include "simd.h"

namespace qkv {
namespace QKV_BODY {

struct Place {
  int64_t row, head, group, i;
};

struct Range {
  int64_t begin, end;
};

inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

inline int64_t cell(const Cells& cells, const Place& p, int64_t j) {
  return cells.rows[p.row] + p.head * cells.head + p.group * cells.group + p.i * cells.i +
         j * cells.j;
}

// The keys that lengths, causality and window leave to query i of a row.
inline Range keys_of(const Attention& a, int64_t row, int64_t i) {
  if (i >= a.query_length[row]) return {0, 0};
  int64_t at = i + a.offset[row];
  int64_t begin = a.left >= FAR ? 0 : at_least(0, at - a.left);
  int64_t end = a.key_length[row];
  if (a.right < FAR) end = at_least(0, at_most(end, at + a.right + 1));
  return {at_most(begin, end), end};
}

// Whether masks let it be seen; `keys_of` has been asked before.
inline bool mask_allows(const Attention& a, const Place& p, int64_t j) {
  if (a.mask) {
    double m = number_at(a.mask.data, a.mask.type, cell(a.mask, p, j));
    if (a.mask.type == Type::boolean ? m == 0 : m == -HUGE_VAL) return false;
  }
  return !a.bias || number_at(a.bias.data, a.bias.type, cell(a.bias, p, j)) != -HUGE_VAL;
}

// A number that is added to scores: finite in float64, finite in float32.
inline double narrowed(double x) {
  const double most = std::numeric_limits<float>::max();
  if (std::isinf(x) || x != x) return x;
  return x > most ? most : x < -most ? -most : x;
}

inline double score_of(const Attention& a, const Place& p, int64_t j) {
  int64_t q = cell(a.query, p, 0), k = cell(a.key, {p.row, p.head, p.group, j}, 0);
  double s = 0;
  for (int64_t c = 0; c < a.size; ++c)
    s += number_at(a.query.data, a.query.type, q + c) * number_at(a.key.data, a.key.type, k + c);
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

// Weights of one query in double precision, and its log-sum-exp.
class CarefulRow {
 public:
  void need(int64_t keys) {
    weights_.need(size_t(keys) + 1);
    visible_.need(size_t(keys) + 1);
  }

  void compute(const Attention& a, const Place& p) {
    range_ = keys_of(a, p.row, p.i);
    int64_t count = range_.end - range_.begin;
    need(count);
    double top = -HUGE_VAL;
    any_ = false;
    const float* sinks = a.sinks + (p.head * a.group + p.group) * a.num_sinks;
    for (int64_t k = 0; k < a.num_sinks; ++k) top = sinks[k] > top ? sinks[k] : top;
    for (int64_t k = 0; k < count; ++k) {
      visible_[k] = mask_allows(a, p, range_.begin + k);
      if (!visible_[k]) continue;
      any_ = true;
      double s = weights_[k] = score_of(a, p, range_.begin + k);
      if (s > top || s != s) top = s;  // NaN stays: nothing is above it
    }
    if (top == -HUGE_VAL) top = 0;
    double total = 0;
    for (int64_t k = 0; k < a.num_sinks; ++k) total += std::exp(double(sinks[k]) - top);
    if (top == top)
      for (int64_t k = 0; k < count; ++k)
        if (visible_[k]) total += weights_[k] = std::exp(weights_[k] - top);
    lse_ = top != top ? top : top + std::log(total);
    for (int64_t k = 0; k < count; ++k)
      weights_[k] = !visible_[k] ? 0 : top != top ? top : weights_[k] / total;
  }

  double lse() const { return lse_; }
  bool any() const { return any_; }
  Range range() const { return range_; }
  double weight(int64_t j) const { return weights_[j - range_.begin]; }
  bool visible(int64_t j) const { return any_ && visible_[j - range_.begin]; }

  // The weighted mean of the values, column by column.
  double context(const Attention& a, const Place& p, int64_t column) const {
    double mean = 0;
    if (!any_) return 0;
    if (lse_ != lse_) return lse_;
    for (int64_t j = range_.begin; j < range_.end; ++j)
      if (visible(j))
        mean += weight(j) * number_at(a.value.data, a.value.type,
                                      cell(a.value, {p.row, p.head, p.group, j}, column));
    return mean;
  }

 private:
  Range range_{0, 0};
  bool any_ = false;
  double lse_ = 0;
  Buffer<double> weights_;
  Buffer<uint8_t> visible_;
};

inline void put(const Cells& out, int64_t at, float x) {
  if (out.type == Type::float32) static_cast<float*>(out.data)[at] = x;
  if (out.type == Type::float16) static_cast<uint16_t*>(out.data)[at] = to_float16(x);
  if (out.type == Type::bfloat16) static_cast<uint16_t*>(out.data)[at] = to_bfloat16(x);
}

// Out, log-sum-exp and weights of one query.
inline void attend_carefully(const Attention& a, const Place& p, CarefulRow& row) {
  row.compute(a, p);
  int64_t out = cell(a.out, p, 0);
  for (int64_t c = 0; c < a.value_size; ++c) put(a.out, out + c, float(row.context(a, p, c)));
  if (a.lse) static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = row.lse();
  if (!a.weights) return;
  float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, 0);
  for (int64_t j = 0; j < a.keys[p.row]; ++j) {
    bool inside = j >= row.range().begin && j < row.range().end;
    weights[j] = inside && row.visible(j) ? float(row.weight(j)) : 0.0f;
  }
}

}  // namespace QKV_BODY
}  // namespace qkv
