// float32 to bfloat16, rounded to nearest.
#pragma once

#include <algorithm>
#include <atomic>

#include "linear.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

inline void narrow(const float* x, int64_t count, void* y, int threads) {
  constexpr int64_t PIECE = 1 << 15;  // numbers that are worth a thread's while
  Bfloat16* to = static_cast<Bfloat16*>(y);
  std::atomic<int64_t> next{0};
  on_threads(count < 4 * PIECE ? 1 : threads, [&](int) {
    for (int64_t k; (k = PIECE * next++) < count; worked(PIECE))
      for (const int64_t end = std::min(k + PIECE, count); k < end; k += WIDTH)
        put_some(to + k, take_some(x + k, end - k), end - k);
  });
}

}  // namespace QKV_BODY
}  // namespace qkv
