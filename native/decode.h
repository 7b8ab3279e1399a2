// Attention of few queries over many keys, as in decoding with a cache. The speed of memory limits the
// speed of this code.
//
// Keys and values are read once, in place, for all queries of all heads that share a key head. A task
// computes SPLIT consecutive keys of one key head. The task that finishes last joins the results of
// all tasks of the key head, in order.
#pragma once

#include "attention.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int64_t SHORT = 16;   // the maximum number of queries for this code
constexpr int64_t FEW = 12;     // the maximum if one block has all keys, because tiles are then faster
constexpr int64_t SPLIT = 1024; // keys of a task, a multiple of BLOCK
constexpr int FOUR = 4;         // queries that are multiplied with a key at the same time

inline bool is_short(const Attention& a) {
  for (int64_t row = 0; row < a.rows; ++row)
    if (a.length[row] > (a.keys[row] > BLOCK ? SHORT : FEW)) return false;
  return true;
}

// How far ahead of a row the rows of an array are prefetched, in elements: 16 KB of rows. The processor
// itself prefetches too late.
template <class T>
QKV_INLINE int64_t ahead_of(const Cells& cells, int64_t size) {
  return at_least(1, 16384 / (at_least(1, size) * int64_t(sizeof(T)))) * cells.i;
}

// Computes the products of ROWS queries with WIDTH / ROWS keys at key_at[0], key_at[1] and so on. The
// result is sorted by query. Queries are STEP apart and padded with zeros. Each key is read completely
// before the next key, because contiguous memory is read fastest.
template <class T, int ROWS>
QKV_INLINE Floats multiply_rows(const float* queries, const Cells& key, const int64_t* key_at,
                                int64_t size) {
  constexpr int KEYS = WIDTH / ROWS;
  const int64_t ahead = ahead_of<T>(key, size);
  Floats sums[WIDTH];
  QKV_UNROLL
  for (int k = 0; k < KEYS; ++k) {
    Floats here[ROWS];
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) here[r] = Floats{};
    int64_t c = 0;
    for (; c + WIDTH <= size; c += WIDTH) {
      const T* from = static_cast<const T*>(key.data) + key_at[k] + c;
      __builtin_prefetch(from + ahead);
      Floats x = take(from);
      QKV_UNROLL
      for (int r = 0; r < ROWS; ++r) here[r] += load(queries + r * STEP + c) * x;
    }
    if (c < size) {
      Floats x = load_floats(key, key_at[k] + c, size - c);
      QKV_UNROLL
      for (int r = 0; r < ROWS; ++r) here[r] += load(queries + r * STEP + c) * x;
    }
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) sums[r * KEYS + k] = here[r];
  }
  return fold(sums, Sum{});
}

// Computes the products of ROWS queries with the keys of some columns of a block. Columns after the
// last key, up to a multiple of WIDTH, are undefined.
template <class T, int ROWS>
void multiply_short(const float* queries, const Cells& key, int64_t block_at, int64_t size,
                    Range columns, float* scores) {
  constexpr int KEYS = WIDTH / ROWS;
  for (int64_t c = columns.begin; c < columns.end; c += KEYS) {
    int64_t at[KEYS];
    for (int k = 0; k < KEYS; ++k) at[k] = block_at + at_most(c + k, columns.end - 1) * key.i;
    Floats products = multiply_rows<T, ROWS>(queries, key, at, size);
    float all[WIDTH];
    store(all, products);
    for (int r = 0; r < ROWS; ++r)
      std::memcpy(scores + r * STEP + c, all + r * KEYS, KEYS * sizeof(float));
  }
}

// Computes weights @ values for ROWS rows and the keys of some columns.
template <class T, int ROWS>
void weigh_short(const float* weights, const Cells& value, int64_t block_at, int64_t size,
                 Range columns, float* context, int64_t wide) {
  constexpr int VECTORS = WIDTH / ROWS < 8 ? WIDTH / ROWS : 8;
  const int64_t ahead = ahead_of<T>(value, size);
  int64_t c = 0;
  for (; c + VECTORS * WIDTH <= size; c += VECTORS * WIDTH) {
    Floats sums[ROWS][VECTORS];
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      QKV_UNROLL
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = Floats{};
    }
    int64_t at = block_at + columns.begin * value.i + c;
    for (int64_t k = columns.begin; k < columns.end; ++k, at += value.i) {
      Floats w[ROWS];
      QKV_UNROLL
      for (int r = 0; r < ROWS; ++r) w[r] = splat(weights[r * STEP + k]);
      QKV_UNROLL
      for (int v = 0; v < VECTORS; ++v) {
        const T* from = static_cast<const T*>(value.data) + at + v * WIDTH;
        __builtin_prefetch(from + ahead);
        Floats x = take(from);
        QKV_UNROLL
        for (int r = 0; r < ROWS; ++r) sums[r][v] += w[r] * x;
      }
    }
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) {
      QKV_UNROLL
      for (int v = 0; v < VECTORS; ++v) store(context + r * wide + c + v * WIDTH, sums[r][v]);
    }
  }
  for (; c < size; c += WIDTH) {
    Floats sums[ROWS];
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) sums[r] = Floats{};
    int64_t at = block_at + columns.begin * value.i + c;
    for (int64_t k = columns.begin; k < columns.end; ++k, at += value.i) {
      Floats x = load_floats(value, at, size - c);
      QKV_UNROLL
      for (int r = 0; r < ROWS; ++r) sums[r] += splat(weights[r * STEP + k]) * x;
    }
    QKV_UNROLL
    for (int r = 0; r < ROWS; ++r) store(context + r * wide + c, sums[r]);
  }
}

// The results of one task, for the (group, length) rows of one key head.
struct Part {
  Running* rows;   // one for every FOUR rows
  float* context;  // rows are `wide` apart
  uint8_t* exact;
};

struct ShortScratch {
  Buffer<float> queries, scores, sums, clean;
  RowScratch row;
  ExactRow exact_row;
};

// Converts the values of a block to floats; infinity and NaN become 0. `exact` marks the rows that see
// infinity or NaN.
inline Cells clean_block(const Attention& a, const Place& head, int64_t at, int64_t block,
                         Range columns, uint8_t* exact, Buffer<float>& clean) {
  clean.need(size_t(BLOCK * a.value_size));
  for (int64_t k = columns.begin; k < columns.end; ++k) {
    bool sound = true;
    for (int64_t c = 0; c < a.value_size; ++c) {
      double x = number_at(a.value.data, a.value.type, at + k * a.value.i + c);
      clean[size_t(k * a.value_size + c)] = std::isfinite(x) ? float(x) : 0;
      sound = sound && std::isfinite(x);
    }
    if (sound) continue;
    int64_t key = block * BLOCK + k, length = a.length[head.row];
    for (int64_t r = 0; r < a.group * length; ++r) {
      Place p{head.row, head.head, r / length, r % length};
      Range seen = keys_of(a, p.row, p.i);
      if (key >= seen.begin && key < seen.end && mask_allows(a, p, key)) exact[r] = 1;
    }
  }
  Cells cells;
  cells.data = clean.data();
  cells.type = Type::float32;
  cells.i = a.value_size;
  cells.j = 1;
  return cells;
}

// Computes up to ROWS rows of one key head with one block of keys.
template <class T, int ROWS>
void short_block(const Attention& a, const Place& head, int64_t first, int64_t count,
                 int64_t block, Range columns, const Part& part, ShortScratch& s) {
  int64_t length = a.length[head.row], wide = rounded_up(a.value_size, WIDTH);
  int64_t key_at = cell(a.key, head, 0) + block * BLOCK * a.key.i;
  int64_t value_at = cell(a.value, head, 0) + block * BLOCK * a.value.i;
  float* scores = s.scores.data();
  multiply_short<T, ROWS>(&s.queries[size_t(first * STEP)], a.key, key_at, a.size, columns,
                             scores);
  bool plain = is_plain(a);
  float factor = factor_of(a, plain);
  Range wider{columns.begin / WIDTH * WIDTH, rounded_up(columns.end, WIDTH)};
  for (int64_t r = 0; r < count; ++r) {
    Place p{head.row, head.head, (first + r) / length, (first + r) % length};
    float* row = scores + r * STEP;
    Range seen = columns_of(a, p.row, p.i, block);
    if (!plain)
      finish_row(a, p, block * BLOCK, wider.begin, wider.end, seen, row, s.row);
    else
      hide_outside(row, wider.begin, wider.end, seen);
    if (a.weights) {
      float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, block * BLOCK);
      for (int64_t c = seen.begin; c < seen.end; ++c) weights[c] = row[c];
    }
  }
  for (int64_t r = count; r < ROWS; ++r)
    for (int64_t c = wider.begin; c < wider.end; ++c) scores[r * STEP + c] = 0;
  Running& running = part.rows[first / FOUR];
  exponentiate<Single, ROWS>(scores, wider.begin, wider.end, factor, running);
  float* sums = s.sums.data();
  weigh_short<T, ROWS>(scores, a.value, value_at, a.value_size, columns, sums, wide);
  Floats trace{};
  for (int64_t k = 0; k < ROWS * wide; k += WIDTH) trace += load(sums + k) * 0.0f;
  if (!all_zero(trace)) {
    Cells clean = clean_block(a, head, value_at, block, columns, part.exact, s.clean);
    weigh_short<float, ROWS>(scores, clean, 0, a.value_size, columns, sums, wide);
  }
  for (int64_t r = 0; r < count; ++r) {
    float* context = part.context + (first + r) * wide;
    for (int64_t c = 0; c < wide; c += WIDTH)
      store(context + c, load(context + c) * running.faded[r] + load(sums + r * wide + c));
  }
}

// Computes one task: consecutive keys, for all rows that share these keys.
template <class T>
void short_part(const Attention& a, const Place& head, Range keys, const Part& part,
                ShortScratch& s) {
  int64_t length = a.length[head.row], rows = a.group * length;
  int64_t wide = rounded_up(a.value_size, WIDTH);
  for (int64_t r = 0; r < rows; ++r) {
    Place p{head.row, head.head, r / length, r % length};
    part.rows[r / FOUR].start();
    part.exact[r] = 0;
    if (p.i < a.query_length[p.row])
      copy_depth<Single>(a.query, cell(a.query, p, 0), a.size, &s.queries[size_t(r * STEP)]);
    else  // padding is not read
      std::memset(&s.queries[size_t(r * STEP)], 0, STEP * sizeof(float));
  }
  std::memset(part.context, 0, size_t(rows * wide) * sizeof(float));
  for (int64_t block = keys.begin / BLOCK; block * BLOCK < keys.end; ++block) {
    Range columns{at_least(keys.begin - block * BLOCK, 0),
                  at_most(keys.end - block * BLOCK, BLOCK)};
    for (int64_t r = 0; r < rows; r += FOUR) {
      int64_t count = at_most(rows - r, FOUR);
      auto compute = count == 1   ? short_block<T, 1>
                     : count == 2 ? short_block<T, 2>
                                  : short_block<T, FOUR>;
      compute(a, head, r, count, block, columns, part, s);
      worked(count * (columns.end - columns.begin) * (a.size + a.value_size));
    }
  }
}

// Joins the results of all tasks of one key head in order, and finishes its rows.
inline void join_parts(const Attention& a, const Place& head, const Part* parts, int64_t count,
                       ShortScratch& s) {
  int64_t length = a.length[head.row], wide = rounded_up(a.value_size, WIDTH);
  for (int64_t r = 0; r < a.group * length; ++r) {
    Place p{head.row, head.head, r / length, r % length};
    Running row;
    row.start(a, p.head * a.group + p.group);
    bool exact = false;
    float top = row.top[0];
    for (int64_t k = 0; k < count; ++k) {
      float here = parts[k].rows[r / FOUR].top[r % FOUR];
      if (here > top) top = here;
      exact |= parts[k].exact[r] != 0;
    }
    double base = top == -INF ? 0 : top;
    float* context = s.sums.data();
    std::memset(context, 0, size_t(wide) * sizeof(float));
    double total = row.total[0] * std::exp2(row.top[0] - base);
    for (int64_t k = 0; k < count; ++k) {
      const Running& part = parts[k].rows[r / FOUR];
      double faded = without_tiny(std::exp2(part.top[r % FOUR] - base));
      total += part.total[r % FOUR] * faded;
      for (int64_t c = 0; c < wide; c += WIDTH)
        store(context + c,
              load(context + c) + load(parts[k].context + r * wide + c) * float(faded));
    }
    worked(count * a.value_size);
    row.top[0] = top;
    row.total[0] = row.given[0] = total;
    if (p.i < a.query_length[p.row])
      finish_rows(a, p, 1, row, &exact, context, wide, s.exact_row);
    else
      finish_padding(a, p);
  }
}

template <class T>
void attend_parts(const Attention& a, int threads) {
  int64_t heads = a.rows * a.kv_heads, most_rows = 0, most_keys = 0, tasks = 0, rows = 0;
  double work = 0;
  Buffer<int64_t> first_task(size_t(heads + 1)), first_row(size_t(heads + 1));
  for (int64_t h = 0; h < heads; ++h) {
    int64_t row = h / a.kv_heads, here = a.group * a.length[row];
    Range keys = keys_of_row(a, row);
    int64_t parts = (keys.end + SPLIT - 1) / SPLIT - keys.begin / SPLIT;
    if (keys.end <= keys.begin) parts = 1;  // without keys, the rows must still be finished
    first_task[size_t(h)] = tasks;
    first_row[size_t(h)] = rows;
    tasks += here ? parts : 0;
    rows += here * parts;
    most_rows = at_least(most_rows, here);
    most_keys = at_least(most_keys, a.key_length[row]);
    work += double(keys.end - keys.begin) * double(here * (a.size + a.value_size));
  }
  first_task[size_t(heads)] = tasks;
  if (!tasks) return;
  threads = threads_for_attention(work, threads);

  int64_t wide = rounded_up(a.value_size, WIDTH);
  Buffer<Part> parts{size_t(tasks)};
  Buffer<Running> running{size_t(rows / FOUR + tasks)};
  Buffer<float> context{size_t(rows * wide)};
  Buffer<uint8_t> exact{size_t(rows)};
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t t = first_task[size_t(h)]; t < first_task[size_t(h + 1)]; ++t) {
      int64_t row = first_row[size_t(h)] +
                    (t - first_task[size_t(h)]) * a.group * a.length[h / a.kv_heads];
      parts[size_t(t)] = {&running[size_t(row / FOUR + t)], &context[size_t(row * wide)],
                          &exact[size_t(row)]};
    }
  Objects<std::atomic<int64_t>> left{size_t(heads)};
  for (int64_t h = 0; h < heads; ++h)
    left[size_t(h)] = first_task[size_t(h + 1)] - first_task[size_t(h)];
  std::atomic<int64_t> next{0};
  on_threads(int(at_most(threads, tasks)), [&](int) {
    ShortScratch s;
    s.queries.need(size_t(rounded_up(most_rows, FOUR) * STEP));
    std::memset(s.queries.data(), 0, size_t(rounded_up(most_rows, FOUR) * STEP) * sizeof(float));
    s.scores.need(FOUR * STEP);
    s.sums.need(size_t(FOUR * wide));
    s.exact_row.need(most_keys, a.size, a.value_size);
    int64_t h = 0;
    for (int64_t task; (task = next++) < tasks;) {
      while (first_task[size_t(h + 1)] <= task) ++h;
      Place head{h / a.kv_heads, h % a.kv_heads, 0, 0};
      Range keys = keys_of_row(a, head.row);
      int64_t split = keys.begin / SPLIT + task - first_task[size_t(h)];
      Range here{at_least(keys.begin, split * SPLIT), at_most(keys.end, (split + 1) * SPLIT)};
      short_part<T>(a, head, here, parts[size_t(task)], s);
      if (--left[size_t(h)] == 0)
        join_parts(a, head, &parts[size_t(first_task[size_t(h)])],
                   first_task[size_t(h + 1)] - first_task[size_t(h)], s);
    }
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
