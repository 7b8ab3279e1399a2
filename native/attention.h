// Attention over checked arguments.
#pragma once

#include <atomic>

#include "careful.h"
#include "threads.h"

namespace qkv {
namespace QKV_BODY {

inline void attend(const Attention& a, int threads) {
  std::atomic<int64_t> next{0};
  int64_t tasks = a.rows * a.kv_heads * a.group;
  on_threads(threads, [&](int) {
    CarefulRow row;
    for (int64_t t; (t = next++) < tasks;) {
      int64_t h = t % (a.kv_heads * a.group), b = t / (a.kv_heads * a.group);
      for (int64_t i = 0; i < a.length[b]; ++i)
        attend_carefully(a, {b, h / a.group, h % a.group, i}, row);
    }
  });
}

}  // namespace QKV_BODY
}  // namespace qkv
