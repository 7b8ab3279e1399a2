// The steps from a row of products to the softmax: scale, softcap, bias, ALiBi and masks. After these
// steps, scores are exponents of 2, and masked scores are -infinity.
#pragma once

#include "pack.h"

namespace qkv {
namespace QKV_VARIANT {

// Scratch buffers for bias and masks that are not contiguous floats (or bytes).
struct RowScratch {
  alignas(64) float numbers[STEP];
  alignas(64) uint8_t bytes[STEP];
};

// Whether each score is only a product times a positive factor, and keys are masked only by
// lengths, causality and the window.
inline bool is_plain(const Attention& a) {
  double factor = a.scale * double(LOG2_E);
  return !(a.softcap > 0) && !a.bias && !a.mask && !a.slopes && factor > 1e-30 && factor < 1e30;
}

// Returns `count` numbers of a row of cells as floats; only the first `valid` numbers exist.
inline const float* numbers_of(const Cells& cells, int64_t at, int64_t count, int64_t valid,
                               float* scratch) {
  if (cells.type == Type::float32 && cells.j == 1 && valid >= count)
    return static_cast<const float*>(cells.data) + at;
  if (valid > count) valid = count;
  if (cells.j == 1 && cells.type != Type::float64) {
    for (int64_t k = 0; k < count; k += WIDTH)
      store(scratch + k, load_floats(cells, at + k, at_least(0, valid - k)));
  } else if (cells.j == 0) {
    float x = float(narrowed(number_at(cells.data, cells.type, at)));
    for (int64_t k = 0; k < count; ++k) scratch[k] = x;
  } else {
    for (int64_t k = 0; k < count; ++k)
      scratch[k] =
          k < valid ? float(narrowed(number_at(cells.data, cells.type, at + k * cells.j))) : 0;
  }
  return scratch;
}

// Returns `count` booleans of a row of cells. The row ends after `valid` booleans: if `count` is
// larger, the booleans past the end are 0.
inline const uint8_t* bytes_of(const Cells& cells, int64_t at, int64_t count, int64_t valid,
                               uint8_t* scratch) {
  const uint8_t* bytes = static_cast<const uint8_t*>(cells.data) + at;
  if (cells.j == 1 && valid >= count) return bytes;
  for (int64_t k = 0; k < count; ++k) scratch[k] = k < valid ? bytes[k * cells.j] : 0;
  return scratch;
}

// Sets columns begin ... end (multiples of WIDTH) to -infinity, except columns in `seen`.
inline void hide_outside(float* scores, int64_t begin, int64_t end, Range seen) {
  for (int64_t c = begin; c < end; c += WIDTH) {
    if (c >= seen.begin && c + WIDTH <= seen.end) continue;
    Ints column = lanes() + int32_t(c);
    Ints inside = (column >= int32_t(seen.begin)) & (column < int32_t(seen.end));
    store(scores + c, select(inside, load(scores + c), splat(-INF)));
  }
}

// Multiplies scores by the factor `by`, and adds `numbers` times log2(e). If an element of
// `numbers` is -infinity, the score at its position is masked. With AGAIN, scores that were masked
// before stay masked. Finite sums stay finite: the lowest float, which is often used as a mask,
// gives a key almost no weight, and does not mask the key.
template <bool AGAIN>
inline void add_numbers(float* scores, Floats by, const float* numbers, int64_t count) {
  const Floats lowest = splat(std::numeric_limits<float>::lowest()), hidden = splat(-INF);
  for (int64_t c = 0; c < count; c += WIDTH) {
    Floats s = load(scores + c), x = load(numbers + c);
    Ints hide = x == hidden;
    if (AGAIN) hide |= s == hidden;
    store(scores + c, select(hide, hidden, larger(lowest, s * by + x * LOG2_E)));
  }
}

// |away - lane|
QKV_INLINE Floats distances(int64_t away) {
  bool exact = away < (1 << 23) && away > -(1 << 23);
  Floats distance = to_floats((exact ? int32_t(away) : 0) - lanes());
  if (!exact) distance += float(away);
  return (Floats)((Ints)distance & 0x7fffffff);
}

// scores * by - slope * |away - column|
inline void add_alibi(float* scores, Floats by, float slope, int64_t away, int64_t count) {
  for (int64_t c = 0; c < count; c += WIDTH)
    store(scores + c, load(scores + c) * by - slope * distances(away - c));
}

// Turns the products of query `p.i` with columns begin ... end of a block of keys into scores.
// `first` is the key of column 0, and `seen` are the columns of the keys that the query may see.
inline void finish_row(const Attention& a, const Place& p, int64_t first, int64_t begin,
                       int64_t end, Range seen, float* row, RowScratch& scratch) {
  float* scores = row + begin;
  int64_t count = end - begin, valid = a.keys[p.row] - first - begin;
  Floats by = splat(float(a.scale * double(LOG2_E)));  // 1 after a step has applied the scale
  if (a.softcap > 0) {
    Floats scale = splat(float(a.scale)), inner = splat(float(1 / a.softcap));
    Floats outer = splat(float(a.softcap * double(LOG2_E)));
    for (int64_t c = 0; c < count; c += WIDTH)
      store(scores + c, tanh(load(scores + c) * scale * inner) * outer);
    by = splat(1);
  }
  if (a.slopes) {
    float slope = a.slopes[p.head * a.group + p.group] * LOG2_E;
    add_alibi(scores, by, slope, p.i + a.offset[p.row] - first - begin, count);
    by = splat(1);
  }
  if (a.bias) {
    int64_t at = cell(a.bias, p, first + begin);
    add_numbers<false>(scores, by, numbers_of(a.bias, at, count, valid, scratch.numbers), count);
    by = splat(1);
  }
  if (a.mask && a.mask.type != Type::boolean) {
    int64_t at = cell(a.mask, p, first + begin);
    const float* numbers = numbers_of(a.mask, at, count, valid, scratch.numbers);
    (a.bias ? add_numbers<true> : add_numbers<false>)(scores, by, numbers, count);
    by = splat(1);
  } else if (a.mask) {
    int64_t at = cell(a.mask, p, first + begin);
    const uint8_t* may = bytes_of(a.mask, at, count, valid, scratch.bytes);
    for (int64_t c = 0; c < count; c += WIDTH) {
      Ints allowed = __builtin_convertvector(load_as<Bytes>(may + c), Ints) != 0;
      store(scores + c, select(allowed, load(scores + c) * by, splat(-INF)));
    }
    by = splat(1);
  }
  if (!(a.softcap > 0) && !a.slopes && !a.bias && !a.mask)  // here the scale is 0, negative or extreme
    for (int64_t c = 0; c < count; c += WIDTH) store(scores + c, load(scores + c) * by);
  if (seen.begin > begin || seen.end < end) hide_outside(row, begin, end, seen);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
