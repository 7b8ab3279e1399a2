// A case that is read from a file: its arrays, its tolerances, and reports of wrong results.
#pragma once

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "variant.h"

namespace qkv {

inline std::string name_of(const Variant& variant) {
  return std::string(variant.name) + " (bfloat16 as " + variant.bfloat16 + ")";
}

inline int64_t bytes_of(Type type) {
  switch (type) {
    case Type::boolean: return 1;
    case Type::float16:
    case Type::bfloat16: return 2;
    case Type::float32: return 4;
    default: return 8;
  }
}

inline double number(const uint8_t* at, Type type) {
  if (type == Type::float64) {
    double x;
    std::memcpy(&x, at, 8);
    return x;
  }
  if (type == Type::integer) {
    int64_t x;
    std::memcpy(&x, at, 8);
    return double(x);
  }
  if (type == Type::float32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (type == Type::bfloat16) {
    uint32_t wide = uint32_t(bits) << 16;
    float x;
    std::memcpy(&x, &wide, 4);
    return x;
  }
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                               : std::ldexp(fraction, -24);
  return bits >> 15 ? -size : size;
}

class File {
 public:
  explicit File(const char* path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw std::string("cannot be read");
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
  }
  bool more() const { return at_ < bytes_.size(); }
  const char* take(int64_t count) {
    if (count < 0 || uint64_t(count) > bytes_.size() - at_) throw std::string("ends too early");
    at_ += size_t(count);
    return bytes_.data() + at_ - count;
  }
  template <class T>
  T one() {
    T x;
    std::memcpy(&x, take(sizeof x), sizeof x);
    return x;
  }
  int64_t whole() { return one<int64_t>(); }
  double real() { return one<double>(); }
  std::string text() {
    int64_t count = whole();
    return std::string(take(count), size_t(count));
  }

 private:
  std::vector<char> bytes_;
  size_t at_ = 0;
};

// A heap block with contents from the file; `reset` restores these contents.
struct Block {
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* data = nullptr;
  const char* original = nullptr;
  int64_t count = 0;

  // Puts `shift` bytes before the data, because slices of NumPy arrays begin at any address.
  void read(File& file, int64_t shift = 0) {
    count = file.whole();
    original = file.take(count);
    memory.reset(new uint8_t[size_t(count + shift)]);
    std::memset(memory.get(), 0xff, size_t(shift));
    data = memory.get() + shift;
    reset();
  }
  void reset() {
    if (count) std::memcpy(data, original, size_t(count));
  }
  bool unchanged() const { return !count || std::memcmp(data, original, size_t(count)) == 0; }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

struct Array {
  Block block, rows;
  Cells cells;
  bool given = false;

  void read(File& file, bool shifted) {
    int64_t type = file.whole();
    given = type >= 0;
    if (!given) return;
    cells.type = Type(type);
    block.read(file, shifted ? bytes_of(cells.type) : 0);
    cells.data = block.data + file.whole() * bytes_of(cells.type);
    rows.read(file);
    cells.rows = rows.as<int64_t>();
    for (int64_t* step : {&cells.head, &cells.group, &cells.i, &cells.j}) *step = file.whole();
  }
  const uint8_t* at(int64_t row, int64_t head, int64_t group, int64_t i, int64_t j) const {
    int64_t away = cells.rows[row] + head * cells.head + group * cells.group + i * cells.i + j * cells.j;
    return static_cast<const uint8_t*>(cells.data) + away * bytes_of(cells.type);
  }
};

inline int failures = 0;

struct Where {
  const std::string& name;
  const Variant& variant;
  int threads;

  void fail(const std::string& what) const {
    ++failures;
    std::printf("%s: %s, %d threads: %s\n", name.c_str(), name_of(variant).c_str(), threads, what.c_str());
  }
};

inline std::string said(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string said(const char* format, ...) {
  char line[400];
  va_list all;
  va_start(all, format);
  std::vsnprintf(line, sizeof line, format, all);
  va_end(all);
  return line;
}

// The certainty of a number, as tests/attend/exact.py defines it.
enum { NEAR, NEAR_OR_NAN, NOT_FINITE, ANYTHING };

inline bool agrees(double actual, double expected, double allowed, int certainty) {
  if (certainty == ANYTHING) return true;
  if (certainty == NOT_FINITE) return !std::isfinite(actual);
  if (certainty == NEAR_OR_NAN && std::isnan(actual)) return true;
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::fabs(actual - expected) <= allowed;
}

struct Case {
  std::string name;
  virtual ~Case() = default;
  virtual void run(const Where&) = 0;
  virtual std::vector<Block*> inputs() = 0;
  virtual std::vector<Block*> outputs() = 0;
};

}  // namespace qkv
