// left.T @ right of two arrays with many rows: the gradient of a weight, and on the way the sums of
// the columns, which are the gradient of a bias.
//
// Depth is cut into blocks by the shapes alone, each summed in registers and then added to the
// result, so that bits do not depend on who computes what.
#pragma once

#include <atomic>

#include "buffer.h"
#include "columns.h"
#include "linear.h"
#include "problem.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

constexpr int64_t OUTER_DEPTH = 256;              // of a block: a panel of it nearly fills the L1 cache
constexpr int64_t OUTER_ROWS = 196 / TILE * TILE;  // whose columns of a block are copied at a time

// TILE rows of one panel: left is [depth][TILE], right [depth][PANEL].
inline void multiply_columns(const float* left, const float* right, int64_t depth, float* sums) {
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
  QKV_UNROLL for (int r = 0; r < TILE; ++r) {
    store(sums + r * PANEL, c[r][0]);
    store(sums + r * PANEL + WIDTH, c[r][1]);
  }
}

inline void outer(const Outer& p, int threads) {
  const int64_t panels = panels_of(p.columns);
  const int64_t chunks = (p.rows + OUTER_ROWS - 1) / OUTER_ROWS;
  const int64_t blocks = p.depth > 0 ? (p.depth + OUTER_DEPTH - 1) / OUTER_DEPTH : 1;
  const double work = double(p.rows) * double(p.columns) * double(p.depth);
  if (1 + work / (1 << 18) < threads) threads = int(1 + work / (1 << 18));
  int64_t groups = 1;
  while (threads > 1 && groups < panels && chunks * groups < 4 * threads) groups *= 2;
  if (groups > panels) groups = panels;
  if (p.left_sums) std::memset(p.left_sums, 0, size_t(p.rows) * sizeof(float));
  if (p.right_sums) std::memset(p.right_sums, 0, size_t(p.columns) * sizeof(float));

  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Buffer<float> lefts, right;
    lefts.need(size_t(OUTER_ROWS * OUTER_DEPTH + PANEL));
    right.need(size_t(PANEL * OUTER_DEPTH));
    alignas(64) float sums[TILE * PANEL];
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = chunk * OUTER_ROWS;
      const int64_t rows = p.rows - first < OUTER_ROWS ? p.rows - first : OUTER_ROWS;
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = p.depth * block / blocks;
        const int64_t depth = p.depth * (block + 1) / blocks - begin;
        for (int64_t r = 0; r < rows; r += TILE)
          copy_columns<TILE>(p.left + begin * p.left_step + first + r, p.left_step, depth,
                             rows - r < TILE ? rows - r : TILE, lefts.data() + r * depth,
                             p.left_sums && group == 0 ? p.left_sums + first + r : nullptr);
        const int64_t last = panels * (group + 1) / groups;
        for (int64_t panel = panels * group / groups; panel < last; ++panel) {
          const int64_t column = panel * PANEL, columns = p.columns - column;
          copy_columns<PANEL>(p.right + begin * p.right_step + column, p.right_step, depth,
                              columns < PANEL ? columns : PANEL, right.data(),
                              p.right_sums && chunk == 0 ? p.right_sums + column : nullptr);
          for (int64_t r = 0; r < rows; r += TILE) {
            multiply_columns(lefts.data() + r * depth, right.data(), depth, sums);
            for (int64_t i = 0; i < TILE && r + i < rows; ++i) {
              float* y = p.y + (first + r + i) * p.y_step + column;
              Floats low = load(sums + i * PANEL), high = load(sums + i * PANEL + WIDTH);
              if (block > 0) {
                low += take_some(y, columns);
                high += take_some(y + WIDTH, columns - WIDTH);
              }
              put_some(y, low, columns);
              put_some(y + WIDTH, high, columns - WIDTH);
            }
          }
        }
      }
    }
  });
}

}  // namespace QKV_BODY
}  // namespace qkv
