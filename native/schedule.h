// The schedule: which worker packs which head, and computes which chunk of queries.
//
// A worker takes a head, packs the head's keys and values, and computes the head's queries, chunk by
// chunk. When no head is left, the worker helps other workers to pack and compute their heads. As long
// as there are enough heads, packed numbers stay in the cache of one core. The result for a query does
// not depend on the worker.
#pragma once

#include <atomic>

#include "pack.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

// A chunk of queries of one head; `part` counts the chunks of a key head.
struct Chunk {
  Place first;
  int64_t count, part;
};

template <class Ready>
QKV_INLINE void wait_until(Ready ready) {
  for (int turns = 0; !ready(); ++turns) {
    if (turns >= 1000) go_on_waiting();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

// Options for the computation of all heads.
struct Plan {
  int64_t most;      // the number of queries in a chunk
  bool values;       // whether values are packed
  int64_t received;  // how many numbers a packed head needs for sums of weights; they begin as 0
};

// The packing of one head, shared by all workers that compute its chunks.
struct Shared {
  std::atomic<Packed*> packed{nullptr};
  std::atomic<bool> claimed{false};
  std::atomic<int64_t> next{0}, done{0};     // the next block to pack, and the number of packed blocks
  std::atomic<int64_t> next_chunk{0};        // the next chunk to compute
  std::atomic<int64_t> left{0};              // the number of chunks that still need the packed head
  int64_t chunks = 0;
};

// Buffers for packed heads, one for each worker. More buffers are not needed, because a head has a
// buffer only while a worker computes a part of the head.
class HeadBuffers {
 public:
  explicit HeadBuffers(int count) : free_(size_t(count)), heads_(size_t(count)), count_(count) {
    for (size_t k = 0; k < size_t(count); ++k) free_[k] = &heads_[k];
  }
  Packed& operator[](int k) const { return heads_[size_t(k)]; }
  int size() const { return count_; }  // the number of free buffers

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
    wait_until([&] { return !taken_.test_and_set(std::memory_order_acquire); });
  }
  Buffer<Packed*> free_;
  Objects<Packed> heads_;
  int count_;
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

// The range of keys that the queries of a row may see.
inline Range keys_of_row(const Attention& a, int64_t row) {
  int64_t queries = at_most(a.length[row], a.query_length[row]);
  if (!queries) return {0, 0};
  return {keys_of(a, row, 0).begin, keys_of(a, row, queries - 1).end};
}

inline int64_t blocks_of(Range keys) {
  return keys.end > keys.begin ? (keys.end + BLOCK - 1) / BLOCK - keys.begin / BLOCK : 0;
}

// Packs the blocks of a head, together with other workers that need the head. Returns when all blocks
// are packed.
template <class Product>
Packed* packed_head(const Attention& a, int64_t row, int64_t kv_head, const Plan& plan,
                    Shared& shared, HeadBuffers& buffers) {
  Range keys = keys_of_row(a, row);
  if (!shared.claimed.exchange(true)) {
    Packed* head = buffers.take();
    head->first = keys.begin / BLOCK;
    head->end = keys.end;
    head->with_values = plan.values;
    for (int64_t k = 0; k < plan.received; ++k) head->received[size_t(k)] = 0;
    shared.packed.store(head, std::memory_order_release);
  }
  Packed* head;
  wait_until([&] { return (head = shared.packed.load(std::memory_order_acquire)) != nullptr; });
  int64_t blocks = blocks_of(keys);
  for (int64_t block; (block = shared.next++) < blocks;) {
    pack_block<Product>(a, row, kv_head, head->first + block, keys.end, *head);
    shared.done.fetch_add(1, std::memory_order_release);
    worked(BLOCK * (a.size + a.value_size));
  }
  wait_until([&] { return shared.done.load(std::memory_order_acquire) == blocks; });
  return head;
}

// Prefetches the cache lines of some rows.
inline void ask_for(const Cells& cells, int64_t at, int64_t rows, int64_t columns) {
  int64_t bytes = cells.type == Type::float32 ? 4 : 2;
  const char* from = static_cast<const char*>(cells.data) + at * bytes;
  for (int64_t i = 0; i < rows; ++i, from += cells.i * bytes)
    for (int64_t c = 0; c < columns * bytes; c += 64) __builtin_prefetch(from + c, 0, 2);
}

// Prefetches a head, if it is small.
inline void ask_for_head(const Attention& a, int64_t head) {
  Place p{head / a.kv_heads, head % a.kv_heads, 0, 0};
  Range keys = keys_of_row(a, p.row);
  int64_t count = keys.end - keys.begin;
  ask_for(a.key, cell(a.key, p, 0) + keys.begin * a.key.i, count, a.size);
  ask_for(a.value, cell(a.value, p, 0) + keys.begin * a.value.i, count, a.value_size);
  ask_for(a.query, cell(a.query, p, 0), at_most(a.length[p.row], BLOCK), a.size);
}

// Whether a worker takes all heads of a row. It does if the heads of each query are neighbours in
// memory, and the batch has at least four rows per thread.
inline bool goes_by_row(const Attention& a, int threads) {
  return a.query.i >= a.size * a.kv_heads * a.group && a.rows >= 4 * threads;
}

// Whether a core's cache can hold all memory that the heads of a row read and write.
inline bool is_near(const Attention& a, int64_t queries, int64_t keys) {
  constexpr int64_t NEAR = 1 << 17;
  return (queries * a.group + keys) * a.kv_heads * (a.size + a.value_size) <= NEAR;
}

// Prefetches the positions i < `count` of all heads of a row, in the order of memory. The processor
// itself does not prefetch the few numbers of one head. Each key head serves `group` query heads.
inline void fetch(const Attention& a, const Cells& cells, int64_t row, int64_t count, int64_t group,
                  int64_t size) {
  int64_t bytes = cells.type == Type::float32 ? 4 : 2;
  const char* from = static_cast<const char*>(cells.data) + cells.rows[row] * bytes;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t h = 0; h < a.kv_heads * group; ++h) {
      int64_t at = i * cells.i + h / group * cells.head + h % group * cells.group;
      for (int64_t c = 0; c < size * bytes; c += 64)
        (void)*static_cast<const volatile char*>(from + at * bytes + c);
    }
}

// Calls `compute(chunk, packed head, scratch)` for every chunk of queries of every head, and
// `join(row, kv head, packed head)` after the last chunk of a head.
template <class Product, class Scratch, class Compute, class Join>
void for_each_chunk(const Attention& a, int threads, Plan plan, Compute compute, Join join) {
  int64_t heads = a.rows * a.kv_heads, most_blocks = 0, most_keys = 0, tasks = 0;
  double work = 0;
  Objects<Shared> shared{size_t(heads)};
  for (int64_t row = 0; row < a.rows; ++row) {
    Range keys = keys_of_row(a, row);
    most_blocks = at_least(most_blocks, blocks_of(keys));
    most_keys = at_least(most_keys, a.key_length[row]);
    work += double(keys.end - keys.begin) * double(a.length[row]) *
            double((a.size + a.value_size) * a.group * a.kv_heads);
    int64_t chunks = (a.length[row] + plan.most - 1) / plan.most * a.group;
    tasks += chunks * a.kv_heads;
    for (int64_t h = 0; h < a.kv_heads; ++h)
      shared[size_t(row * a.kv_heads + h)].chunks = shared[size_t(row * a.kv_heads + h)].left =
          chunks;
  }
  if (!tasks) return;
  threads = int(at_most(threads_for_attention(work, threads), tasks));

  HeadBuffers buffers(int(at_most(threads, heads)));
  for (int k = 0; k < buffers.size(); ++k) {
    reserve<Product>(buffers[k], most_blocks, a.size, plan.values ? a.value_size : 0);
    buffers[k].received.need(size_t(plan.received));
  }
  std::atomic<int64_t> next_head{0};
  bool by_row = goes_by_row(a, threads);
  int64_t together = by_row ? a.kv_heads : 1;
  on_threads(threads, [&](int) {
    [[maybe_unused]] typename Product::Registers registers;
    Scratch scratch;
    scratch.need(most_keys, a.size, a.value_size);
    auto help_with = [&](int64_t head) {
      Shared& of = shared[size_t(head)];
      int64_t row = head / a.kv_heads, kv_head = head % a.kv_heads, each = of.chunks / a.group;
      for (int64_t task; (task = of.next_chunk++) < of.chunks;) {
        int64_t group = task / each;
        int64_t which = each - 1 - task % each;  // first the chunks that see the most keys under a causal mask
        int64_t begin = which * a.length[row] / each, end = (which + 1) * a.length[row] / each;
        Packed* packed = packed_head<Product>(a, row, kv_head, plan, of, buffers);
        Chunk chunk{{row, kv_head, group, begin}, end - begin, group * each + which};
        compute(chunk, *packed, scratch);
        worked(chunk.count * (a.size + a.value_size));
        if (--of.left == 0) {
          join(row, kv_head, *packed);
          buffers.give_back(packed);
        }
      }
    };
    for (int64_t first; (first = next_head++ * together) < heads;) {
      int64_t row = first / a.kv_heads, keys = a.key_length[row];
      if (by_row && is_near(a, a.length[row], keys)) {
        fetch(a, a.query, row, at_most(a.length[row], a.query_length[row]), a.group, a.size);
        fetch(a, a.key, row, keys, 1, a.size);
        fetch(a, a.value, row, keys, 1, a.value_size);
        // other workers may already write results of the row; this code does not read them
        ask_for(a.out, cell(a.out, {row, 0, 0, 0}, 0), a.length[row],
                a.kv_heads * a.group * a.value_size);
      } else if (!by_row && most_blocks == 1 && first + threads < heads) {
        ask_for_head(a, first + threads);
      }
      for (int64_t head = first; head < first + together; ++head) help_with(head);
    }
    for (int64_t head = 0; head < heads; ++head) help_with(head);  // other workers' heads
  });
}

}  // namespace QKV_VARIANT
}  // namespace qkv
