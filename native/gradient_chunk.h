// One chunk of queries and one block of keys: their weights, computed from the log-sum-exp of the
// forward pass, and the parts of the gradients that come from this pair.
#pragma once

#include "attention.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int TRANSPOSED_STEP = QUERIES + 16;  // the distance between rows of transposed queries

// The results of the forward pass for each query, which `prepare_head` fills.
struct Saved {
  explicit Saved(size_t count) : base(count), rest(count), delta(count) {}
  Buffer<float> base, rest;  // their sum is log-sum-exp / ln 2; infinity if the query sees no key
  Buffer<float> delta;       // sum(grad_out * out)
};

// The buffers that a worker needs for its units.
struct GradientScratch {
  Buffer<float> keys, values;            // the block in panels of keys
  Buffer<float> key_rows;                // the block in panels of columns
  Buffer<float> key_sums, value_sums;    // (d, STEP), (dv, STEP)
  Buffer<float> queries, upstream;       // the rows of the chunk
  // (d, TRANSPOSED_STEP), (dv, TRANSPOSED_STEP)
  Buffer<float> transposed_queries, transposed_upstream;
  // The weights P, and dS, the gradient for the scores. With `Tiles`, dS is in pairs of keys, and `weights` has
  // pairs of queries: of P in the even rows, and of dS in the odd rows.
  Buffer<float> weights, changes;
  Buffer<float> query_sums;              // the sums that the block adds to the gradients of queries
  Range columns[TILES];                  // the columns that each tile sees, in whole panels
  RowScratch row;
  alignas(64) float slope[STEP];

  void need(int64_t size, int64_t value_size) {
    int64_t rows = rounded_up(QUERIES, 2 * WIDTH);
    keys.need(size_t(BLOCK * rounded_up(size, WIDTH)));
    values.need(size_t(BLOCK * rounded_up(value_size, WIDTH)));
    key_rows.need(size_t(BLOCK * rounded_up(size, PANEL)));
    key_sums.need(size_t(rounded_up(size, WIDTH) * STEP));
    value_sums.need(size_t(rounded_up(value_size, WIDTH) * STEP));
    for (auto* rows_of : {&queries, &upstream, &weights, &changes})
      rows_of->need(size_t(rows * STEP));
    transposed_queries.need(size_t(rounded_up(size, WIDTH) * TRANSPOSED_STEP));
    transposed_upstream.need(size_t(rounded_up(value_size, WIDTH) * TRANSPOSED_STEP));
    query_sums.need(size_t(rows * rounded_up(size, PANEL)));
  }
};

struct Differentiation {
  const Attention& a;
  const Gradient& g;
  // (rows + 1): how many queries, and how many blocks of keys, a head has in all earlier rows
  Buffer<int64_t> queries_before, blocks_before;
  Saved saved;
  Objects<std::atomic<int64_t>> through;  // (unit): the number of finished chunks
  Objects<std::atomic<bool>> unsound;     // (row, key head)
  Objects<double> slopes;                 // (unit, group)

  Differentiation(const Attention& a, const Gradient& g)
      : a(a), g(g), queries_before(size_t(a.rows + 1)), blocks_before(size_t(a.rows + 1)),
        saved(count_queries() * size_t(a.kv_heads * a.group)), through(size_t(units())),
        unsound(size_t(a.rows * a.kv_heads)), slopes(size_t(units() * a.group)) {}

  size_t head(const Place& p) const { return size_t(p.row * a.kv_heads + p.head); }
  size_t query(const Place& p) const {
    return size_t(queries_before[size_t(p.row)] * a.kv_heads * a.group +
                  (p.head * a.group + p.group) * a.length[p.row] + p.i);
  }
  int64_t blocks(int64_t row) const {
    return blocks_before[size_t(row + 1)] - blocks_before[size_t(row)];
  }
  int64_t units() const { return blocks_before[size_t(a.rows)] * a.kv_heads; }
  // Returns the index of a key head's first unit.
  size_t unit(int64_t row, int64_t kv_head) const {
    return size_t(blocks_before[size_t(row)] * a.kv_heads + kv_head * blocks(row));
  }

 private:
  size_t count_queries() {
    queries_before[0] = blocks_before[0] = 0;
    for (int64_t row = 0; row < a.rows; ++row) {
      size_t at = size_t(row);
      queries_before[at + 1] = queries_before[at] + a.length[row];
      blocks_before[at + 1] = blocks_before[at] + blocks_of(keys_of_row(a, row));
    }
    return size_t(queries_before[size_t(a.rows)]);
  }
};

// Adds the gradient of a row's biased scores to the gradient of the bias.
inline void add_to_bias(const Cells& bias, const Place& p, int64_t first, Range seen,
                        const float* changes) {
  float* to = static_cast<float*>(bias.data) + cell(bias, p, first);
  if (bias.j) {
    for (int64_t c = seen.begin; c < seen.end; ++c) to[c] += changes[c];
  } else {
    double all = 0;
    for (int64_t c = seen.begin; c < seen.end; ++c) all += double(changes[c]);
    *to += float(all);
  }
}

// Converts the scores of one query to weights, and the gradients for weights to gradients for scores.
// The caller multiplies these by `scale`.
inline void change_row(const Differentiation& d, const Place& p, const TileOfBlock& tile,
                       Range columns, float* scores, float* changes, GradientScratch& s,
                       double& slope_sum) {
  const Attention& a = d.a;
  int64_t first = tile.block * BLOCK;
  Range seen = columns_of(a, p.row, p.i, tile.block);
  if (tile.plain) {
    if (seen.begin > columns.begin || seen.end < columns.end)
      hide_outside(scores, columns.begin, columns.end, seen);
  } else {
    if (a.softcap > 0) {
      Floats inner = splat(float(1 / a.softcap)), scale = splat(float(a.scale));
      for (int64_t c = columns.begin; c < columns.end; c += WIDTH) {
        Floats capped = tanh(load(scores + c) * scale * inner);
        store(s.slope + c, 1.0f - capped * capped);
      }
    }
    finish_row(a, p, first, columns.begin, columns.end, seen, scores, s.row);
  }
  size_t at = d.query(p);
  Floats base = splat(d.saved.base[at]), rest = splat(d.saved.rest[at]);
  Floats delta = splat(d.saved.delta[at]), factor = splat(factor_of(a, tile.plain));
  for (int64_t c = columns.begin; c < columns.end; c += WIDTH) {
    Floats weight = exp2(load(scores + c) * factor - base - rest);
    store(scores + c, weight);
    store(changes + c, without_tiny(weight * (load(changes + c) - delta)));
  }
  if (tile.plain) return;
  if (d.g.bias) add_to_bias(d.g.bias, p, first, seen, changes);
  if (a.slopes) {
    int64_t away = p.i + a.offset[p.row] - first - columns.begin;
    Floats all{};
    for (int64_t c = columns.begin; c < columns.end; c += WIDTH)
      all += load(changes + c) * distances(away - (c - columns.begin));
    slope_sum -= double(sum(all));
  }
  if (a.softcap > 0)
    for (int64_t c = columns.begin; c < columns.end; c += WIDTH)
      store(changes + c, without_tiny(load(changes + c) * load(s.slope + c)));
}

// Converts the weights and changes of `rows` queries to the pairs that `Tiles` multiplies; the pairs of a
// tile's other queries become 0.
inline void pair_rows(float* weights, float* changes, int64_t rows, Range columns) {
  for (int64_t r = 0; r < 2 * WIDTH; r += 2)
    for (int64_t c = columns.begin; c < columns.end; c += WIDTH)
      for (float* of : {weights, changes}) {
        Floats low = r < rows ? load(of + r * STEP + c) : Floats{};
        Floats high = r + 1 < rows ? load(of + (r + 1) * STEP + c) : Floats{};
        store(weights + (r + (of == changes)) * STEP + c, (Floats)pair_up(low, high));
      }
  for (int64_t r = 0; r < rounded_up(rows, WIDTH); ++r)
    for (int64_t c = columns.begin; c < columns.end; c += 2 * WIDTH) {
      Bfloat16* to = reinterpret_cast<Bfloat16*>(changes + r * STEP) + c;
      if (r < rows) put_two(to, load(changes + r * STEP + c), load(changes + r * STEP + c + WIDTH));
      else std::memset(static_cast<void*>(to), 0, 2 * WIDTH * sizeof *to);
    }
}

// Computes the weights of a tile of queries and a block of keys, the gradients for the scores, and the
// sums that the block adds to the gradients of the queries.
template <class Product, int ROWS>
void differentiate_tile(const Differentiation& d, const Place& chunk, const TileOfBlock& tile,
                        int64_t count, GradientScratch& s, double& slope_sum) {
  const Attention& a = d.a;
  Range columns = s.columns[tile.index];
  float *scores = &s.weights[size_t(tile.begin * STEP)];
  float *changes = &s.changes[size_t(tile.begin * STEP)];
  multiply_panels<Product, ROWS>(s.keys.data(), depth_of<Product>(a.size), columns,
                                 &s.queries[tile.begin * STEP], scores);
  multiply_panels<Product, ROWS>(s.values.data(), depth_of<Product>(a.value_size), columns,
                                 &s.upstream[tile.begin * STEP], changes);
  for (int i = 0; i < tile.rows; ++i) {
    Place p = chunk;
    p.i += tile.begin + i;
    change_row(d, p, tile, columns, scores + i * STEP, changes + i * STEP, s, slope_sum);
  }
  int64_t wide = rounded_up(a.size, PANEL);
  Range depth = depths_of<Product>(tile.seen);
  if constexpr (Product::ALIGN > 1) pair_rows(scores, changes, tile.rows, columns);
  for (int64_t c = 0; c < wide; c += PANEL) {
    float* sums = &s.query_sums[size_t(tile.begin * wide + c)];
    const float* panel = &s.key_rows[size_t(c * depth_of<Product>(count) + depth.begin * PANEL)];
    if constexpr (Product::ALIGN > 1)
      Product::template multiply<ROWS>(changes + depth.begin, STEP, panel, depth.end - depth.begin, sums, wide,
                                       false);
    else
      multiply_tile<Product, ROWS, STEP>(
          changes + depth.begin, panel, depth.end - depth.begin,
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            store(sums + i * wide, left);
            store(sums + i * wide + WIDTH, right);
          },
          [&](int i, Floats left, Floats right) QKV_LAMBDA {
            float* to = sums + i * wide;
            store(to, load(to) + left);
            store(to + WIDTH, load(to + WIDTH) + right);
          });
  }
}

// sums (ROWS, STEP) += transposed (ROWS, queries) @ rows (queries, PANEL): one panel of keys. With `Tiles`,
// `queries` counts pairs.
template <class Product, int ROWS>
void add_transposed(const float* transposed, const float* rows, int64_t queries, float* sums) {
  if constexpr (Product::ALIGN > 1) {
    Product::template multiply<ROWS>(transposed, TRANSPOSED_STEP, rows, queries, sums, STEP, true, 2 * STEP);
    return;
  }
  auto add = [&](int i, Floats left, Floats right) QKV_LAMBDA {
    float* to = sums + i * STEP;
    store(to, load(to) + left);
    store(to + WIDTH, load(to + WIDTH) + right);
  };
  multiply_tile<Single, ROWS, TRANSPOSED_STEP, STEP>(transposed, rows, queries, add, add);
}

using DifferentiateTile = void (*)(const Differentiation&, const Place&, const TileOfBlock&,
                                   int64_t, GradientScratch&, double&);
using AddTransposed = void (*)(const float*, const float*, int64_t, float*);

template <class Product, int... ROWS>
QKV_INLINE DifferentiateTile differentiate_function(int64_t rows,
                                                    std::integer_sequence<int, ROWS...>) {
  static constexpr DifferentiateTile by_rows[] = {differentiate_tile<Product, ROWS + 1>...};
  return by_rows[(rows - 1) / Product::ALIGN];
}
template <class Product, int... ROWS>
QKV_INLINE AddTransposed add_function(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr AddTransposed by_rows[] = {add_transposed<Product, ROWS + 1>...};
  return by_rows[(rows - 1) / Product::ALIGN];
}

// Computes sums (size, keys) += rows.T (size, queries) @ weights (queries, keys), one panel of keys
// after the other. Only the queries `from` <= i < `to` attend to keys of the panel.
template <class Product>
inline void add_panel(const float* transposed, int64_t size, const float* weights, int64_t from,
                      int64_t to, int64_t panel, float* sums) {
  Range depth = depths_of<Product>({from, to});
  for (int64_t t = 0; t < tiles_of<Product>(size); ++t) {
    int64_t begin = tile_begin<Product>(size, t), end = tile_begin<Product>(size, t + 1);
    add_function<Product>(end - begin, typename Product::Heights{})(
        transposed + begin * TRANSPOSED_STEP + depth.begin, weights + from * STEP + panel,
        depth.end - depth.begin, sums + begin * STEP + panel);
  }
}

// Transposes rows (count, STEP) of `size` numbers to columns (size, TRANSPOSED_STEP). With `Tiles`, the rows
// are pairs of numbers, and the columns are pairs of rows.
template <class Product>
inline void transpose_rows(const float* rows, int64_t count, int64_t size, float* transposed) {
  for (int64_t r = 0; r < depth_of<Product>(count); r += WIDTH)
    for (int64_t c = 0; c < size; c += WIDTH) {
      Floats square[WIDTH];
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) {
        if constexpr (Product::DEPTH == 1) {
          square[k] = load(rows + (r + k) * STEP + c);
        } else {
          const float* row = rows + 2 * (r + k) * STEP;
          auto at = [&](int64_t i) {
            return 2 * (r + k) + i < count
                       ? (Words)take(reinterpret_cast<const Bfloat16*>(row + i * STEP) + c)
                       : Words{};
          };
          square[k] = (Floats)(at(0) >> 16 | at(1));
        }
      }
      transpose(square);
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) store(transposed + (c + k) * TRANSPOSED_STEP + r, square[k]);
    }
}

// Multiplies sums (size, STEP) by a factor, and writes them to rows of a gradient. Returns false if a
// sum is not finite.
inline bool store_transposed(const float* sums, int64_t size, int64_t count, float factor,
                         const Cells& to, int64_t at) {
  Floats trace{};
  for (int64_t r = 0; r < count; r += WIDTH)
    for (int64_t c = 0; c < size; c += WIDTH) {
      Floats square[WIDTH];
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) square[k] = without_tiny(load(sums + (c + k) * STEP + r) * factor);
      transpose(square);
      for (int64_t k = 0; k < at_most(WIDTH, count - r); ++k) {
        float* row = static_cast<float*>(to.data) + at + (r + k) * to.i + c;
        trace += square[k] * 0.0f;
        if (size - c >= WIDTH)
          store(row, square[k]);
        else
          store_some(row, square[k], size - c);
      }
    }
  return all_zero(trace);
}

// Loads the queries of a chunk and the gradients for their outputs, and transposes both.
template <class Product>
inline void load_chunk(const Differentiation& d, const Place& first, int64_t count,
                       GradientScratch& s) {
  const Attention& a = d.a;
  Place p = first;
  for (int64_t r = 0; r < count; ++r, ++p.i) {
    copy_depth<Product>(a.query, cell(a.query, p, 0), a.size, &s.queries[size_t(r * STEP)]);
    float* upstream = &s.upstream[size_t(r * STEP)];
    if (d.saved.base[d.query(p)] == INF)
      std::memset(upstream, 0, size_t(rounded_up(a.value_size, WIDTH)) * sizeof(float));
    else
      copy_depth<Product>(d.g.upstream, cell(d.g.upstream, p, 0), a.value_size, upstream);
  }
  for (int64_t r = count; r < rounded_up(count, Product::ALIGN); ++r)
    for (float* row : {&s.queries[size_t(r * STEP)], &s.upstream[size_t(r * STEP)]})
      std::memset(row, 0, STEP * sizeof(float));
  transpose_rows<Product>(s.queries.data(), count, a.size, s.transposed_queries.data());
  transpose_rows<Product>(s.upstream.data(), count, a.value_size, s.transposed_upstream.data());
}

// Adds the block's sums to the gradients of the chunk's queries. If `put` is true, the block's sums
// replace the gradients instead, because no other block has added to the gradients yet. Returns
// false if a number is not finite.
inline bool add_queries(const Differentiation& d, const Place& first, int64_t count, bool put,
                        const GradientScratch& s) {
  const Attention& a = d.a;
  int64_t wide = rounded_up(a.size, PANEL);
  Floats trace{}, scale = splat(float(a.scale));
  float* to = static_cast<float*>(d.g.query.data) + cell(d.g.query, first, 0);
  for (int64_t r = 0; r < count; ++r, to += d.g.query.i)
    for (int64_t c = 0; c < a.size; c += WIDTH) {
      Floats change = without_tiny(load(&s.query_sums[size_t(r * wide + c)]) * scale);
      trace += change * 0.0f;
      if (a.size - c >= WIDTH)
        store(to + c, put ? change : load(to + c) + change);
      else
        store_some(to + c, put ? change : load_some(to + c, a.size - c) + change, a.size - c);
    }
  return all_zero(trace);
}

// Computes a chunk of queries and a block of `count` keys, without adding to the queries' gradients.
template <class Product>
inline void differentiate_chunk(const Differentiation& d, const Place& first, int64_t queries,
                                int64_t block, int64_t count, GradientScratch& s, double& slope_sum) {
  const Attention& a = d.a;
  int64_t wide = rounded_up(a.size, PANEL);
  bool plain = is_plain(a);
  int64_t tiles = tiles_of<Product>(queries);
  load_chunk<Product>(d, first, queries, s);
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = tile_begin<Product>(queries, t), end = tile_begin<Product>(queries, t + 1);
    Range seen{columns_of(a, first.row, first.i + begin, block).begin,
               columns_of(a, first.row, first.i + end - 1, block).end};
    s.columns[t] = {0, 0};
    if (seen.begin >= seen.end) {
      std::memset(&s.query_sums[size_t(begin * wide)], 0,
                  size_t((end - begin) * wide) * sizeof(float));
      continue;
    }
    s.columns[t] = {seen.begin / PANEL * PANEL, rounded_up(seen.end, PANEL)};
    TileOfBlock tile{t, begin, end - begin, block, seen, plain};
    differentiate_function<Product>(end - begin, typename Product::Heights{})(d, first, tile, count, s,
                                                                              slope_sum);
  }
  for (int64_t panel = 0; panel < count; panel += PANEL) {
    auto sees = [&](int64_t t) { return s.columns[t].begin <= panel && panel < s.columns[t].end; };
    int64_t t = 0;  // the tiles that see keys are consecutive, because later queries see later keys
    while (t < tiles && !sees(t)) ++t;
    int64_t from = tile_begin<Product>(queries, t);
    while (t < tiles && sees(t)) ++t;
    int64_t to = tile_begin<Product>(queries, t);
    if (from == to) continue;
    const float* changes = Product::ALIGN > 1 ? s.weights.data() + STEP : s.changes.data();
    add_panel<Product>(s.transposed_upstream.data(), a.value_size, s.weights.data(), from, to, panel,
                       s.value_sums.data());
    add_panel<Product>(s.transposed_queries.data(), a.size, changes, from, to, panel, s.key_sums.data());
  }
}

}  // namespace QKV_VARIANT
}  // namespace qkv
