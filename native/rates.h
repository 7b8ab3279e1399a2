// The machine's peak rates of arithmetic and memory, to which benchmarks compare a kernel.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "tile.h"
#include "threads.h"

namespace qkv {
namespace QKV_VARIANT {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int CHAINS = 16;  // independent sums; at least the latency times the number of units
#else
constexpr int CHAINS = 12;  // sums and factors must fit into 16 registers
#endif

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Computes `rounds` multiply-adds in each chain; returns a number that depends on all sums.
inline float chain_floats(int64_t rounds, float start) {
  Floats sums[CHAINS], factor = splat(1 - start), addend = splat(start);
  QKV_UNROLL for (int k = 0; k < CHAINS; ++k) sums[k] = splat(start * k);
  for (int64_t i = 0; i < rounds; ++i) {
    QKV_UNROLL for (int k = 0; k < CHAINS; ++k) sums[k] = sums[k] * factor + addend;
  }
  Floats all{};
  QKV_UNROLL for (int k = 0; k < CHAINS; ++k) all += sums[k];
  return sum(all);
}

#if defined(QKV_TILES)
inline float chain_bfloat16(int64_t rounds, float) {
  UsingTiles registers;
  alignas(64) float sums[TILE_ROWS * 16];
  clear_sums<SIDE>();
  clear_tile<4>(), clear_tile<5>(), clear_tile<6>(), clear_tile<7>();
  for (int64_t i = 0; i < rounds * CHAINS * WIDTH / (4 * 16 * 16 * 16); ++i) {
    add_tile_product<Type::bfloat16, 0, 4, 6>();
    add_tile_product<Type::bfloat16, 1, 4, 7>();
    add_tile_product<Type::bfloat16, 2, 5, 6>();
    add_tile_product<Type::bfloat16, 3, 5, 7>();
  }
  store_tile<0>(sums, 64);
  return sums[0];
}
#elif defined(__AVX512BF16__)
inline float chain_bfloat16(int64_t rounds, float start) {
  Floats sums[CHAINS];
  Ints pairs = as_ints(splat(start));  // the upper half of each float is a bfloat16
  QKV_UNROLL for (int k = 0; k < CHAINS; ++k) sums[k] = splat(start * k);
  for (int64_t i = 0; i < rounds; ++i) {
    QKV_UNROLL for (int k = 0; k < CHAINS; ++k) sums[k] =
        (Floats)_mm512_dpbf16_ps((__m512)sums[k], (__m512bh)pairs, (__m512bh)pairs);
  }
  Floats all{};
  QKV_UNROLL for (int k = 0; k < CHAINS; ++k) all += sums[k];
  return sum(all);
}
#endif

// Measures the floating-point operations per second of multiply-adds in registers (or of
// multiplications and additions, if the processor has no multiply-adds). For bfloat16, it measures BF16
// dot products if the variant has them, and otherwise float32. The result is the best of five runs, which
// take about 20 ms together.
inline double multiply_adds(Type type, int threads) {
  constexpr int64_t rounds = 20000;  // the rounds of one piece of work, about 0.1 ms
  double operations = 2.0 * CHAINS * WIDTH * rounds;
  float (*chain)(int64_t, float) = chain_floats;
#if defined(QKV_TILES) || defined(__AVX512BF16__)
  if (type == Type::bfloat16) {
    operations *= 2;
    chain = chain_bfloat16;
  }
#else
  (void)type;
#endif
  volatile float start = 1e-3f, sink = 0;
  std::atomic<int64_t> next{0};
  auto run = [&](int64_t pieces) {
    next = 0;
    double began = seconds_now();
    on_threads(threads, [&](int) {
      while (next.fetch_add(1) < pieces) sink = chain(rounds, start);
    });
    return seconds_now() - began;
  };
  run(8 * threads);  // wake the threads
  const int64_t pieces = 32 * threads;
  double least = run(pieces);
  for (int k = 1; k < 5; ++k) least = std::min(least, run(pieces));
  return operations * pieces / least;
}

// Measures the bytes per second that can be read from a large array. The result is the best of three
// runs. Most of the time, about 0.1 s, goes into making the array.
inline double read_rate(int threads) {
  constexpr int64_t bytes = int64_t(1) << 28;  // larger than most caches
  constexpr int64_t piece = int64_t(1) << 20;
  constexpr int64_t count = piece / sizeof(float);
  void* memory = std::aligned_alloc(int64_t(1) << 21, bytes);
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  madvise(memory, bytes, MADV_HUGEPAGE);  // NumPy does the same for its arrays
#endif
  float* numbers = static_cast<float*>(memory);
  std::atomic<int64_t> next{0};
  volatile float sink = 0;
  on_threads(threads, [&](int) {
    for (int64_t at; (at = next.fetch_add(1)) < bytes / piece;)
      std::memset(numbers + at * count, 0, piece);
  });
  double least = 0;
  for (int k = 0; k < 3; ++k) {
    next = 0;
    double began = seconds_now();
    on_threads(threads, [&](int) {
      Floats sums[8] = {};
      for (int64_t at; (at = next.fetch_add(1)) < bytes / piece;) {
        const float* from = numbers + at * count;
        for (int64_t i = 0; i < count; i += 8 * WIDTH) {
          QKV_UNROLL for (int c = 0; c < 8; ++c) sums[c] += load(from + i + c * WIDTH);
        }
      }
      Floats all{};
      QKV_UNROLL for (int c = 0; c < 8; ++c) all += sums[c];
      sink = sum(all);
    });
    double took = seconds_now() - began;
    least = k ? std::min(least, took) : took;
  }
  std::free(memory);
  return bytes / least;
}

}  // namespace QKV_VARIANT
}  // namespace qkv
