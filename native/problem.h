// The arguments of the kernel: plain structs, checked and filled by Python, and read by every body.
#pragma once

#include <cstdint>

namespace qkv {

enum class Type : int { boolean, float16, bfloat16, float32, float64, integer };

constexpr int64_t FURTHEST = int64_t(1) << 60;  // the largest offset, positive or negative
constexpr int64_t FAR = int64_t(1) << 62;       // a window side without bound
constexpr int64_t MAX_SIZE = 256;          // the largest d that the buffers can hold

// An array over (row, key head, group, i, j), read in place. A row is one text of the batch
// (all leading axes as one). Steps count elements; 0 where an axis is broadcast.
struct Cells {
  void* data = nullptr;  // nullptr: not given
  Type type = Type::float32;
  const int64_t* rows = nullptr;  // (rows): where each row begins, in elements
  int64_t head = 0, group = 0, i = 0, j = 0;

  explicit operator bool() const { return data != nullptr; }
};

// One call of attention; see qkv.attention. Query head h is (h / group, h % group).
struct Attention {
  int64_t rows = 0, kv_heads = 0, group = 0;
  int64_t size = 0;        // d, of query and key
  int64_t value_size = 0;  // dv
  // Per row: the queries and keys in the arrays, the number of real ones (not padding), and the
  // position of query 0 among the keys.
  const int64_t *length = nullptr, *keys = nullptr;
  const int64_t *query_length = nullptr, *key_length = nullptr;
  const int64_t* offset = nullptr;
  int64_t left = FAR, right = FAR;  // FAR: no bound

  Cells query, key, value;  // one float type, not float64; j is 1
  Cells mask;               // boolean (True = may attend) or float (added; -inf hides)
  Cells bias;               // float, added; -inf hides
  const float* slopes = nullptr;  // (heads): ALiBi
  const float* sinks = nullptr;   // (heads, num_sinks)
  int64_t num_sinks = 0;
  double softcap = 0;  // 0: none
  double scale = 1;

  Cells out;      // the type of query; j is 1
  Cells lse;      // float64, optional; j is not used
  Cells weights;  // float32, j is 1, optional: holds zeros, gets exp(score - lse)

  // The summary, computed if top_k > 0.
  int64_t top_k = 0;
  Cells top_indices;  // integer (int64); i counts queries, j ranks
  Cells top_weights;  // float32
  Cells received;     // float64; j counts keys, i is not used
};

// The arguments of attention_grad in addition to the forward call, whose `out` and `lse` hold its
// results. Each row has its own part of the results.
struct Gradient {
  Cells upstream;           // the gradient of out, of any working type; j is 1
  double most = 0;          // up to this log-sum-exp, weights are exact enough
  Cells query, key, value;  // float32, j is 1
  // These are added to:
  Cells bias;                // float32, if bias is given; steps are 0 along repeated axes
  double* slopes = nullptr;  // (rows, heads)
  double* sinks = nullptr;   // (rows, heads, num_sinks)
  bool* unsound = nullptr;   // (rows, kv_heads): the result is wrong and must be computed by NumPy
};

enum class Activation : int { none, gelu, gelu_tanh, silu, relu, quick_gelu };

// y = activation(x @ W + bias) * gate + residual, over rows; see `linear` in Python.
struct Linear {
  int64_t rows = 0, in = 0, out = 0;
  Type type = Type::float32;       // of x and W; the sums are float32
  Type y_type = Type::float32;     // of y, gate and residual: float32, or that of x
  const void* x = nullptr;    // (rows, in): steps between rows in elements, rows contiguous
  int64_t x_step = 0;
  const void* packed = nullptr;  // the result of `pack` for W (in, out)
  const float* bias = nullptr;   // (out)
  Activation activation = Activation::none;
  const void* gate = nullptr;  // (rows, out): multiplies the activation's result
  int64_t gate_step = 0;
  const void* residual = nullptr;  // (rows, out): added last
  int64_t residual_step = 0;
  void* y = nullptr;  // (rows, out)
  int64_t y_step = 0;
};

// y = (x - mean) / scale * weight + bias over rows, scale = sqrt(mean square + eps).
struct Norm {
  int64_t rows = 0, size = 0;
  Type type = Type::float32;  // of x and y, or bfloat16; all else is float32
  const void* x = nullptr;    // (rows, size): steps between rows, rows contiguous
  int64_t x_step = 0;
  bool centred = true;  // if false, the mean is taken as 0
  float eps = 0;
  const float* weight = nullptr;  // (size)
  const float* bias = nullptr;    // (size), optional
  float* scale = nullptr;         // (rows)
  void* y = nullptr;              // (rows, size)
  int64_t y_step = 0;
};

// left.T @ right; all float32, rows contiguous and steps between them.
struct Outer {
  int64_t depth = 0, rows = 0, columns = 0;
  const float* left = nullptr;  // (depth, rows)
  int64_t left_step = 0;
  const float* right = nullptr;  // (depth, columns)
  int64_t right_step = 0;
  float* y = nullptr;  // (rows, columns)
  int64_t y_step = 0;
  float* left_sums = nullptr;   // (rows): the sums of the columns of left, optional
  float* right_sums = nullptr;  // (columns)
};

// The backward pass of Norm, all float32.
struct NormGrad {
  int64_t rows = 0, size = 0;
  const float* x = nullptr;  // (rows, size)
  int64_t x_step = 0;
  const float* upstream = nullptr;  // (rows, size): the gradient of the result
  int64_t upstream_step = 0;
  const float* weight = nullptr;  // (size)
  const float* scale = nullptr;   // (rows): the divisor of the forward pass
  bool centred = true;
  float* y = nullptr;            // (rows, size), contiguous: the gradient of x
  float* weight_sums = nullptr;  // (size): the gradient of the weight
  float* bias_sums = nullptr;    // (size), optional
};

// The loss of each row and its gradient.
struct CrossEntropy {
  int64_t rows = 0, size = 0;
  const float* logits = nullptr;  // (rows, size)
  int64_t step = 0;
  const int64_t* targets = nullptr;  // (rows): the loss is NaN if the target is not a column
  const float* weights = nullptr;    // (rows), or nullptr: 1
  float* losses = nullptr;           // (rows)
  float* grad = nullptr;             // (rows, size), contiguous
};

// One step of AdamW over `count` numbers; see `adamw` in Python.
struct AdamW {
  int64_t count = 0;
  float *parameters = nullptr, *mean = nullptr, *square = nullptr;
  const float* gradient = nullptr;
  const float* decays = nullptr;  // one for each; nullptr: `decay` for all
  float decay = 0, rate = 0, factor = 1, eps = 0;
  float keep_mean = 0, add_mean = 0, keep_square = 0, add_square = 0;
  float size = 0;  // of a step: rate / (1 - beta1**step)
  float root = 0;  // 1 / sqrt(1 - beta2**step)
};

}  // namespace qkv
