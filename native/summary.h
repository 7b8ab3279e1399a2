// Attention seen without its weights: the largest of each query, the sum for each key.
#pragma once

#include "attention.h"

namespace qkv {
namespace QKV_BODY {

// Keep the `count` largest, the first among equals: put (weight, j) in where it belongs.
inline void keep_largest(float weight, int64_t j, int64_t count, float* weights, int64_t* indices) {
  int64_t k = count - 1;
  if (indices[k] >= 0 && !(weight > weights[k])) return;
  for (; k > 0 && (indices[k - 1] < 0 || weight > weights[k - 1]); --k) {
    weights[k] = weights[k - 1];
    indices[k] = indices[k - 1];
  }
  weights[k] = weight;
  indices[k] = j;
}

inline void summarize(const Attention& a, int threads) {
  std::atomic<int64_t> next{0};
  int64_t heads = a.kv_heads * a.group, tasks = a.rows * heads;
  on_threads(threads, [&](int) {
    CarefulRow row;
    for (int64_t t; (t = next++) < tasks;) {
      int64_t h = t % heads, b = t / heads;
      Place first{b, h / a.group, h % a.group, 0};
      double* received = static_cast<double*>(a.received.data) + cell(a.received, first, 0);
      for (int64_t i = 0; i < a.length[b]; ++i) {
        Place p{b, h / a.group, h % a.group, i};
        row.compute(a, p);
        float* weights = static_cast<float*>(a.top_weights.data) + cell(a.top_weights, p, 0);
        int64_t* indices = static_cast<int64_t*>(a.top_indices.data) + cell(a.top_indices, p, 0);
        for (int64_t k = 0; k < a.top_k; ++k) indices[k] = -1, weights[k] = 0;
        for (int64_t j = row.range().begin; j < row.range().end; ++j) {
          if (!row.visible(j)) continue;
          keep_largest(float(row.weight(j)), j, a.top_k, weights, indices);
          received[j * a.received.j] += row.weight(j);
        }
      }
    }
  });
}

}  // namespace QKV_BODY
}  // namespace qkv
