// Finds the variants that this machine can run. They depend on the processor's features, and on the
// registers that the operating system saves.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "variant.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace qkv {

#if defined(QKV_HAS_AMX)
namespace amx { extern const Variant variant; }
#endif
#if defined(QKV_HAS_AMXMODEL)
namespace amxmodel { extern const Variant variant; }
#endif

#if defined(QKV_HAS_PORTABLE)
namespace portable { extern const Variant variant; }
#endif
#if defined(QKV_HAS_AVX2)
namespace avx2 { extern const Variant variant; }
#endif
#if defined(QKV_HAS_AVX512)
namespace avx512 { extern const Variant variant; }
#endif
#if defined(QKV_HAS_AVX512BF16)
namespace avx512bf16 { extern const Variant variant; }
#endif

namespace {

struct Machine {
  bool avx2 = false, avx512 = false, amx = false;
  bool dot_products = false;  // of bfloat16
  bool avx512bf16 = false;    // whether these dot products are faster than float32
  char vendor[13] = {};
  unsigned family = 0;
};

// Rates measured on one core, in GFLOP/s: of multiply-adds in float32, and of AVX-512's BF16 dot products.
// If a processor lists these dot products and is not in the table, bfloat16 is converted to float32.
struct Measured {
  const char* vendor;
  unsigned family;
  double float32, dot_products;
};
constexpr Measured MEASURED[] = {
    {"AuthenticAMD", 25, 118, 236},  // Zen 4
    {"AuthenticAMD", 26, 246, 485},  // Zen 5
    {"GenuineIntel", 6, 221, 116},   // with AMX
};

const Measured* measured_like(const Machine& machine) {
  for (const Measured& row : MEASURED)
    if (std::strcmp(row.vendor, machine.vendor) == 0 && row.family == machine.family) return &row;
  return nullptr;
}
bool gains_by_dot_products(const Machine& machine) {
  const Measured* row = measured_like(machine);
  return row && row->dot_products > row->float32;
}

#if defined(__x86_64__)
bool bit(unsigned word, int place) { return word >> place & 1; }

// Returns XCR0: the registers that the operating system saves when it switches threads.
__attribute__((target("xsave"))) uint64_t saved() { return _xgetbv(0); }

// Asks the system to let this process use the registers of tiles. Linux gives them only on request.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
  return false;
#endif
}

Machine look() {
  Machine has;
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return has;
  const unsigned vendor[] = {b, d, c};
  std::memcpy(has.vendor, vendor, sizeof vendor);
  if (!__get_cpuid(1, &a, &b, &c, &d)) return has;
  has.family = (a >> 8 & 0xf) + ((a >> 8 & 0xf) == 0xf ? a >> 20 & 0xff : 0);
  bool fma = bit(c, 12), osxsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!osxsave || !avx || !fma || !f16c) return has;
  uint64_t registers = saved();
  if ((registers & 0x6) != 0x6) return has;  // xmm, ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
  has.avx2 = bit(b, 5);
  bool f = bit(b, 16), dq = bit(b, 17), bw = bit(b, 30), vl = bit(b, 31);
  bool vnni = bit(c, 11);  // dot products of int8
  bool tiles = bit(d, 24) && bit(d, 22) && bit(d, 25);  // with products of bfloat16 and int8
  has.avx512 = has.avx2 && f && dq && bw && vl && (registers & 0xe6) == 0xe6;  // zmm, masks
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) has.dot_products = has.avx512 && vnni && bit(a, 5);
  has.avx512bf16 = has.dot_products && gains_by_dot_products(has);
  has.amx = has.dot_products && tiles && (registers & 0x60000) == 0x60000 && may_use_tiles();
  return has;
}
#else
Machine look() { return {}; }
#endif

const Machine& machine() {
  static const Machine found = look();
  return found;
}

// The variants that this machine can run, without the model of the tiles.
const std::vector<const Variant*>& machine_variants() {
  static const std::vector<const Variant*> found = [] {
    [[maybe_unused]] const Machine& has = machine();
    std::vector<const Variant*> found;
#if defined(QKV_HAS_AMX)
    if (has.amx) found.push_back(&amx::variant);
#endif
#if defined(QKV_HAS_AVX512BF16)
    if (has.avx512bf16) found.push_back(&avx512bf16::variant);
#endif
#if defined(QKV_HAS_AVX512)
    if (has.avx512 && !has.avx512bf16) found.push_back(&avx512::variant);
#endif
#if defined(QKV_HAS_AVX2)
    if (has.avx2) found.push_back(&avx2::variant);
#endif
#if defined(QKV_HAS_PORTABLE)
    found.push_back(&portable::variant);
#endif
    return found;
  }();
  return found;
}

std::vector<const Variant*> choose() {
  std::vector<const Variant*> found = machine_variants();
#if defined(QKV_HAS_AMXMODEL)
  const char* tiles = std::getenv("QKV_AMX");
  if (tiles && std::strcmp(tiles, "model") == 0) {
    if (machine().amx) found.erase(found.begin());  // the model takes the place of the tiles
    found.insert(found.begin(), &amxmodel::variant);
  }
#endif
  return found;
}

}  // namespace

std::string about_bfloat16() {
  const Machine& has = machine();
  if (has.amx) return "the processor has tiles (AMX), and the system lets this process use them";
  if (!has.dot_products) return "the processor has no instructions for bfloat16";
  const Measured* row = measured_like(has);
  if (!row) return "the processor's dot products of bfloat16 have not been measured";
  char text[160];
  std::snprintf(text, sizeof text, "a core of such a processor reaches %.0f GFLOP/s in dot products of bfloat16, and %.0f in float32",
                row->dot_products, row->float32);
  return text;
}

const Variant& machine_variant() { return *machine_variants().front(); }

const std::vector<const Variant*>& variants() {
  static const std::vector<const Variant*> found = choose();
  return found;
}

}  // namespace qkv
