// Attention of many queries: each chunk of queries reads the keys block by block (Dao et al. 2022).
#pragma once

#include "schedule.h"
#include "softmax.h"

namespace qkv {
namespace QKV_VARIANT {

// The queries of a chunk; a chunk fits in the cache.
template <class Product>
constexpr int QUERIES_OF = Product::ALIGN > 1 ? 128 : 112 / TILE * TILE;
constexpr int QUERIES = QUERIES_OF<Single>;
constexpr int TILES = QUERIES / TILE;  // the tiles of such a chunk; with `Tiles`, a chunk has fewer
constexpr int MOST_QUERIES = QUERIES_OF<OfBfloat16> > QUERIES ? QUERIES_OF<OfBfloat16> : QUERIES;

// The buffers that a worker needs for its tasks, in addition to the packed head.
struct Scratch {
  Buffer<float> queries, scores, context;
  Running rows[TILES];
  bool exact[MOST_QUERIES];  // marks queries to compute again in double precision
  RowScratch row;
  ExactRow exact_row;

  // Allocates all memory that a task may need, so that no task fails for lack of memory.
  void need(int64_t keys, int64_t size, int64_t value_size) {
    queries.need(MOST_QUERIES * STEP);
    scores.need(HIGHEST * STEP);
    context.need(size_t(MOST_QUERIES * rounded_up(value_size, PANEL)));
    exact_row.need(keys, size, value_size);
  }
};

// One tile of queries and one block of keys.
struct TileOfBlock {
  int64_t index, begin;     // the tile, and its first row, within its chunk
  int64_t rows;
  int64_t block;
  Range seen;               // the columns of the block that rows of the tile may see
  bool plain;
};

inline Range columns_of(const Attention& a, int64_t row, int64_t i, int64_t block) {
  Range keys = keys_of(a, row, i);
  int64_t first = block * BLOCK;
  int64_t begin = at_least(keys.begin - first, 0);
  int64_t end = at_least(at_most(keys.end - first, BLOCK), 0);
  return {at_most(begin, end), end};
}

// Returns the factor that a tile's scores still need: `finish_row` has already applied the scale to
// scores that are not plain, so their factor is 1.
inline float factor_of(const Attention& a, bool plain) {
  return plain ? float(a.scale * double(LOG2_E)) : 1.0f;
}

// Computes the products of a tile's rows with panels of keys, in some columns. The last panel may be
// half a panel.
template <class Product, int ROWS>
inline void multiply_panels(const float* keys, int64_t depth, Range columns, const float* queries,
                            float* scores) {
  int64_t c = columns.begin;
  if constexpr (Product::ALIGN > 1) {
    for (; c < columns.end; c += PANEL)
      Product::template multiply<ROWS>(queries, STEP, keys + c * depth, depth, scores + c, STEP, false);
  } else {
    for (; c + PANEL <= columns.end; c += PANEL)
      multiply_tile<Product, ROWS, STEP>(
          queries, keys + c * depth, depth,
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            store(scores + i * STEP + c, left);
            store(scores + i * STEP + c + WIDTH, right);
          },
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            float* to = scores + i * STEP + c;
            store(to, load(to) + left);
            store(to + WIDTH, load(to + WIDTH) + right);
          });
    if (c < columns.end)
      multiply_tile<Product, ROWS, STEP, PANEL, 1>(
          queries, keys + c * depth, depth,
          [&](int i, Floats sum, Floats) QKV_LAMBDA { store(scores + i * STEP + c, sum); },
          [&](int i, Floats sum, Floats) QKV_LAMBDA {
            float* to = scores + i * STEP + c;
            store(to, load(to) + sum);
          });
  }
}

// Computes the scores of a tile's rows with the keys of a block.
template <class Product, int ROWS>
inline void multiply_keys(const Attention& a, const Packed& head, int64_t block, Range columns,
                          const float* queries, float* scores) {
  multiply_panels<Product, ROWS>(keys_at<Product>(head, a.size, block), depth_of<Product>(a.size),
                                 columns, queries, scores);
}

template <class Product, int ROWS>
void tile_of_block(const Attention& a, const Chunk& chunk, const Packed& head,
                   const TileOfBlock& tile, Scratch& s) {
  const Place& first = chunk.first;
  Range columns{tile.seen.begin / PANEL * PANEL,
                rounded_up(tile.seen.end, WIDTH * Product::DEPTH)};
  float* scores = s.scores.data();
  multiply_keys<Product, ROWS>(a, head, tile.block, columns, &s.queries[tile.begin * STEP],
                               scores);

  bool unsound = head.unsound_blocks[tile.block - head.first];
  float factor = factor_of(a, tile.plain);
  for (int i = 0; i < tile.rows; ++i) {
    Place p = first;
    p.i += tile.begin + i;
    float* row = scores + i * STEP;
    Range seen = columns_of(a, p.row, p.i, tile.block);
    if (!tile.plain)
      finish_row(a, p, tile.block * BLOCK, columns.begin, columns.end, seen, row, s.row);
    else if (seen.begin > columns.begin || seen.end < columns.end)
      hide_outside(row, columns.begin, columns.end, seen);
    if (a.weights) {  // store scores, because the sum is not known yet
      float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, tile.block * BLOCK);
      for (int64_t c = seen.begin; c < seen.end; ++c) weights[c] = row[c];
    }
    if (unsound)
      for (int64_t c = seen.begin; c < seen.end; ++c)
        if (head.unsound[(tile.block - head.first) * BLOCK + c] &&
            mask_allows(a, p, tile.block * BLOCK + c))
          s.exact[tile.begin + i] = true;
  }
  Running& running = s.rows[tile.index];
  exponentiate<Product, ROWS>(scores, columns.begin, columns.end, factor, running);

  Range depth = depths_of<Product>(tile.seen);
  int64_t wide = rounded_up(a.value_size, PANEL);
  int64_t steps = depth_of<Product>(at_most(BLOCK, head.end - tile.block * BLOCK));
  const float* values = values_at<Product>(head, a.value_size, tile.block) + depth.begin * PANEL;
  if constexpr (Product::ALIGN > 1)
    for (int64_t i = 0; i < tile.rows; ++i)
      if (float* context = &s.context[(tile.begin + i) * wide]; running.faded[i] != 1)
        for (int64_t c = 0; c < wide; c += WIDTH) store(context + c, load(context + c) * running.faded[i]);
  for (int64_t c = 0; c < wide; c += PANEL) {
    float* context = &s.context[tile.begin * wide + c];
    if constexpr (Product::ALIGN > 1)
      Product::template multiply<ROWS>(scores + depth.begin, STEP, values + c * steps, depth.end - depth.begin,
                                       context, wide, true);
    else
      multiply_tile<Product, ROWS, STEP>(
          scores + depth.begin, values + c * steps, depth.end - depth.begin,
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            float* to = context + i * wide;
            store(to, load(to) * running.faded[i] + left);
            store(to + WIDTH, load(to + WIDTH) * running.faded[i] + right);
          },
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            float* to = context + i * wide;
            store(to, load(to) + left);
            store(to + WIDTH, load(to + WIDTH) + right);
          });
  }
}

// Converts a row of floats to the type of `out`.
inline void store_row(const Cells& out, int64_t at, const float* row, int64_t count) {
  int64_t c = 0;
  if (out.type == Type::float32)
    for (; c + WIDTH <= count; c += WIDTH)
      store(static_cast<float*>(out.data) + at + c, load(row + c));
  for (; c < count; ++c) put(out, at + c, row[c]);
}

// Converts one row of `a.weights` from scores to weights. `tile_of_block` stored the scores there.
inline void weigh_row(const Attention& a, const Place& p, double lse, float factor) {
  Range keys = keys_of(a, p.row, p.i);
  float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, 0);
  float base = float(lse / LN_2), rest = float(lse / LN_2 - double(base));
  for (int64_t c = keys.begin; c < keys.end; c += WIDTH) {
    Floats scores = load_some(weights + c, keys.end - c);
    store_some(weights + c, exp2<SHOWN>(scores * factor - base - rest), keys.end - c);
  }
}

using TileFunction = void (*)(const Attention&, const Chunk&, const Packed&, const TileOfBlock&,
                              Scratch&);

template <class Product, int... ROWS>
QKV_INLINE TileFunction tile_function(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction by_rows[] = {tile_of_block<Product, ROWS + 1>...};
  return by_rows[(rows - 1) / Product::ALIGN];
}

template <class Product>
inline void load_queries(const Attention& a, const Place& first, int64_t count, Scratch& s) {
  for (int64_t r = 0; r < count; ++r)
    copy_depth<Product>(a.query, cell(a.query, first, 0) + r * a.query.i, a.size,
                        &s.queries[size_t(r * STEP)]);
  for (int64_t r = count; r < rounded_up(count, Product::ALIGN); ++r)
    std::memset(&s.queries[size_t(r * STEP)], 0, size_t(depth_of<Product>(a.size)) * sizeof(float));
}

// Divides the first `real` queries of a chunk into tiles. For one block of keys after the other,
// calls `compute(rows, tile)` for each tile that may see keys of the block.
template <class Product, class Compute>
QKV_INLINE void for_each_tile(const Attention& a, const Chunk& chunk, int64_t real,
                              Compute compute) {
  if (!real) return;
  const Place& first = chunk.first;
  bool plain = is_plain(a);
  int64_t tiles = tiles_of<Product>(real);
  Range keys{keys_of(a, first.row, first.i).begin, keys_of(a, first.row, first.i + real - 1).end};
  for (int64_t block = keys.begin / BLOCK; block * BLOCK < keys.end; ++block) {
    for (int64_t t = 0; t < tiles; ++t) {
      int64_t begin = tile_begin<Product>(real, t), end = tile_begin<Product>(real, t + 1);
      Range seen{columns_of(a, first.row, first.i + begin, block).begin,
                 columns_of(a, first.row, first.i + end - 1, block).end};
      if (seen.begin >= seen.end) continue;
      compute(end - begin, TileOfBlock{t, begin, end - begin, block, seen, plain});
      worked((end - begin) * (seen.end - seen.begin) * (a.size + a.value_size));
    }
  }
}

// Computes the result of a padded query, which sees only its sinks.
inline void finish_padding(const Attention& a, const Place& p) {
  int64_t out = cell(a.out, p, 0);
  for (int64_t c = 0; c < a.value_size; ++c) put(a.out, out + c, 0);
  if (!a.lse) return;
  const float* sinks = a.sinks + (p.head * a.group + p.group) * a.num_sinks;
  double top = -HUGE_VAL, sum = 0;
  for (int64_t k = 0; k < a.num_sinks; ++k) top = sinks[k] > top ? sinks[k] : top;
  double base = top == -HUGE_VAL ? 0 : top;
  for (int64_t k = 0; k < a.num_sinks; ++k) sum += std::exp(double(sinks[k]) - base);
  static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = base + std::log(sum);
}

// The limit for scores (exponents of 2) in float32. Above it, float32 rounds scores so coarsely
// that weights computed from these scores do not match the log-sum-exp, which is a double.
constexpr double COARSE = 1e7;

// Whether the sum of a query's weights is exact enough.
inline bool is_sound(const Running& rows, int64_t i) {
  return rows.total[i] > 0 && rows.total[i] < HUGE_VAL && std::fabs(double(rows.top[i])) <= COARSE;
}

// Divides the context of a tile's `count` queries by their sums, after all keys. Queries that saw
// infinity, NaN or no key are computed again.
inline void finish_rows(const Attention& a, Place p, int64_t count, const Running& rows,
                        const bool* exact, float* context, int64_t wide,
                        ExactRow& exact_row) {
  bool plain = is_plain(a);
  alignas(64) float shares[ROUND];
  for (int i = 0; i < ROUND; ++i) shares[i] = float(1 / rows.given[i]);
  for (int64_t i = 0; i < count; ++i, ++p.i, context += wide) {
    Floats trace{}, share = splat(shares[i]);
    for (int64_t c = 0; c < wide; c += WIDTH) {
      Floats x = load(context + c) * share;
      trace += x * 0.0f;
      store(context + c, x);
    }
    bool sound = is_sound(rows, i);
    if (exact[i] || !sound || !all_zero(trace)) {
      attend_exactly(a, p, exact_row);
      // a summary computes the scores again in float32, so it needs the sum of these float32 scores
      if (a.top_k && sound)
        static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = rows.log_sum_exp(i);
      continue;
    }
    store_row(a.out, cell(a.out, p, 0), context, a.value_size);
    if (!a.lse && !a.weights) continue;
    double lse = rows.log_sum_exp(i);
    if (a.lse) static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = lse;
    if (!a.weights) continue;
    weigh_row(a, p, lse, factor_of(a, plain));
    worked(a.keys[p.row] * EXPONENTIAL);
  }
}

template <class Product>
void attend_chunk(const Attention& a, const Chunk& chunk, const Packed& head, Scratch& s) {
  const Place& first = chunk.first;
  int64_t real = at_least(0, at_most(chunk.count, a.query_length[first.row] - first.i));
  int64_t wide = rounded_up(a.value_size, PANEL);
  int64_t tiles = tiles_of<Product>(real);
  for (int64_t t = 0; t < tiles; ++t) s.rows[t].start(a, first.head * a.group + first.group);
  std::memset(s.exact, 0, sizeof s.exact);
  load_queries<Product>(a, first, real, s);
  std::memset(s.context.data(), 0, size_t(rounded_up(real, Product::ALIGN) * wide) * sizeof(float));
  for_each_tile<Product>(a, chunk, real, [&](int64_t rows, const TileOfBlock& tile) {
    tile_function<Product>(rows, typename Product::Heights{})(a, chunk, head, tile, s);
  });
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = tile_begin<Product>(real, t), end = tile_begin<Product>(real, t + 1);
    Place p = first;
    p.i += begin;
    finish_rows(a, p, end - begin, s.rows[t], s.exact + begin, &s.context[size_t(begin * wide)],
                wide, s.exact_row);
  }
  for (int64_t r = real; r < chunk.count; ++r) {
    Place p = first;
    p.i += r;
    finish_padding(a, p);
  }
}

template <class Product>
void attend_blocks(const Attention& a, int threads) {
  for_each_chunk<Product, Scratch>(
      a, threads, {QUERIES_OF<Product>, true, 0},
      [&](const Chunk& chunk, Packed& head, Scratch& scratch) {
        attend_chunk<Product>(a, chunk, head, scratch);
      },
      [](int64_t, int64_t, Packed&) {});
}

}  // namespace QKV_VARIANT
}  // namespace qkv
