// Attention over many queries: blocks of keys pass by chunks of queries (Dao et al. 2022).
//
// A task is a chunk of the queries of one head. The first workers to need a head's keys and values
// pack them together, the others wait for that; the room is given back after the head's last chunk.
// What is computed for a query depends on shapes alone, never on who computes it.
#pragma once

#include <atomic>

#include "softmax.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

constexpr int TILES = 112 / TILE;      // of a chunk
constexpr int CHUNK = TILES * TILE;    // queries of a chunk: a block of keys stays in the cache for
constexpr int64_t SMALL_WORK = 1 << 20;  // multiplications that are not worth waking a thread for

// Some queries of one head; `part` counts the chunks of a key head.
struct Chunk {
  Place first;
  int64_t count, part;
};

struct Scratch {
  Buffer<float> queries, scores, context;
  Running rows[TILES];
  bool careful[CHUNK];
  RowScratch row;
  CarefulRow careful_row;

  void need(int64_t value_size) {
    queries.need(CHUNK * STEP);
    scores.need(TILE * STEP);
    context.need(size_t(CHUNK * rounded_up(value_size, PANEL)));
  }
};

QKV_INLINE void wait_a_little() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// What one tile has to do with one block of keys.
struct TileOfBlock {
  int64_t index, begin;     // the tile, and its first row, in its chunk
  int64_t block;
  Range seen;               // columns of the block that some row of the tile may see
  bool plain;
};

inline Range columns_of(const Attention& a, int64_t row, int64_t i, int64_t block) {
  Range keys = keys_of(a, row, i);
  int64_t first = block * BLOCK;
  int64_t begin = at_least(keys.begin - first, 0);
  int64_t end = at_least(at_most(keys.end - first, BLOCK), 0);
  return {at_most(begin, end), end};
}

// The products of a tile's queries with the keys of some columns, as they come out.
template <class Product, int ROWS>
inline void multiply_keys(const Attention& a, const Packed& head, int64_t block, Range columns,
                          const float* queries, float* scores) {
  int64_t depth = depth_of<Product>(a.size);
  const float* keys = keys_at<Product>(head, a.size, block);
  for (int64_t c = columns.begin; c < columns.end; c += PANEL)
    multiply_tile<Product, ROWS, STEP>(queries, keys + c * depth, depth,
                                       [&](int i, Floats left, Floats right) QKV_LAMBDA {
                                         store(scores + i * STEP + c, left);
                                         store(scores + i * STEP + c + WIDTH, right);
                                       });
}

template <class Product, int ROWS>
void tile_of_block(const Attention& a, const Chunk& chunk, const Packed& head,
                   const TileOfBlock& tile, Scratch& s) {
  const Place& first = chunk.first;
  Range columns{tile.seen.begin / PANEL * PANEL, rounded_up(tile.seen.end, PANEL)};
  float* scores = s.scores.data();
  multiply_keys<Product, ROWS>(a, head, tile.block, columns, &s.queries[tile.begin * STEP],
                               scores);

  bool unsound = head.unsound_blocks[tile.block - head.first];
  float factor = tile.plain ? float(a.scale * double(LOG2_E)) : 1.0f;
  for (int i = 0; i < ROWS; ++i) {
    Place p = first;
    p.i += tile.begin + i;
    float* row = scores + i * STEP;
    Range seen = columns_of(a, p.row, p.i, tile.block);
    if (!tile.plain)
      finish_row(a, p, tile.block * BLOCK, columns.begin, columns.end, seen, row, s.row);
    else if (seen.begin > columns.begin || seen.end < columns.end)
      hide_outside(row, columns.begin, columns.end, seen);
    if (a.weights) {  // scores for now: the sum is not known yet
      float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, tile.block * BLOCK);
      for (int64_t c = seen.begin; c < seen.end; ++c) weights[c] = row[c] * factor;
    }
    if (unsound)
      for (int64_t c = seen.begin; c < seen.end; ++c)
        if (head.unsound[(tile.block - head.first) * BLOCK + c] &&
            mask_allows(a, p, tile.block * BLOCK + c))
          s.careful[tile.begin + i] = true;
  }
  Running& running = s.rows[tile.index];
  exponentiate<Product, ROWS>(scores, columns.begin, columns.end, factor, running);

  constexpr int DEPTH = Product::DEPTH;
  int64_t begin = tile.seen.begin / DEPTH, end = (tile.seen.end + DEPTH - 1) / DEPTH;
  int64_t wide = rounded_up(a.value_size, PANEL);
  int64_t steps = (at_most(BLOCK, head.end - tile.block * BLOCK) + DEPTH - 1) / DEPTH;
  const float* values = values_at<Product>(head, a.value_size, tile.block) + begin * PANEL;
  for (int64_t c = 0; c < wide; c += PANEL) {
    float* context = &s.context[tile.begin * wide + c];
    multiply_tile<Product, ROWS, STEP>(
        scores + begin, values + c * steps, end - begin,
        [&](int i, Floats left, Floats right) QKV_LAMBDA {
          float* to = context + i * wide;
          store(to, load(to) * running.faded[i] + left);
          store(to + WIDTH, load(to + WIDTH) * running.faded[i] + right);
        });
  }
}

// A row of floats into the type of `out`.
inline void store_row(const Cells& out, int64_t at, const float* row, int64_t count) {
  int64_t c = 0;
  if (out.type == Type::float32)
    for (; c + WIDTH <= count; c += WIDTH)
      store(static_cast<float*>(out.data) + at + c, load(row + c));
  for (; c < count; ++c) put(out, at + c, row[c]);
}

// Scores, as `tile_of_block` left them in a row of weights, become weights.
inline void weigh_row(const Attention& a, const Place& p, double lse) {
  Range keys = keys_of(a, p.row, p.i);
  float* weights = static_cast<float*>(a.weights.data) + cell(a.weights, p, 0);
  float base = float(lse / LN_2), rest = float(lse / LN_2 - double(base));
  for (int64_t c = keys.begin; c < keys.end; c += WIDTH) {
    Floats scores = load_some(weights + c, keys.end - c);
    store_some(weights + c, exp2(scores - base - rest), keys.end - c);
  }
}

using TileFunction = void (*)(const Attention&, const Chunk&, const Packed&, const TileOfBlock&,
                              Scratch&);

template <class Product, int... ROWS>
QKV_INLINE TileFunction tile_function(int64_t rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction by_rows[] = {tile_of_block<Product, ROWS + 1>...};
  return by_rows[rows - 1];
}

template <class Product>
inline void load_queries(const Attention& a, const Place& first, int64_t count, Scratch& s) {
  for (int64_t r = 0; r < count; ++r)
    copy_depth<Product>(a.query, cell(a.query, first, 0) + r * a.query.i, a.size,
                        &s.queries[size_t(r * STEP)]);
}

// Call `compute(rows, tile)` for each tile of a chunk's first `real` queries and each block of keys
// that some query of the tile may see, block by block.
template <class Compute>
QKV_INLINE void for_each_tile(const Attention& a, const Chunk& chunk, int64_t real,
                              Compute compute) {
  if (!real) return;
  const Place& first = chunk.first;
  bool plain = is_plain(a);
  int64_t tiles = (real + TILE - 1) / TILE;
  Range keys{keys_of(a, first.row, first.i).begin, keys_of(a, first.row, first.i + real - 1).end};
  for (int64_t block = keys.begin / BLOCK; block * BLOCK < keys.end; ++block) {
    for (int64_t t = 0; t < tiles; ++t) {
      int64_t begin = t * real / tiles, end = (t + 1) * real / tiles;  // of nearly equal height
      Range seen{columns_of(a, first.row, first.i + begin, block).begin,
                 columns_of(a, first.row, first.i + end - 1, block).end};
      if (seen.begin < seen.end) compute(end - begin, TileOfBlock{t, begin, block, seen, plain});
    }
  }
}

// A query that is padding: nothing but its sinks.
inline void finish_padding(const Attention& a, const Place& p, const Running& rows) {
  int64_t out = cell(a.out, p, 0);
  for (int64_t c = 0; c < a.value_size; ++c) put(a.out, out + c, 0);
  if (a.lse)
    static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] =
        rows.total[0] != 0 ? rows.log_sum_exp(0) : -HUGE_VAL;  // a NaN sink shows
}

// Once all keys have passed: divide the context of a tile's `count` queries by their sums. What met
// infinity or NaN, or no number at all, is computed again.
inline void finish_rows(const Attention& a, Place p, int64_t count, const Running& rows,
                        const bool* careful, float* context, int64_t wide,
                        CarefulRow& careful_row) {
  alignas(64) float shares[ROUND];
  for (int i = 0; i < ROUND; ++i) shares[i] = float(1 / rows.total[i]);
  for (int64_t i = 0; i < count; ++i, ++p.i, context += wide) {
    Floats trace{}, share = splat(shares[i]);
    for (int64_t c = 0; c < wide; c += WIDTH) {
      Floats x = load(context + c) * share;
      trace += x * 0.0f;
      store(context + c, x);
    }
    // below -1e37 scores may have been cut to the lowest float
    bool sound = rows.total[i] > 0 && rows.top[i] >= -1e37f;
    if (careful[i] || !sound || !all_zero(trace)) {
      attend_carefully(a, p, careful_row);
      // a summary computes the scores again, in float32: the sum has to be that of these
      if (a.top_k && sound)
        static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = rows.log_sum_exp(i);
      continue;
    }
    store_row(a.out, cell(a.out, p, 0), context, a.value_size);
    if (!a.lse && !a.weights) continue;
    double lse = rows.log_sum_exp(i);
    if (a.lse) static_cast<double*>(a.lse.data)[cell(a.lse, p, 0)] = lse;
    if (a.weights) weigh_row(a, p, lse);
  }
}

template <class Product>
void attend_chunk(const Attention& a, const Chunk& chunk, const Packed& head, Scratch& s) {
  const Place& first = chunk.first;
  int64_t real = at_least(0, at_most(chunk.count, a.query_length[first.row] - first.i));
  int64_t wide = rounded_up(a.value_size, PANEL);
  int64_t tiles = (real + TILE - 1) / TILE;
  for (int64_t t = 0; t < tiles; ++t) s.rows[t].start(a, first.head * a.group + first.group);
  std::memset(s.careful, 0, sizeof s.careful);
  load_queries<Product>(a, first, real, s);
  std::memset(s.context.data(), 0, size_t(real * wide) * sizeof(float));
  for_each_tile(a, chunk, real, [&](int64_t rows, const TileOfBlock& tile) {
    constexpr auto heights = std::make_integer_sequence<int, TILE>{};
    tile_function<Product>(rows, heights)(a, chunk, head, tile, s);
  });
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t begin = t * real / tiles, end = (t + 1) * real / tiles;
    Place p = first;
    p.i += begin;
    finish_rows(a, p, end - begin, s.rows[t], s.careful + begin, &s.context[size_t(begin * wide)],
                wide, s.careful_row);
  }
  for (int64_t r = real; r < chunk.count; ++r) {
    Place p = first;
    p.i += r;
    s.rows[0].start(a, p.head * a.group + p.group);
    finish_padding(a, p, s.rows[0]);
  }
}

// How a pass goes over the heads.
struct Plan {
  int64_t most;      // queries of a chunk
  bool values;       // whether values are packed
  int64_t received;  // numbers that a packed head has room for, beside keys and values; 0 at first
};

// The packing of one head, shared by all who compute its chunks.
struct Shared {
  std::atomic<Packed*> packed{nullptr};
  std::atomic<bool> claimed{false};
  std::atomic<int64_t> next{0}, done{0};  // blocks to pack, blocks packed
  std::atomic<int64_t> left{0};           // chunks that still need it
};

// Room for packed heads: as many as there are workers is enough, since tasks are taken in order.
class Room {
 public:
  explicit Room(int count) : free_(size_t(count)), heads_(size_t(count)), count_(count) {
    for (size_t k = 0; k < size_t(count); ++k) free_[k] = &heads_[k];
  }
  Packed& operator[](int k) const { return heads_[size_t(k)]; }

  Packed* take() {
    lock();
    Packed* found = free_[size_t(--count_)];
    taken_.clear(std::memory_order_release);
    return found;
  }
  void give_back(Packed* head) {
    lock();
    free_[size_t(count_++)] = head;
    taken_.clear(std::memory_order_release);
  }

 private:
  void lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) wait_a_little();
  }
  Buffer<Packed*> free_;
  Objects<Packed> heads_;
  int count_;
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

// The keys that some query of a row may see.
inline Range keys_of_row(const Attention& a, int64_t row) {
  int64_t queries = at_most(a.length[row], a.query_length[row]);
  if (!queries) return {0, 0};
  return {keys_of(a, row, 0).begin, keys_of(a, row, queries - 1).end};
}

inline int64_t blocks_of(Range keys) {
  return keys.end > keys.begin ? (keys.end + BLOCK - 1) / BLOCK - keys.begin / BLOCK : 0;
}

// Pack a head's blocks, together with whoever else needs it; returns when all are packed.
template <class Product>
Packed* packed_head(const Attention& a, int64_t row, int64_t kv_head, const Plan& plan,
                    Shared& shared, Room& room) {
  Range keys = keys_of_row(a, row);
  if (!shared.claimed.exchange(true)) {
    Packed* head = room.take();
    head->first = keys.begin / BLOCK;
    head->end = keys.end;
    head->with_values = plan.values;
    for (int64_t k = 0; k < plan.received; ++k) head->received[size_t(k)] = 0;
    shared.packed.store(head, std::memory_order_release);
  }
  Packed* head;
  while (!(head = shared.packed.load(std::memory_order_acquire))) wait_a_little();
  int64_t blocks = blocks_of(keys);
  for (int64_t block; (block = shared.next++) < blocks;) {
    pack_block<Product>(a, row, kv_head, head->first + block, keys.end, *head);
    shared.done.fetch_add(1, std::memory_order_release);
  }
  while (shared.done.load(std::memory_order_acquire) < blocks) wait_a_little();
  return head;
}

// Ask for the lines of some rows, to be read soon.
inline void ask_for(const Cells& cells, int64_t at, int64_t rows, int64_t columns) {
  int64_t bytes = cells.type == Type::float32 ? 4 : 2;
  const char* from = static_cast<const char*>(cells.data) + at * bytes;
  for (int64_t i = 0; i < rows; ++i, from += cells.i * bytes)
    for (int64_t c = 0; c < columns * bytes; c += 64) __builtin_prefetch(from + c, 0, 2);
}

// Call `compute(chunk, packed head, scratch)` for every chunk of every head's queries, and
// `join(row, kv head, packed head)` after a head's last.
template <class Product, class Compute, class Join>
void for_each_chunk(const Attention& a, int threads, Plan plan, Compute compute, Join join) {
  int64_t heads = a.rows * a.kv_heads, most_blocks = 0, most_keys = 0;
  Buffer<int64_t> first_task{size_t(heads + 1)};
  double work = 0;
  int64_t tasks = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    Range keys = keys_of_row(a, row);
    most_blocks = at_least(most_blocks, blocks_of(keys));
    most_keys = at_least(most_keys, a.key_length[row]);
    work += double(keys.end - keys.begin) * double(a.length[row]) *
            double((a.size + a.value_size) * a.group * a.kv_heads);
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      first_task[size_t(row * a.kv_heads + h)] = tasks;
      tasks += (a.length[row] + plan.most - 1) / plan.most * a.group;
    }
  }
  first_task[size_t(heads)] = tasks;
  if (work < double(SMALL_WORK)) threads = 1;
  threads = int(at_most(threads, tasks));
  if (!tasks) return;

  Room room(threads);
  for (int k = 0; k < threads; ++k)
    need_room<Product>(room[k], most_blocks, a.size, plan.values ? a.value_size : 0);
  for (int k = 0; k < threads; ++k) room[k].received.need(size_t(plan.received));
  Objects<Shared> shared{size_t(heads)};
  for (int64_t h = 0; h < heads; ++h)
    shared[size_t(h)].left = first_task[size_t(h + 1)] - first_task[size_t(h)];
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Scratch scratch;
    scratch.need(a.value_size);
    scratch.careful_row.need(most_keys);
    int64_t head = 0;
    for (int64_t task; (task = next++) < tasks;) {
      while (first_task[size_t(head + 1)] <= task) ++head;
      int64_t row = head / a.kv_heads, kv_head = head % a.kv_heads;
      int64_t chunks = (first_task[size_t(head + 1)] - first_task[size_t(head)]) / a.group;
      int64_t t = task - first_task[size_t(head)];
      int64_t which = chunks - 1 - t % chunks;  // where causality leaves the most to do comes first
      int64_t begin = which * a.length[row] / chunks, end = (which + 1) * a.length[row] / chunks;
      if (int64_t soon = head + threads; most_blocks == 1 && chunks == 1 && soon < heads) {
        Place p{soon / a.kv_heads, soon % a.kv_heads, 0, 0};
        ask_for(a.key, cell(a.key, p, 0), a.key_length[p.row], a.size);
        ask_for(a.value, cell(a.value, p, 0), a.key_length[p.row], a.value_size);
        ask_for(a.query, cell(a.query, p, 0), a.length[p.row], a.size);
      }
      Packed* packed = packed_head<Product>(a, row, kv_head, plan, shared[size_t(head)], room);
      int64_t group = t / chunks;
      Chunk chunk{{row, kv_head, group, begin}, end - begin, group * chunks + which};
      compute(chunk, *packed, scratch);
      if (--shared[size_t(head)].left == 0) {
        join(row, kv_head, *packed);
        room.give_back(packed);
      }
    }
  });
}

template <class Product>
void attend_blocks(const Attention& a, int threads) {
  for_each_chunk<Product>(
      a, threads, {CHUNK, true, 0},
      [&](const Chunk& chunk, Packed& head, Scratch& scratch) {
        attend_chunk<Product>(a, chunk, head, scratch);
      },
      [](int64_t, int64_t, Packed&) {});
}

}  // namespace QKV_BODY
}  // namespace qkv
