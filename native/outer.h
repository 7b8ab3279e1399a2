// Computes left.T @ right of two arrays with many rows (the gradient of a weight), and the sums of
// their columns (the gradient of a bias).
//
// The depth is divided into blocks that depend only on the shapes. Each block is summed in registers
// and then added to the result, so the result does not depend on the number of threads.
#pragma once

#include <atomic>

#include "buffer.h"
#include "cells.h"
#include "columns.h"
#include "linear.h"
#include "problem.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

// Copies of the columns of left and right for one block; each copy fits into the L2 cache.
constexpr int64_t OUTER_DEPTH = 384;
constexpr int64_t OUTER_ROWS = 196 / TILE * TILE;
constexpr int64_t OUTER_COLUMNS = 128;

// Computes one block of TILE rows and one panel from left [depth][TILE] and right [depth][PANEL].
// Writes or adds the first `rows` rows to the result.
inline void outer_tile(const Outer& p, const float* left, const float* right, int64_t depth,
                       int64_t row, int64_t rows, int64_t column, bool add) {
  const int64_t columns = p.columns - column;
  float* y = p.y + row * p.y_step + column;
  if (add)
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_prefetch(y + r * p.y_step, 1);
      __builtin_prefetch(y + r * p.y_step + WIDTH, 1);
    }
  Floats c[TILE][2];
  QKV_UNROLL for (int r = 0; r < TILE; ++r) c[r][0] = c[r][1] = Floats{};
  for (int64_t k = 0; k < depth; ++k, left += TILE, right += PANEL) {
    Floats w0 = load(right), w1 = load(right + WIDTH);
    QKV_UNROLL for (int r = 0; r < TILE; ++r) {
      Floats one = splat(left[r]);
      c[r][0] = Single::add_product(c[r][0], one, w0);
      c[r][1] = Single::add_product(c[r][1], one, w1);
    }
  }
  if (add && columns >= PANEL) {
    QKV_UNROLL for (int r = 0; r < TILE; ++r) {
      if (r >= rows) break;
      store(y + r * p.y_step, load(y + r * p.y_step) + c[r][0]);
      store(y + r * p.y_step + WIDTH, load(y + r * p.y_step + WIDTH) + c[r][1]);
    }
    return;
  }
  alignas(64) float sums[TILE * PANEL];
  QKV_UNROLL for (int r = 0; r < TILE; ++r) {
    store(sums + r * PANEL, c[r][0]);
    store(sums + r * PANEL + WIDTH, c[r][1]);
  }
  for (int64_t r = 0; r < rows; ++r, y += p.y_step) {
    Floats low = load(sums + r * PANEL), high = load(sums + r * PANEL + WIDTH);
    if (add) {
      low += take_some(y, columns);
      high += take_some(y + WIDTH, columns - WIDTH);
    }
    put_some(y, low, columns);
    put_some(y + WIDTH, high, columns - WIDTH);
  }
}

inline void outer(const Outer& p, int threads) {
  const int64_t panels = panels_of(p.columns);
  const int64_t chunks = (p.rows + OUTER_ROWS - 1) / OUTER_ROWS;
  const int64_t blocks = p.depth > 0 ? (p.depth + OUTER_DEPTH - 1) / OUTER_DEPTH : 1;
  threads = threads_for_product(double(p.rows) * double(p.columns) * double(p.depth), threads);
  int64_t groups = 1;
  while (threads > 1 && groups < panels && chunks * groups < 4 * threads) groups *= 2;
  if (groups > panels) groups = panels;
  if (p.left_sums) std::memset(p.left_sums, 0, size_t(p.rows) * sizeof(float));
  if (p.right_sums) std::memset(p.right_sums, 0, size_t(p.columns) * sizeof(float));

  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    // tiles are slightly further apart than their length, so that they do not share cache sets
    Buffer<float> lefts(size_t((OUTER_DEPTH * TILE + PANEL) * (OUTER_ROWS / TILE)));
    Buffer<float> rights(size_t((OUTER_DEPTH + 1) * OUTER_COLUMNS));
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = chunk * OUTER_ROWS, rows = at_most(OUTER_ROWS, p.rows - first);
      const int64_t begin = panels * group / groups * PANEL;
      const int64_t end = at_most(p.columns, panels * (group + 1) / groups * PANEL);
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t at = p.depth * block / blocks;
        const int64_t depth = p.depth * (block + 1) / blocks - at;
        const int64_t left_step = depth * TILE + PANEL, right_step = (depth + 1) * PANEL;
        copy_columns<TILE>(p.left + at * p.left_step + first, p.left_step, depth, rows, lefts.data(),
                           left_step, p.left_sums && group == 0 ? p.left_sums + first : nullptr);
        for (int64_t column = begin; column < end; column += OUTER_COLUMNS) {
          const int64_t columns = at_most(OUTER_COLUMNS, end - column);
          copy_columns<PANEL>(p.right + at * p.right_step + column, p.right_step, depth, columns,
                              rights.data(), right_step,
                              p.right_sums && chunk == 0 ? p.right_sums + column : nullptr);
          for (int64_t c = 0; c < columns; c += PANEL)
            for (int64_t r = 0; r < rows; r += TILE)
              outer_tile(p, lefts.data() + r / TILE * left_step, rights.data() + c / PANEL * right_step,
                         depth, first + r, at_most(TILE, rows - r), column + c, block > 0);
          worked(rows * columns * depth);
        }
      }
    }
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
