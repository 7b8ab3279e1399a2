// What simd.h needs of the standard library, for WebAssembly, where there is none.
#pragma once

#include <stdint.h>

namespace std {

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  static constexpr float infinity() { return __builtin_inff(); }
};

template <class T, T... N>
struct integer_sequence {};
template <class T, T N>
using make_integer_sequence = __make_integer_seq<integer_sequence, T, N>;

inline __attribute__((always_inline)) void* memcpy(void* to, const void* from, unsigned long count) {
  return __builtin_memcpy(to, from, count);
}

}  // namespace std
