// One variant: all functions of the kernel, for the instruction set that this file is compiled for.
#include "variant.h"

#include "attention.h"
#include "blocks.h"
#include "decode.h"
#include "gradient.h"
#include "summary.h"
#include "half.h"
#include "int8.h"
#include "linear.h"
#include "norm.h"
#include "outer.h"
#include "rates.h"
#include "training.h"

namespace qkv {
namespace QKV_VARIANT {

static void attend(const Attention& a, int threads) {
  if (is_short(a)) return attend_short(a, threads);
  if (a.query.type == Type::bfloat16) return attend_blocks<OfBfloat16>(a, threads);
  attend_blocks<Single>(a, threads);
}

static void summarize(const Attention& a, int threads) {
  if (a.query.type == Type::bfloat16) return summarize_in<OfBfloat16>(a, threads);
  summarize_in<Single>(a, threads);
}

#if defined(QKV_TILES)
constexpr const char* NAME = "amx";
constexpr auto MULTIPLY_TILES = multiply_tiles;
#elif defined(__AVX512F__)
constexpr const char* NAME = "avx512";
#elif defined(__AVX2__)
constexpr const char* NAME = "avx2";
#else
constexpr const char* NAME = "portable";
#endif
#if !defined(QKV_TILES)
constexpr auto MULTIPLY_TILES = nullptr;
#endif

extern const Variant variant;
const Variant variant = {
    NAME, OfBfloat16::NAME, ACTIVATIONS, attend, summarize, differentiate, packed_bytes, pack,
    pack_int8, linear, block_bytes, multiply_blocks, norm, narrow, outer, map, norm_grad, cross_entropy,
    adamw, squares, MULTIPLY_TILES, multiply_adds, read_rate,
};

}  // namespace QKV_VARIANT
}  // namespace qkv
