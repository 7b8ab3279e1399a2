// The arguments of the kernel: structs that the Python module checks and fills, and every variant reads.
#pragma once

#include <stdint.h>

namespace qkv {

// Two types are types of packed weights only: `wide_bfloat16`, bfloat16 numbers that multiply rows of float32, and
// `one_digit`, int8 numbers without second digits (see int8.h).
enum class Type : int { boolean, float16, bfloat16, float32, float64, integer, int8, wide_bfloat16, one_digit };

// The number of int8 digits of a packed weight; 0 if it is not in int8.
inline int digits_of(Type type) { return type == Type::int8 ? 2 : type == Type::one_digit ? 1 : 0; }

constexpr int64_t FURTHEST = int64_t(1) << 60;  // offsets are from -FURTHEST to FURTHEST
constexpr int64_t FAR = int64_t(1) << 62;       // stands for a window side without a limit
constexpr int64_t MAX_SIZE = 256;          // the largest d that the buffers can hold

// An array over (row, key head, group, i, j), read in place. A row is one text of the batch;
// several leading axes count as one axis of rows. Steps count elements; a broadcast axis has
// step 0.
struct Cells {
  void* data = nullptr;  // nullptr if the array is not given
  Type type = Type::float32;
  const int64_t* rows = nullptr;  // (rows): the offset of each row, in elements
  int64_t head = 0, group = 0, i = 0, j = 0;

  explicit operator bool() const { return data != nullptr; }
};

// One call of attention; see qkv.attention. Query head h is (h / group, h % group).
struct Attention {
  int64_t rows = 0, kv_heads = 0, group = 0;
  int64_t size = 0;        // d, of query and key
  int64_t value_size = 0;  // dv
  // For each row: the numbers of queries and keys in the arrays, the numbers of real queries and keys
  // (without padding), and the position of query 0 among the keys.
  const int64_t *length = nullptr, *keys = nullptr;
  const int64_t *query_length = nullptr, *key_length = nullptr;
  const int64_t* offset = nullptr;
  int64_t left = FAR, right = FAR;  // FAR means no limit

  Cells query, key, value;  // all of one float type, but not float64; axis j has length 1
  Cells mask;               // boolean (True: the query sees the key) or float (added to scores; -inf masks)
  Cells bias;               // float, added to scores; -inf masks
  const float* slopes = nullptr;  // (heads): ALiBi
  const float* sinks = nullptr;   // (heads, num_sinks)
  int64_t num_sinks = 0;
  double softcap = 0;  // 0 means no softcap
  double scale = 1;

  Cells out;      // the type of query, or float32; axis j has length 1
  Cells lse;      // float64, optional; axis j is not used
  Cells weights;  // float32, optional; all 0 before the call, which writes the weights here

  // The summary, computed if top_k > 0.
  int64_t top_k = 0;
  Cells top_indices;  // int64; i counts queries, and j counts ranks
  Cells top_weights;  // float32
  Cells received;     // float64; j counts keys, and i is not used
};

// The arguments of attention_grad in addition to the forward call. `out` and `lse` of the forward call
// already have its results. Each row has its own gradients.
struct Gradient {
  Cells upstream;           // the gradient for out: float32, float16 or bfloat16; axis j has length 1
  double most = 0;          // up to this log-sum-exp, recomputed weights are exact enough
  Cells query, key, value;  // float32; axis j has length 1
  // The backward pass adds to these arrays:
  Cells bias;                // float32, if bias is given; broadcast axes have step 0
  double* slopes = nullptr;  // (rows, heads)
  double* sinks = nullptr;   // (rows, heads, num_sinks)
  bool* unsound = nullptr;   // (rows, kv_heads): true if NumPy must compute the gradients of this key head
};

enum class Activation : int;  // 0 for none; activation.h lists the others

// y = activation(x @ W + bias) * gate + residual, for each row; see `linear` in Python.
struct Linear {
  int64_t rows = 0, in = 0, out = 0;
  Type type = Type::float32;       // the type of x and W; sums are float32
  Type y_type = Type::float32;     // the type of y, gate and residual: float32, or the type of x
  const void* x = nullptr;    // (rows, in): contiguous rows; the step between rows counts elements
  int64_t x_step = 0;
  const void* packed = nullptr;  // W (in, out), packed by `pack` or `pack_int8`
  // the type of x; if x and y are float32, also int8, one_digit, float16 or wide_bfloat16
  Type packed_type = Type::float32;
  const float* bias = nullptr;   // (out)
  Activation activation{};
  const void* gate = nullptr;  // (rows, out): the factor of the activation's result
  int64_t gate_step = 0;
  const void* residual = nullptr;  // (rows, out): added last
  int64_t residual_step = 0;
  void* y = nullptr;  // (rows, out)
  int64_t y_step = 0;
};

// y = (x - mean) / scale * weight + bias for each row, where scale is sqrt(mean square + eps).
struct Norm {
  int64_t rows = 0, size = 0;
  Type type = Type::float32;  // the type of x and y, float32 or bfloat16; all other arrays are float32
  const void* x = nullptr;    // (rows, size): contiguous rows
  int64_t x_step = 0;
  bool centred = true;  // if false, the mean is taken as 0
  float eps = 0;
  const float* weight = nullptr;  // (size)
  const float* bias = nullptr;    // (size), optional
  float* scale = nullptr;         // (rows)
  void* y = nullptr;              // (rows, size)
  int64_t y_step = 0;
};

// y = left.T @ right; all arrays are float32 with contiguous rows.
struct Outer {
  int64_t depth = 0, rows = 0, columns = 0;
  const float* left = nullptr;  // (depth, rows)
  int64_t left_step = 0;
  const float* right = nullptr;  // (depth, columns)
  int64_t right_step = 0;
  float* y = nullptr;  // (rows, columns)
  int64_t y_step = 0;
  float* left_sums = nullptr;   // (rows), optional: the sums of left over the depth
  float* right_sums = nullptr;  // (columns), optional: the sums of right over the depth
};

// The backward pass of Norm; all arrays are float32.
struct NormGrad {
  int64_t rows = 0, size = 0;
  const float* x = nullptr;  // (rows, size)
  int64_t x_step = 0;
  const float* upstream = nullptr;  // (rows, size): the gradient for the result
  int64_t upstream_step = 0;
  const float* weight = nullptr;  // (size)
  const float* scale = nullptr;   // (rows): the divisor of the forward pass
  bool centred = true;
  float* y = nullptr;            // (rows, size), contiguous: the gradient for x
  float* weight_sums = nullptr;  // (size): the gradient for the weight
  float* bias_sums = nullptr;    // (size), optional
};

// The cross entropy of each row, and its gradient.
struct CrossEntropy {
  int64_t rows = 0, size = 0;
  const float* logits = nullptr;  // (rows, size)
  int64_t step = 0;
  const int64_t* targets = nullptr;  // (rows): the loss is NaN if the target is not a column
  const float* weights = nullptr;    // (rows): the factors of the losses; nullptr means 1
  float* losses = nullptr;           // (rows)
  float* grad = nullptr;             // (rows, size), contiguous
};

// One step of AdamW for `count` numbers; see `adamw` in Python.
struct AdamW {
  int64_t count = 0;
  float *parameters = nullptr, *mean = nullptr, *square = nullptr;
  const float* gradient = nullptr;
  const float* decays = nullptr;  // (count): the weight decay of each number; nullptr means `decay` for all
  float decay = 0, rate = 0, factor = 1, eps = 0;
  float keep_mean = 0, add_mean = 0, keep_square = 0, add_square = 0;
  float size = 0;  // the size of a step: rate / (1 - beta1**step)
  float root = 0;  // 1 / sqrt(1 - beta2**step)
};

}  // namespace qkv
