// A summary of attention: the largest weights of each query, and the sum of the weights of each key.
//
// After the log-sum-exp of each query is known, a second pass over the keys computes the same scores
// again. Only one tile of weights is in memory at any time.
#pragma once

#include "attention.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int64_t SHARES = 8;  // the number of parts of a head's queries, whose sums are added in order

// Inserts (weight, j) into the `count` largest weights, which are sorted. Of equal weights, the first
// stays first.
inline void keep_largest(float weight, int64_t j, int64_t count, float* weights, int64_t* indices) {
  int64_t k = count - 1;
  if (indices[k] >= 0 && !(weight > weights[k])) return;
  for (; k > 0 && (indices[k - 1] < 0 || weight > weights[k - 1]); --k) {
    weights[k] = weights[k - 1];
    indices[k] = indices[k - 1];
  }
  weights[k] = weight;
  indices[k] = j;
}

// The part of the summary for one query.
struct Kept {
  float* weights;
  int64_t* indices;
  int64_t count;

  Kept(const Attention& a, const Place& p)
      : weights(static_cast<float*>(a.top_weights.data) + cell(a.top_weights, p, 0)),
        indices(static_cast<int64_t*>(a.top_indices.data) + cell(a.top_indices, p, 0)),
        count(a.top_k) {}
  // Returns the smallest kept weight; only larger weights are inserted.
  float least() const { return indices[count - 1] < 0 ? -1.0f : weights[count - 1]; }
};

// Computes all weights of a query in double precision.
inline void summarize_exactly(const Attention& a, const Place& p, ExactRow& row,
                                double* received) {
  row.compute(a, p);
  Kept kept(a, p);
  for (int64_t j = row.range().begin; j < row.range().end; ++j) {
    if (!row.visible(j)) continue;
    worked(kept.count);
    keep_largest(float(row.weight(j)), j, kept.count, kept.weights, kept.indices);
    received[j] += row.weight(j);
  }
}

// Converts the scores of one query in columns begin ... end of a block to weights; masked keys get -1.
inline void weigh_columns(const Attention& a, const Place& p, int64_t block, Range columns,
                          float factor, float* scores, ExactRow& exact) {
  double lse = static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)];
  float base = float(lse / LN_2), rest = float(lse / LN_2 - double(base));
  Ints odd{};
  for (int64_t c = columns.begin; c < columns.end; c += WIDTH) {
    Floats s = load(scores + c);
    Floats weights = exp2<SHOWN>(s * factor - base - rest);
    odd |= ~(weights <= splat(1.5f));
    store(scores + c, select(s == splat(-INF), splat(-1.0f), weights));
  }
  if (all_zero(odd)) return;
  exact.compute(a, p);  // a score was outside the range of float32
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    int64_t j = block * BLOCK + c;
    bool inside = j >= exact.range().begin && j < exact.range().end && exact.visible(j);
    scores[c] = inside ? float(exact.weight(j)) : -1.0f;
  }
}

inline void keep_columns(const Kept& kept, int64_t block, Range columns, const float* weights) {
  float least = kept.least();
  for (int64_t c = columns.begin; c < columns.end; c += WIDTH) {
    if (all_zero((Ints)(load(weights + c) > splat(least)))) continue;
    for (int64_t k = c; k < c + WIDTH; ++k) {
      if (!(weights[k] > least)) continue;
      keep_largest(weights[k], block * BLOCK + k, kept.count, kept.weights, kept.indices);
      least = kept.least();
    }
  }
}

template <class Product, int ROWS>
void summarize_tile(const Attention& a, const Chunk& chunk, const Packed& head,
                    const TileOfBlock& tile, Scratch& s) {
  Range columns{tile.seen.begin / PANEL * PANEL, rounded_up(tile.seen.end, PANEL)};
  float* scores = s.scores.data();
  multiply_keys<Product, ROWS>(a, head, tile.block, columns,
                               &s.queries[size_t(tile.begin * STEP)], scores);
  float factor = factor_of(a, tile.plain);
  for (int i = 0; i < tile.rows; ++i) {
    float* row = scores + i * STEP;
    if (s.exact[tile.begin + i]) {
      for (int64_t c = columns.begin; c < columns.end; ++c) row[c] = -1;
      continue;
    }
    Place p = chunk.first;
    p.i += tile.begin + i;
    Range seen = columns_of(a, p.row, p.i, tile.block);
    if (!tile.plain)
      finish_row(a, p, tile.block * BLOCK, columns.begin, columns.end, seen, row, s.row);
    else if (seen.begin > columns.begin || seen.end < columns.end)
      hide_outside(row, columns.begin, columns.end, seen);
    weigh_columns(a, p, tile.block, columns, factor, row, s.exact_row);
    keep_columns(Kept(a, p), tile.block, columns, row);
    worked((columns.end - columns.begin) * a.top_k);
  }
  double* received = head.received.data() + chunk.part * a.keys[chunk.first.row] +
                     tile.block * BLOCK;
  for (int64_t c = columns.begin; c < columns.end; c += WIDTH) {
    Floats sums{};
    for (int i = 0; i < tile.rows; ++i) sums += larger(Floats{}, load(scores + i * STEP + c));
    int64_t count = at_most(WIDTH, tile.seen.end - c);
    for (int64_t k = 0; k < count; ++k) received[c + k] += double(sums[k]);
  }
}

template <class Product, int... ROWS>
QKV_INLINE TileFunction summarize_function(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction by_rows[] = {summarize_tile<Product, ROWS + 1>...};
  return by_rows[(rows - 1) / Product::ALIGN];
}

template <class Product>
void summarize_chunk(const Attention& a, const Chunk& chunk, const Packed& head, Scratch& s) {
  const Place& first = chunk.first;
  int64_t real = at_least(0, at_most(chunk.count, a.query_length[first.row] - first.i));
  for (int64_t r = 0; r < chunk.count; ++r) {
    Place p = first;
    p.i += r;
    Kept kept(a, p);
    for (int64_t k = 0; k < kept.count; ++k) kept.indices[k] = -1, kept.weights[k] = 0;
    if (r >= real) continue;
    double lse = static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)];
    s.exact[r] = !(std::fabs(lse) < 0.9 * COARSE * LN_2);  // includes rows with inexact sums
    if (s.exact[r])
      summarize_exactly(a, p, s.exact_row,
                          head.received.data() + chunk.part * a.keys[first.row]);
  }
  load_queries<Product>(a, first, real, s);
  for_each_tile<Product>(a, chunk, real, [&](int64_t rows, const TileOfBlock& tile) {
    summarize_function<Product>(rows, typename Product::Heights{})(a, chunk, head, tile, s);
  });
}

// The queries of a head are divided into parts, and each part has one sum of weights for each key.
// Adds the sums of all parts, in the order of the parts.
inline void join_received(const Attention& a, int64_t row, int64_t kv_head, const Packed& head,
                          int64_t parts) {
  int64_t keys = a.keys[row];
  for (int64_t g = 0; g < a.group; ++g) {
    double* to = static_cast<double*>(a.received.data) + cell(a.received, {row, kv_head, g, 0}, 0);
    for (int64_t j = 0; j < keys; ++j) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part)
        sum += head.received[size_t((g * parts + part) * keys + j)];
      to[j * a.received.j] = sum;
    }
  }
}

template <class Product>
void summarize_blocks(const Attention& a, int threads) {
  int64_t longest = 0, most_keys = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    longest = at_least(longest, a.length[row]);
    most_keys = at_least(most_keys, a.keys[row]);
  }
  int64_t most = at_least(QUERIES_OF<Product>, (longest + SHARES - 1) / SHARES);
  auto compute = [&](const Chunk& share, Packed& head, Scratch& s) {
    for (int64_t begin = 0; begin < share.count; begin += QUERIES_OF<Product>) {
      Chunk chunk = share;
      chunk.first.i += begin;
      chunk.count = at_most(QUERIES_OF<Product>, share.count - begin);
      summarize_chunk<Product>(a, chunk, head, s);
    }
  };
  auto join = [&](int64_t row, int64_t kv_head, Packed& head) {
    join_received(a, row, kv_head, head, (a.length[row] + most - 1) / most);
  };
  int64_t parts = (longest + most - 1) / most;
  for_each_chunk<Product, Scratch>(a, threads, {most, false, a.group * parts * most_keys}, compute, join);
}

template <class Product>
void summarize_in(const Attention& a, int threads) {
  attend_blocks<Product>(a, threads);
  summarize_blocks<Product>(a, threads);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
