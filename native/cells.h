// The memory addresses of numbers, and the keys that a query may see.
#pragma once

#include "half.h"

namespace qkv {
namespace QKV_VARIANT {

struct Place {
  int64_t row, head, group, i;
};

struct Range {
  int64_t begin, end;
};

inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

inline int64_t rounded_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

inline int64_t cell(const Cells& cells, const Place& p, int64_t j) {
  return cells.rows[p.row] + p.head * cells.head + p.group * cells.group + p.i * cells.i +
         j * cells.j;
}

// The range of keys that lengths, causality and window allow query i of a row to see.
inline Range keys_of(const Attention& a, int64_t row, int64_t i) {
  if (i >= a.query_length[row]) return {0, 0};
  int64_t at = i + a.offset[row];
  int64_t begin = a.left >= FAR ? 0 : at_least(0, at - a.left);
  int64_t end = a.key_length[row];
  if (a.right < FAR) end = at_least(0, at_most(end, at + a.right + 1));
  return {at_most(begin, end), end};
}

// Whether the masks let query i see key j; key j must be in the range `keys_of`.
inline bool mask_allows(const Attention& a, const Place& p, int64_t j) {
  if (a.mask) {
    double m = number_at(a.mask.data, a.mask.type, cell(a.mask, p, j));
    if (a.mask.type == Type::boolean ? m == 0 : m == -HUGE_VAL) return false;
  }
  return !a.bias || number_at(a.bias.data, a.bias.type, cell(a.bias, p, j)) != -HUGE_VAL;
}

// Clips a finite number, which will be added to scores, to the range of float32.
inline double narrowed(double x) {
  const double most = std::numeric_limits<float>::max();
  if (std::isinf(x) || x != x) return x;
  return x > most ? most : x < -most ? -most : x;
}

// Loads the first `count` numbers, at most WIDTH, of an array of any float type as floats.
QKV_INLINE Floats load_floats(const Cells& from, int64_t at, int64_t count) {
  if (from.type == Type::float32) {
    const float* x = static_cast<const float*>(from.data) + at;
    return count >= WIDTH ? load(x) : load_some(x, count);
  }
  const uint16_t* x = static_cast<const uint16_t*>(from.data) + at;
  HalfBits bits{};
  if (count >= WIDTH)
    bits = load_as<HalfBits>(x);
  else
    for (int k = 0; k < WIDTH; ++k) bits[k] = k < count ? x[k] : 0;
  return from.type == Type::float16 ? from_float16(bits) : from_bfloat16(bits);
}

// Stores one number in the type of the cells.
inline void put(const Cells& out, int64_t at, float x) {
  if (out.type == Type::float32) static_cast<float*>(out.data)[at] = x;
  if (out.type == Type::float16) static_cast<uint16_t*>(out.data)[at] = to_float16(x);
  if (out.type == Type::bfloat16) static_cast<uint16_t*>(out.data)[at] = to_bfloat16(x);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
