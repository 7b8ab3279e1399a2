// The gradient of attention, for blocks of keys and chunks of queries (Dao et al. 2022, appendix
// B).
//
// A unit of work is one block of keys of a key head, with all queries that may see the block. Only
// this unit adds to the gradients of the block's keys and values. A query may see several blocks of
// keys, so several units may add to the gradient of this query. The last block adds first, and the
// first block adds last: the unit of block b adds to a chunk of queries only after the unit of
// block b + 1 has finished this chunk. So the order of every sum is fixed, and no result depends on
// the threads.
#pragma once

#include "gradient_chunk.h"

namespace qkv {
namespace QKV_VARIANT {

constexpr int64_t THROUGH = INT64_MAX;  // the state of a unit that has finished all its chunks

inline int64_t real_queries(const Attention& a, int64_t row) {
  return at_most(a.length[row], a.query_length[row]);
}

inline int64_t chunks_of(int64_t queries) { return (queries + QUERIES - 1) / QUERIES; }
inline Range chunk_of(int64_t queries, int64_t chunk) {
  int64_t chunks = chunks_of(queries);
  return {chunk * queries / chunks, (chunk + 1) * queries / chunks};
}

// The range of keys that the queries of a chunk may see.
inline Range keys_of_chunk(const Attention& a, int64_t row, Range queries) {
  Range keys{keys_of(a, row, queries.begin).begin, keys_of(a, row, queries.end - 1).end};
  return {at_most(keys.begin, keys.end), keys.end};
}

inline void clear_rows(const Cells& to, Place p, Range rows, int64_t size) {
  for (p.i = rows.begin; p.i < rows.end; ++p.i)
    std::memset(static_cast<float*>(to.data) + cell(to, p, 0), 0, size_t(size) * sizeof(float));
}

// Sets the gradients to 0 for queries that see no key, and for keys that no query sees.
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

// Prepares the queries of one head, and computes the gradient of the head's sinks.
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
    int64_t upstream = cell(d.g.upstream, p, 0), out = cell(a.out, p, 0);
    for (int64_t c = 0; c < a.value_size; c += WIDTH)
      products += load_floats(d.g.upstream, upstream + c, a.value_size - c) *
                  load_floats(a.out, out + c, a.value_size - c);
    float delta = d.saved.delta[at] = sum(products);
    worked(a.value_size);
    for (int64_t k = 0; k < a.num_sinks; ++k)
      sums[k] -= std::exp(double(sinks[k]) - lse) * double(delta);
  }
  for (int64_t k = 0; k < a.num_sinks; ++k)
    if (!std::isfinite(sums[k])) d.unsound[d.head(p)] = true;
}

// Computes one unit; block 0 begins at key 0.
template <class Product>
inline void differentiate_block(Differentiation& d, int64_t row, int64_t kv_head, int64_t block,
                                GradientScratch& s) {
  const Attention& a = d.a;
  Range keys = keys_of_row(a, row);
  int64_t begin = block * BLOCK, count = at_most(BLOCK, keys.end - begin);
  Place place{row, kv_head, 0, begin};
  pack_keys<Product>(a.key, cell(a.key, place, 0), a.size, count, s.keys.data());
  pack_keys<Product>(a.value, cell(a.value, place, 0), a.value_size, count, s.values.data());
  pack_values<Product>(a.key, cell(a.key, place, 0), a.size, count, s.key_rows.data());
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
      differentiate_chunk<Product>(d, first, length, block, count, s, slope_sum);
      if (!last)
        wait_until([&] { return d.through[unit + 1].load(std::memory_order_acquire) > number; });
      sound &= add_queries(d, first, length, seen.end <= begin + count, s);
      worked(length * count * (3 * a.size + 2 * a.value_size));
    }
    sound &= std::isfinite(slope_sum);
  }
  d.through[unit].store(THROUGH, std::memory_order_release);
  sound &= store_transposed(s.key_sums.data(), a.size, count, float(a.scale), d.g.key,
                        cell(d.g.key, place, 0));
  sound &= store_transposed(s.value_sums.data(), a.value_size, count, 1, d.g.value,
                        cell(d.g.value, place, 0));
  if (!sound) d.unsound[head] = true;
}

// Prefetches the memory that a small head reads.
inline void ask_for_small(const Differentiation& d, int64_t head) {
  const Attention& a = d.a;
  Place p{head / a.kv_heads, head % a.kv_heads, 0, 0};
  ask_for_head(a, head);
  int64_t count = at_most(real_queries(a, p.row), BLOCK);
  ask_for(a.out, cell(a.out, p, 0), count, a.value_size);
  ask_for(d.g.upstream, cell(d.g.upstream, p, 0), count, a.value_size);
}

// Prefetches the memory of all heads of a row, as `fetch` does.
inline void fetch_row(const Differentiation& d, int64_t row) {
  const Attention& a = d.a;
  int64_t queries = real_queries(a, row), keys = a.key_length[row];
  if (!is_near(a, queries, keys)) return;
  for (const Cells* cells : {&a.query, &d.g.query}) fetch(a, *cells, row, queries, a.group, a.size);
  for (const Cells* cells : {&a.out, &d.g.upstream})
    fetch(a, *cells, row, queries, a.group, a.value_size);
  for (const Cells* cells : {&a.key, &d.g.key}) fetch(a, *cells, row, keys, 1, a.size);
  for (const Cells* cells : {&a.value, &d.g.value}) fetch(a, *cells, row, keys, 1, a.value_size);
}

// Whether several heads or rows share numbers of the bias.
inline bool shares_bias(const Attention& a, const Cells& bias) {
  if (!bias) return false;
  if (bias.head == 0 && a.kv_heads > 1) return true;
  for (int64_t row = 1; row < a.rows; ++row)
    if (bias.rows[row] <= bias.rows[row - 1]) return true;
  return false;
}

template <class Product>
void differentiate_in(const Attention& a, const Gradient& g, int threads) {
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
  threads = threads_for_attention(work, threads);

  auto prepare = [&](int64_t head) {
    for (int64_t group = 0; group < a.group; ++group)
      prepare_head(d, {head / a.kv_heads, head % a.kv_heads, group, 0});
  };
  bool shared = g.bias && (g.bias.j == 0 || shares_bias(a, g.bias));
  // a small head is one unit and is prepared by the worker that computes it
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
    // one worker computes a block of keys for all heads, so that no other worker adds to the
    // gradient of the bias of this block
    on_threads(g.bias.j == 0 ? 1 : threads, [&](int) {
      [[maybe_unused]] typename Product::Registers registers;
      GradientScratch scratch;
      scratch.need(a.size, a.value_size);
      for (int64_t block; (block = end - 1 - next++) >= first;)
        for (int64_t head = 0; head < heads; ++head) {
          Range keys = keys_of_row(a, head / a.kv_heads);
          if (keys.end > keys.begin && block >= keys.begin / BLOCK && block * BLOCK < keys.end)
            differentiate_block<Product>(d, head / a.kv_heads, head % a.kv_heads, block, scratch);
        }
    });
  } else {
    Objects<std::atomic<int64_t>> next_block(static_cast<size_t>(heads));
    bool by_row = goes_by_row(a, threads);
    int64_t together = by_row ? a.kv_heads : 1;
    on_threads(int(at_most(threads, at_least(heads, d.units()))), [&](int) {
      [[maybe_unused]] typename Product::Registers registers;
      GradientScratch scratch;
      scratch.need(a.size, a.value_size);
      auto help_with = [&](int64_t head) {
        Range keys = keys_of_row(a, head / a.kv_heads);
        for (int64_t k, blocks = d.blocks(head / a.kv_heads);
             (k = next_block[size_t(head)]++) < blocks;)
          differentiate_block<Product>(d, head / a.kv_heads, head % a.kv_heads,
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
      for (int64_t head = 0; !all_small && head < heads; ++head)  // help other workers with their heads
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

}  // namespace QKV_VARIANT
}  // namespace qkv
