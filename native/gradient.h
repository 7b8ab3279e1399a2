// The gradient of attention: blocks of keys, met by chunks of queries (Dao et al. 2022, appendix B).
//
// A unit of work is one block of keys of a key head, with all queries that may see it: only it adds
// to the gradients of its keys and values. To that of a query all blocks add, one after the other,
// the last block first: a unit waits until the one behind it is through with a chunk. So every sum
// has one order, whoever computes it. Weights come from the log-sum-exp that the forward pass left.
#pragma once

#include "attention.h"

namespace qkv {
namespace QKV_BODY {

constexpr int TURNED = QUERIES + 16;  // between rows of turned queries
constexpr int64_t THROUGH = INT64_MAX;

// What each query brings along: see `prepare_head`.
struct Saved {
  explicit Saved(size_t count) : base(count), rest(count), delta(count) {}
  Buffer<float> base, rest;  // their sum: the log-sum-exp in powers of 2; infinity where it is blind
  Buffer<float> delta;       // sum(grad_out * out)
};

// What a worker needs, for one unit after the other.
struct GradientScratch {
  Buffer<float> keys, values;            // of the block: panels of keys
  Buffer<float> key_rows;                // of the block: panels of columns
  Buffer<float> key_sums, value_sums;    // (d, STEP), (dv, STEP)
  Buffer<float> queries, above;          // of the chunk: rows
  Buffer<float> turned_queries, turned_above;  // (d, TURNED), (dv, TURNED)
  Buffer<float> weights, changes;        // P and dS of chunk and block, rows
  Buffer<float> query_sums;              // what the block adds
  Range columns[TILES];                  // of each tile, in whole panels
  RowScratch row;
  alignas(64) float slope[STEP];

  void need(int64_t size, int64_t value_size) {
    int64_t rows = rounded_up(QUERIES, WIDTH);
    keys.need(size_t(BLOCK * size));
    values.need(size_t(BLOCK * value_size));
    key_rows.need(size_t(BLOCK * rounded_up(size, PANEL)));
    key_sums.need(size_t(rounded_up(size, WIDTH) * STEP));
    value_sums.need(size_t(rounded_up(value_size, WIDTH) * STEP));
    for (auto* rows_of : {&queries, &above, &weights, &changes}) rows_of->need(size_t(rows * STEP));
    turned_queries.need(size_t(rounded_up(size, WIDTH) * TURNED));
    turned_above.need(size_t(rounded_up(value_size, WIDTH) * TURNED));
    query_sums.need(size_t(QUERIES * rounded_up(size, PANEL)));
  }
};

struct Differentiation {
  const Attention& a;
  const Gradient& g;
  // (rows + 1): queries, and blocks of keys, of one head of all rows in front
  Buffer<int64_t> queries_before, blocks_before;
  Saved saved;
  Objects<std::atomic<int64_t>> through;  // (unit): chunks that it is through with
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
  // The first block that a key head's queries see; those behind it follow.
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

inline int64_t real_queries(const Attention& a, int64_t row) {
  return at_most(a.length[row], a.query_length[row]);
}

inline int64_t chunks_of(int64_t queries) { return (queries + QUERIES - 1) / QUERIES; }
inline Range chunk_of(int64_t queries, int64_t chunk) {
  int64_t chunks = chunks_of(queries);
  return {chunk * queries / chunks, (chunk + 1) * queries / chunks};
}

// The keys that some query of a chunk may see.
inline Range keys_of_chunk(const Attention& a, int64_t row, Range queries) {
  Range keys{keys_of(a, row, queries.begin).begin, keys_of(a, row, queries.end - 1).end};
  return {at_most(keys.begin, keys.end), keys.end};
}

inline void clear_rows(const Cells& to, Place p, Range rows, int64_t size) {
  for (p.i = rows.begin; p.i < rows.end; ++p.i)
    std::memset(static_cast<float*>(to.data) + cell(to, p, 0), 0, size_t(size) * sizeof(float));
}

// What no block of keys adds to.
inline void clear_unseen(const Differentiation& d, const Place& p) {
  const Attention& a = d.a;
  int64_t real = real_queries(a, p.row);
  for (int64_t chunk = 0; chunk < chunks_of(real); ++chunk) {
    Range queries = chunk_of(real, chunk), keys = keys_of_chunk(a, p.row, queries);
    if (keys.begin == keys.end) clear_rows(d.g.query, p, queries, a.size);
  }
  clear_rows(d.g.query, p, {real, a.length[p.row]}, a.size);
  if (p.group) return;
  Range keys = keys_of_row(a, p.row);
  if (!blocks_of(keys)) keys = {0, 0};
  for (Range rows : {Range{0, keys.begin / BLOCK * BLOCK}, Range{keys.end, a.keys[p.row]}}) {
    clear_rows(d.g.key, p, rows, a.size);
    clear_rows(d.g.value, p, rows, a.value_size);
  }
}

// What the queries of one head need beside keys and values, and the gradient of its sinks.
inline void prepare_head(Differentiation& d, Place p) {
  const Attention& a = d.a;
  clear_unseen(d, p);
  int64_t query_head = p.head * a.group + p.group, real = real_queries(a, p.row);
  const float* sinks = a.sinks + query_head * a.num_sinks;
  double* sums = d.g.sinks + (p.row * a.kv_heads * a.group + query_head) * a.num_sinks;
  for (p.i = 0; p.i < real; ++p.i) {
    size_t at = d.query(p);
    double lse = static_cast<const double*>(a.lse.data)[cell(a.lse, p, 0)];
    bool blind = lse == -HUGE_VAL;
    if (!blind && !(std::fabs(lse) <= d.g.most)) d.unsound[d.head(p)] = true;
    double base = lse / LN_2;
    d.saved.base[at] = blind ? INF : float(base);
    d.saved.rest[at] = blind ? 0 : float(base - double(float(base)));
    d.saved.delta[at] = 0;
    if (blind) continue;
    Floats products{};
    int64_t above = cell(d.g.above, p, 0), out = cell(a.out, p, 0);
    for (int64_t c = 0; c < a.value_size; c += WIDTH)
      products += load_floats(d.g.above, above + c, a.value_size - c) *
                  load_floats(a.out, out + c, a.value_size - c);
    float delta = d.saved.delta[at] = sum(products);
    worked(a.value_size);
    for (int64_t k = 0; k < a.num_sinks; ++k)
      sums[k] -= std::exp(double(sinks[k]) - lse) * double(delta);
  }
  for (int64_t k = 0; k < a.num_sinks; ++k)
    if (!std::isfinite(sums[k])) d.unsound[d.head(p)] = true;
}

// Add a row's change of the biased scores to the gradient of the bias.
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

// Scores of one query become weights, and gradients of weights those of scores, but for `scale`.
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
    store(changes + c, weight * (load(changes + c) - delta));
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
      store(changes + c, load(changes + c) * load(s.slope + c));
}

// Weights and changes of a tile of queries and a block of keys, and what it adds to the queries.
template <int ROWS>
void differentiate_tile(const Differentiation& d, const Place& chunk, const TileOfBlock& tile,
                        int64_t count, GradientScratch& s, double& slope_sum) {
  const Attention& a = d.a;
  Range columns = s.columns[tile.index];
  float *scores = &s.weights[size_t(tile.begin * STEP)];
  float *changes = &s.changes[size_t(tile.begin * STEP)];
  multiply_panels<Single, ROWS>(s.keys.data(), a.size, columns, &s.queries[tile.begin * STEP],
                                scores);
  multiply_panels<Single, ROWS>(s.values.data(), a.value_size, columns,
                                &s.above[tile.begin * STEP], changes);
  for (int i = 0; i < ROWS; ++i) {
    Place p = chunk;
    p.i += tile.begin + i;
    change_row(d, p, tile, columns, scores + i * STEP, changes + i * STEP, s, slope_sum);
  }
  int64_t wide = rounded_up(a.size, PANEL), begin = tile.seen.begin;
  for (int64_t c = 0; c < wide; c += PANEL) {
    float* sums = &s.query_sums[size_t(tile.begin * wide + c)];
    multiply_tile<Single, ROWS, STEP>(
        changes + begin, &s.key_rows[size_t(c * count + begin * PANEL)], tile.seen.end - begin,
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

// sums (ROWS, STEP) += turned (ROWS, queries) @ rows (queries, PANEL): one panel of keys.
template <int ROWS>
void add_turned(const float* turned, const float* rows, int64_t queries, float* sums) {
  auto add = [&](int i, Floats left, Floats right) QKV_LAMBDA {
    float* to = sums + i * STEP;
    store(to, load(to) + left);
    store(to + WIDTH, load(to + WIDTH) + right);
  };
  multiply_tile<Single, ROWS, TURNED, STEP>(turned, rows, queries, add, add);
}

using DifferentiateTile = void (*)(const Differentiation&, const Place&, const TileOfBlock&,
                                   int64_t, GradientScratch&, double&);
using AddTurned = void (*)(const float*, const float*, int64_t, float*);

template <int... ROWS>
QKV_INLINE DifferentiateTile differentiate_function(int64_t rows,
                                                    std::integer_sequence<int, ROWS...>) {
  static constexpr DifferentiateTile by_rows[] = {differentiate_tile<ROWS + 1>...};
  return by_rows[rows - 1];
}
template <int... ROWS>
QKV_INLINE AddTurned turned_function(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr AddTurned by_rows[] = {add_turned<ROWS + 1>...};
  return by_rows[rows - 1];
}

// sums (size, keys) += rows.T (size, queries) @ weights (queries, keys) of chunk and block, panel
// by panel of keys; queries `from` ... `to` see something of the panel.
inline void add_panel(const float* turned, int64_t size, const float* weights, int64_t from,
                      int64_t to, int64_t panel, float* sums) {
  constexpr auto heights = std::make_integer_sequence<int, TILE>{};
  int64_t tiles = (size + TILE - 1) / TILE;
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = t * size / tiles, end = (t + 1) * size / tiles;
    turned_function(end - begin, heights)(turned + begin * TURNED + from,
                                          weights + from * STEP + panel, to - from,
                                          sums + begin * STEP + panel);
  }
}

// Rows (count, STEP) of `size` numbers as columns: (size, TURNED).
inline void turn_rows(const float* rows, int64_t count, int64_t size, float* turned) {
  for (int64_t r = 0; r < count; r += WIDTH)
    for (int64_t c = 0; c < size; c += WIDTH) {
      Floats square[WIDTH];
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) square[k] = load(rows + (r + k) * STEP + c);
      transpose(square);
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) store(turned + (c + k) * TURNED + r, square[k]);
    }
}

// Sums (size, STEP), times a factor, into rows of a gradient; false if one is no finite number.
inline bool store_turned(const float* sums, int64_t size, int64_t count, float factor,
                         const Cells& to, int64_t at) {
  Floats trace{};
  for (int64_t r = 0; r < count; r += WIDTH)
    for (int64_t c = 0; c < size; c += WIDTH) {
      Floats square[WIDTH];
      QKV_UNROLL
      for (int k = 0; k < WIDTH; ++k) square[k] = load(sums + (c + k) * STEP + r) * factor;
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

// The queries of a chunk and the gradients of its results, as they stand and turned.
inline void load_chunk(const Differentiation& d, const Place& first, int64_t count,
                       GradientScratch& s) {
  const Attention& a = d.a;
  Place p = first;
  for (int64_t r = 0; r < count; ++r, ++p.i) {
    copy_depth<Single>(a.query, cell(a.query, p, 0), a.size, &s.queries[size_t(r * STEP)]);
    float* above = &s.above[size_t(r * STEP)];
    if (d.saved.base[d.query(p)] == INF)
      std::memset(above, 0, size_t(rounded_up(a.value_size, WIDTH)) * sizeof(float));
    else
      copy_depth<Single>(d.g.above, cell(d.g.above, p, 0), a.value_size, above);
  }
  turn_rows(s.queries.data(), count, a.size, s.turned_queries.data());
  turn_rows(s.above.data(), count, a.value_size, s.turned_above.data());
}

// Add what the block gave to the chunk's queries, or put it there if it is the first to do so;
// false if something is no finite number.
inline bool add_queries(const Differentiation& d, const Place& first, int64_t count, bool put,
                        const GradientScratch& s) {
  const Attention& a = d.a;
  int64_t wide = rounded_up(a.size, PANEL);
  Floats trace{}, scale = splat(float(a.scale));
  float* to = static_cast<float*>(d.g.query.data) + cell(d.g.query, first, 0);
  for (int64_t r = 0; r < count; ++r, to += d.g.query.i)
    for (int64_t c = 0; c < a.size; c += WIDTH) {
      Floats change = load(&s.query_sums[size_t(r * wide + c)]) * scale;
      trace += change * 0.0f;
      if (a.size - c >= WIDTH)
        store(to + c, put ? change : load(to + c) + change);
      else
        store_some(to + c, put ? change : load_some(to + c, a.size - c) + change, a.size - c);
    }
  return all_zero(trace);
}

// A chunk of queries and a block of `count` keys, all but the sums of the queries.
inline void differentiate_chunk(const Differentiation& d, const Place& first, int64_t queries,
                                int64_t block, int64_t count, GradientScratch& s, double& slope_sum) {
  const Attention& a = d.a;
  constexpr auto heights = std::make_integer_sequence<int, TILE>{};
  int64_t wide = rounded_up(a.size, PANEL);
  bool plain = is_plain(a);
  int64_t tiles = (queries + TILE - 1) / TILE;
  load_chunk(d, first, queries, s);
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = t * queries / tiles, end = (t + 1) * queries / tiles;
    Range seen{columns_of(a, first.row, first.i + begin, block).begin,
               columns_of(a, first.row, first.i + end - 1, block).end};
    s.columns[t] = {0, 0};
    if (seen.begin >= seen.end) {
      std::memset(&s.query_sums[size_t(begin * wide)], 0,
                  size_t((end - begin) * wide) * sizeof(float));
      continue;
    }
    s.columns[t] = {seen.begin / PANEL * PANEL, rounded_up(seen.end, PANEL)};
    differentiate_function(end - begin, heights)(d, first, {t, begin, block, seen, plain}, count, s,
                                                 slope_sum);
  }
  for (int64_t panel = 0; panel < count; panel += PANEL) {
    auto sees = [&](int64_t t) { return s.columns[t].begin <= panel && panel < s.columns[t].end; };
    int64_t t = 0;  // the tiles that see some key stand together, as ranges only move up
    while (t < tiles && !sees(t)) ++t;
    int64_t from = t * queries / tiles;
    while (t < tiles && sees(t)) ++t;
    int64_t to = t * queries / tiles;
    if (from == to) continue;
    add_panel(s.turned_above.data(), a.value_size, s.weights.data(), from, to, panel,
              s.value_sums.data());
    add_panel(s.turned_queries.data(), a.size, s.changes.data(), from, to, panel,
              s.key_sums.data());
  }
}

// One unit; `block` counts from key 0.
inline void differentiate_block(Differentiation& d, int64_t row, int64_t kv_head, int64_t block,
                                GradientScratch& s) {
  const Attention& a = d.a;
  Range keys = keys_of_row(a, row);
  int64_t begin = block * BLOCK, count = at_most(BLOCK, keys.end - begin);
  Place place{row, kv_head, 0, begin};
  pack_keys<Single>(a.key, cell(a.key, place, 0), a.size, count, s.keys.data());
  pack_keys<Single>(a.value, cell(a.value, place, 0), a.value_size, count, s.values.data());
  pack_values<Single>(a.key, cell(a.key, place, 0), a.size, count, s.key_rows.data());
  auto clear = [&](Buffer<float>& sums, int64_t size) {
    for (int64_t c = 0; c < rounded_up(size, WIDTH); ++c)
      std::memset(&sums[size_t(c * STEP)], 0, size_t(rounded_up(count, PANEL)) * sizeof(float));
  };
  clear(s.key_sums, a.size);
  clear(s.value_sums, a.value_size);

  size_t head = d.head(place), unit = d.unit(row, kv_head) + size_t(block - keys.begin / BLOCK);
  bool last = (block + 1) * BLOCK >= keys.end, sound = true;
  int64_t real = real_queries(a, row), chunks = chunks_of(real);
  for (int64_t group = 0; group < a.group; ++group) {
    double& slope_sum = d.slopes[unit * size_t(a.group) + size_t(group)];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      Range queries = chunk_of(real, chunk), seen = keys_of_chunk(a, row, queries);
      if (seen.begin >= begin + count || seen.end <= begin || seen.begin == seen.end) continue;
      Place first{row, kv_head, group, queries.begin};
      int64_t length = queries.end - queries.begin;
      int64_t number = group * chunks + chunk;
      d.through[unit].store(number, std::memory_order_release);
      differentiate_chunk(d, first, length, block, count, s, slope_sum);
      if (!last)
        wait_until([&] { return d.through[unit + 1].load(std::memory_order_acquire) > number; });
      sound &= add_queries(d, first, length, seen.end <= begin + count, s);
      worked(length * count * (3 * a.size + 2 * a.value_size));
    }
    sound &= std::isfinite(slope_sum);
  }
  d.through[unit].store(THROUGH, std::memory_order_release);
  sound &= store_turned(s.key_sums.data(), a.size, count, float(a.scale), d.g.key,
                        cell(d.g.key, place, 0));
  sound &= store_turned(s.value_sums.data(), a.value_size, count, 1, d.g.value,
                        cell(d.g.value, place, 0));
  if (!sound) d.unsound[head] = true;
}

// Ask for what a small head reads.
inline void ask_for_small(const Differentiation& d, int64_t head) {
  const Attention& a = d.a;
  Place p{head / a.kv_heads, head % a.kv_heads, 0, 0};
  ask_for_head(a, head);
  int64_t count = at_most(real_queries(a, p.row), BLOCK);
  ask_for(a.out, cell(a.out, p, 0), count, a.value_size);
  ask_for(d.g.above, cell(d.g.above, p, 0), count, a.value_size);
}

// The same of all heads of a row: see `fetch`.
inline void fetch_row(const Differentiation& d, int64_t row) {
  const Attention& a = d.a;
  int64_t queries = real_queries(a, row), keys = a.key_length[row];
  if (!is_near(a, queries, keys)) return;
  for (const Cells* cells : {&a.query, &d.g.query}) fetch(a, *cells, row, queries, a.group, a.size);
  for (const Cells* cells : {&a.out, &d.g.above})
    fetch(a, *cells, row, queries, a.group, a.value_size);
  for (const Cells* cells : {&a.key, &d.g.key}) fetch(a, *cells, row, keys, 1, a.size);
  for (const Cells* cells : {&a.value, &d.g.value}) fetch(a, *cells, row, keys, 1, a.value_size);
}

// Whether heads or rows add to the same numbers of the bias.
inline bool shares_bias(const Attention& a, const Cells& bias) {
  if (!bias) return false;
  if (bias.head == 0 && a.kv_heads > 1) return true;
  for (int64_t row = 1; row < a.rows; ++row)
    if (bias.rows[row] <= bias.rows[row - 1]) return true;
  return false;
}

inline void differentiate(const Attention& a, const Gradient& g, int threads) {
  int64_t heads = a.rows * a.kv_heads, first = THROUGH, end = 0;
  double work = 0;
  Differentiation d(a, g);
  for (int64_t row = 0; row < a.rows; ++row) {
    Range keys = keys_of_row(a, row);
    if (!d.blocks(row)) continue;
    first = at_most(first, keys.begin / BLOCK);
    end = at_least(end, keys.begin / BLOCK + d.blocks(row));
    work += double(keys.end - keys.begin) * double(a.length[row]) *
            double((a.size + a.value_size) * a.group * a.kv_heads);
  }
  if (work < double(SMALL_WORK)) threads = 1;

  auto prepare = [&](int64_t head) {
    for (int64_t group = 0; group < a.group; ++group)
      prepare_head(d, {head / a.kv_heads, head % a.kv_heads, group, 0});
  };
  bool shared = g.bias && (g.bias.j == 0 || shares_bias(a, g.bias));
  // a small head is one unit, prepared where it is computed
  auto is_small = [&](int64_t head) { return !shared && d.blocks(head / a.kv_heads) <= 1; };
  bool all_small = true;
  for (int64_t row = 0; row < a.rows; ++row) all_small &= is_small(row * a.kv_heads);
  std::atomic<int64_t> next{0};
  if (!all_small)
    on_threads(threads, [&](int) {
      for (int64_t head; (head = next++) < heads;)
        if (!is_small(head)) prepare(head);
    });

  next = 0;
  if (shared) {
    // whoever has a block of keys has it for all heads: the bias of a block is its alone
    on_threads(g.bias.j == 0 ? 1 : threads, [&](int) {
      GradientScratch scratch;
      scratch.need(a.size, a.value_size);
      for (int64_t block; (block = end - 1 - next++) >= first;)
        for (int64_t head = 0; head < heads; ++head) {
          Range keys = keys_of_row(a, head / a.kv_heads);
          if (keys.end > keys.begin && block >= keys.begin / BLOCK && block * BLOCK < keys.end)
            differentiate_block(d, head / a.kv_heads, head % a.kv_heads, block, scratch);
        }
    });
  } else {
    Objects<std::atomic<int64_t>> next_block(static_cast<size_t>(heads));
    bool by_row = goes_by_row(a, threads);
    int64_t together = by_row ? a.kv_heads : 1;
    on_threads(int(at_most(threads, at_least(heads, d.units()))), [&](int) {
      GradientScratch scratch;
      scratch.need(a.size, a.value_size);
      auto help_with = [&](int64_t head) {
        Range keys = keys_of_row(a, head / a.kv_heads);
        for (int64_t k, blocks = d.blocks(head / a.kv_heads);
             (k = next_block[size_t(head)]++) < blocks;)
          differentiate_block(d, head / a.kv_heads, head % a.kv_heads,
                              keys.begin / BLOCK + blocks - 1 - k, scratch);
      };
      for (int64_t first_head; (first_head = next++ * together) < heads;) {
        int64_t after = first_head + threads;
        if (by_row && is_small(first_head))
          fetch_row(d, first_head / a.kv_heads);
        else if (!by_row && after < heads && is_small(after))
          ask_for_small(d, after);
        for (int64_t head = first_head; head < first_head + together; ++head) {
          if (is_small(head)) prepare(head);
          help_with(head);
        }
      }
      for (int64_t head = 0; !all_small && head < heads; ++head)  // of others
        if (!is_small(head)) help_with(head);
    });
  }

  for (int64_t head = 0; head < heads; ++head) {
    g.unsound[head] = d.unsound[size_t(head)];
    int64_t row = head / a.kv_heads;
    for (int64_t group = 0; a.slopes && group < a.group; ++group)
      for (int64_t block = d.blocks(row) - 1; block >= 0; --block)
        g.slopes[head * a.group + group] +=
            d.slopes[(d.unit(row, head % a.kv_heads) + size_t(block)) * size_t(a.group) +
                     size_t(group)];
  }
}

}  // namespace QKV_BODY
}  // namespace qkv
