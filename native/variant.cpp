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

#if defined(QKV_TILES_MODEL)
// The machine's own variant computes what the model of the tiles leaves out: all that tiles do not compute.
template <auto Variant::*member>
struct Own;
template <class Result, class... Arguments, Result (*Variant::*member)(Arguments...)>
struct Own<member> {
  static Result call(Arguments... arguments) { return (machine_variant().*member)(arguments...); }
};
constexpr bool IS_MODEL = true;
#define QKV_WITHOUT_TILES(name) Own<&Variant::name>::call
template <> void attend_blocks<Single>(const Attention& a, int threads) { machine_variant().attend(a, threads); }
template <> void attend_parts<Bfloat16>(const Attention& a, int threads) { machine_variant().attend(a, threads); }
template <> void attend_parts<Float16>(const Attention& a, int threads) { machine_variant().attend(a, threads); }
template <> void attend_parts<float>(const Attention& a, int threads) { machine_variant().attend(a, threads); }
template <> void summarize_in<Single>(const Attention& a, int threads) { machine_variant().summarize(a, threads); }
template <> void differentiate_in<Single>(const Attention& a, const Gradient& g, int threads) {
  machine_variant().differentiate(a, g, threads);
}
template <> void multiply_all<float>(const Linear& p, int threads) { machine_variant().linear(p, threads); }
template <> void multiply_all<Float16>(const Linear& p, int threads) { machine_variant().linear(p, threads); }
template <> void multiply_all<float, Float16>(const Linear& p, int threads) { machine_variant().linear(p, threads); }
template <> void multiply_all<float, WideBfloat16>(const Linear& p, int threads) {
  machine_variant().linear(p, threads);
}
#else
constexpr bool IS_MODEL = false;
#define QKV_WITHOUT_TILES(name) name
#endif

static void attend(const Attention& a, int threads) {
  Type type = a.query.type;
  if (is_short(a)) {
    if (type == Type::float32) return attend_parts<float>(a, threads);
    if (type == Type::float16) return attend_parts<Float16>(a, threads);
    return attend_parts<Bfloat16>(a, threads);
  }
  if (type == Type::bfloat16) return attend_blocks<OfBfloat16>(a, threads);
  attend_blocks<Single>(a, threads);
}

static void summarize(const Attention& a, int threads) {
  if (a.query.type == Type::bfloat16) return summarize_in<OfBfloat16>(a, threads);
  summarize_in<Single>(a, threads);
}

static void differentiate(const Attention& a, const Gradient& g, int threads) {
  if constexpr (OfBfloat16::ALIGN > 1)
    if (a.query.type == Type::bfloat16 && g.upstream.type == Type::bfloat16)
      return differentiate_in<OfBfloat16>(a, g, threads);
  differentiate_in<Single>(a, g, threads);
}

// Whether the machine's own variant packs and multiplies weights of this type.
static bool is_left_out(Type type) { return IS_MODEL && type != Type::bfloat16 && !digits_of(type); }

static size_t packed_bytes(int64_t in, int64_t out, Type type) {
  if (is_left_out(type)) return machine_variant().packed_bytes(in, out, type);
  return digits_of(type) ? packed_bytes_of_int8(in, out, type) : packed_bytes_of_floats(in, out, type);
}

static void pack(const void* weight, int64_t in_step, int64_t out_step, int64_t in, int64_t out, Type type,
                 void* packed, int threads) {
  if (is_left_out(type))
    return machine_variant().pack(weight, in_step, out_step, in, out, type, packed, threads);
  auto run = [&](auto zero) {
    typedef decltype(zero) T;
    pack_all(static_cast<const T*>(weight), in_step, out_step, in, out, static_cast<T*>(packed), threads);
  };
  if (type == Type::float16) return run(Float16{});
  if (type == Type::bfloat16) return run(Bfloat16{});
  if (type == Type::wide_bfloat16) return run(WideBfloat16{});
  run(0.0f);
}

static void linear(const Linear& p, int threads) {
  threads = threads_for_product(double(p.rows) * double(p.in) * double(p.out), threads);
  if (digits_of(p.packed_type)) return multiply_all_int8(p, threads);
  if (p.type == Type::float16) return multiply_all<Float16>(p, threads);
  if (p.type == Type::bfloat16) return multiply_all<Bfloat16>(p, threads);
  if (p.packed_type == Type::float16) return multiply_all<float, Float16>(p, threads);
  if (p.packed_type == Type::wide_bfloat16) return multiply_all<float, WideBfloat16>(p, threads);
  multiply_all<float>(p, threads);
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
    NAME, OfBfloat16::NAME, ACTIVATIONS, attend, summarize, differentiate, packed_bytes, pack, pack_int8, linear,
    QKV_WITHOUT_TILES(block_bytes), QKV_WITHOUT_TILES(multiply_blocks), QKV_WITHOUT_TILES(norm),
    QKV_WITHOUT_TILES(narrow), QKV_WITHOUT_TILES(outer), QKV_WITHOUT_TILES(map), QKV_WITHOUT_TILES(norm_grad),
    QKV_WITHOUT_TILES(cross_entropy), QKV_WITHOUT_TILES(adamw), QKV_WITHOUT_TILES(squares),
    MULTIPLY_TILES, QKV_WITHOUT_TILES(multiply_adds), QKV_WITHOUT_TILES(read_rate),
};

}  // namespace QKV_VARIANT
}  // namespace qkv
