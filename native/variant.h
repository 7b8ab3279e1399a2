// The variants: variant.cpp, compiled once for each instruction set. isa.cpp chooses a variant.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "problem.h"

namespace qkv {

struct Variant {
  const char* name;      // "amx", "avx512", "avx2" or "portable"
  const char* bfloat16;  // how bfloat16 is multiplied: "tiles", "dot products" or "float32"
  int activations;   // the number of activations

  void (*attend)(const Attention&, int threads);
  void (*summarize)(const Attention&, int threads);  // computes attention and its summary

  void (*differentiate)(const Attention&, const Gradient&, int threads);

  // Packs a weight W once for many products. `type` is the type of W and of the packed numbers,
  // or wide_bfloat16 for a W of bfloat16 that multiplies rows of float32; int8 and one_digit are allowed in
  // `packed_bytes` only.
  size_t (*packed_bytes)(int64_t in, int64_t out, Type type);
  void (*pack)(const void* weight, int64_t in_step, int64_t out_step, int64_t in, int64_t out,
               Type type, void* packed, int threads);
  // Packs a weight of two int8 digits, which lie in two arrays with the same steps; columns have scales (out).
  // Without `more`, the weight is packed as `one_digit`.
  void (*pack_int8)(const int8_t* weight, const int8_t* more, int64_t in_step, int64_t out_step,
                    const float* scales, int64_t in, int64_t out, void* packed, int threads);
  void (*linear)(const Linear&, int threads);
  // The same with W in packed blocks: their size, which throws unless `in` and `kind` fit, and the product.
  size_t (*block_bytes)(int64_t in, int64_t out, int64_t kind);
  void (*multiply_blocks)(const Linear&, int64_t kind, int threads);
  void (*norm)(const Norm&, int threads);
  void (*narrow)(const float* x, int64_t count, void* y, int threads);  // converts to bfloat16

  void (*outer)(const Outer&, int threads);
  // y = activation(x), or grad * activation'(x) if grad is given
  void (*map)(Activation, const float* x, const float* grad, float* y, int64_t count, int threads);
  void (*norm_grad)(const NormGrad&, int threads);
  void (*cross_entropy)(const CrossEntropy&, int threads);
  void (*adamw)(const AdamW&, int threads);
  double (*squares)(const float* x, int64_t count, int threads);  // returns the sum of squares

  // One instruction on 16 x 16 sums, rows and columns, for tests; nullptr without tiles.
  void (*multiply_tiles)(Type, void* sums, const void* rows, const void* columns);

  double (*multiply_adds)(Type type, int threads);  // measured floating-point operations per second
  double (*read_rate)(int threads);                 // measured bytes per second
};

const std::vector<const Variant*>& variants();  // the variants that this machine can run, the fastest first
const Variant& machine_variant();  // the fastest of them, without the model of the tiles
std::string about_bfloat16();  // why this machine multiplies bfloat16 as it does

}  // namespace qkv
