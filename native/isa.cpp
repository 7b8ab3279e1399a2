// Finds the variants that this machine can run. They depend on the processor's features, and on the
// registers that the operating system saves.
#include <cstdint>

#include "variant.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace qkv {

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
  bool avx2 = false, avx512 = false, avx512bf16 = false;
};

#if defined(__x86_64__)
bool bit(unsigned word, int place) { return word >> place & 1; }

// Returns XCR0: the registers that the operating system saves when it switches threads.
__attribute__((target("xsave"))) uint64_t saved() { return _xgetbv(0); }

Machine look() {
  Machine has;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return has;
  bool fma = bit(c, 12), osxsave = bit(c, 27), avx = bit(c, 28), f16c = bit(c, 29);
  if (!osxsave || !avx || !fma || !f16c) return has;
  uint64_t registers = saved();
  if ((registers & 0x6) != 0x6) return has;  // xmm, ymm
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
  has.avx2 = bit(b, 5);
  bool f = bit(b, 16), dq = bit(b, 17), bw = bit(b, 30), vl = bit(b, 31);
  has.avx512 = has.avx2 && f && dq && bw && vl && (registers & 0xe6) == 0xe6;  // zmm, masks
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) has.avx512bf16 = has.avx512 && bit(a, 5);
  return has;
}
#else
Machine look() { return {}; }
#endif

std::vector<const Variant*> choose() {
  Machine has = look();
  std::vector<const Variant*> found;
#if defined(QKV_HAS_AVX512BF16)
  if (has.avx512bf16) found.push_back(&avx512bf16::variant);
#endif
#if defined(QKV_HAS_AVX512)
  if (has.avx512 && found.empty()) found.push_back(&avx512::variant);
#endif
#if defined(QKV_HAS_AVX2)
  if (has.avx2) found.push_back(&avx2::variant);
#endif
  (void)has;
#if defined(QKV_HAS_PORTABLE)
  found.push_back(&portable::variant);
#endif
  return found;
}

}  // namespace

const std::vector<const Variant*>& variants() {
  static const std::vector<const Variant*> found = choose();
  return found;
}

}  // namespace qkv
