// Runs case files on every body that this machine can run: for sanitizers and emulators, which a
// Python process is too heavy for. tests/native writes the files and says what must come out.
//
//   driver FILE...    one line for each failure; exit code 1 if there was any
//
// Every array is a heap block of its own, exactly as long as what may be read of it, so that an
// address sanitizer sees one step too far. Built with QKV_IMPATIENT, each case also runs a first time
// that is ended on its way.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "body.h"
#include "threads.h"

namespace qkv {

// The choice leaves it out where the one with BF16 runs; here both do.
#if defined(QKV_HAS_AVX512)
namespace avx512 { extern const Body body; }
#endif

namespace {

std::vector<const Body*> all_bodies() {
  std::vector<const Body*> found = bodies();
#if defined(QKV_HAS_AVX512)
  if (found[0]->bfloat16) found.push_back(&avx512::body);
#endif
  return found;
}

std::string name_of(const Body& body) { return std::string(body.name) + (body.bfloat16 ? "+bf16" : ""); }

int64_t bytes_of(Type type) {
  switch (type) {
    case Type::boolean: return 1;
    case Type::float16:
    case Type::bfloat16: return 2;
    case Type::float32: return 4;
    default: return 8;
  }
}

double number(const uint8_t* at, Type type) {
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

// A heap block with what the file says, which `reset` brings back.
struct Block {
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* data = nullptr;
  const char* original = nullptr;
  int64_t count = 0;

  // `shift` bytes in front: NumPy's slices begin anywhere.
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

int failures = 0;

struct Where {
  const std::string& name;
  const Body& body;
  int threads;

  void fail(const std::string& what) const {
    ++failures;
    std::printf("%s: %s, %d threads: %s\n", name.c_str(), name_of(body).c_str(), threads, what.c_str());
  }
};

std::string said(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string said(const char* format, ...) {
  char line[400];
  va_list all;
  va_start(all, format);
  std::vsnprintf(line, sizeof line, format, all);
  va_end(all);
  return line;
}

// What tests/attend/exact.py calls a number's certainty.
enum { NEAR, NEAR_OR_NAN, NOT_FINITE, ANYTHING };

bool agrees(double actual, double expected, double allowed, int certainty) {
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

struct AttentionCase : Case {
  Attention a;
  Block length, keys, query_length, key_length, offset, slopes, sinks;
  Array query, key, value, mask, bias;
  Array out, lse, weights, top_indices, top_weights, received;
  double out_allowed, weight_allowed, lse_relative, lse_allowed;
  // in the order row, head, i, and then column, nothing or key
  Block expected_out, certain_out, expected_lse, certain_lse, expected_weights, visible;

  AttentionCase(File& file, bool shifted) {
    for (int64_t* x : {&a.rows, &a.kv_heads, &a.group, &a.size, &a.value_size, &a.left, &a.right,
                       &a.num_sinks, &a.top_k})
      *x = file.whole();
    for (double* x : {&a.softcap, &a.scale, &out_allowed, &weight_allowed, &lse_relative, &lse_allowed})
      *x = file.real();
    for (Block* x : {&length, &keys, &query_length, &key_length, &offset, &slopes, &sinks})
      x->read(file);
    a.length = length.as<int64_t>();
    a.keys = keys.as<int64_t>();
    a.query_length = query_length.as<int64_t>();
    a.key_length = key_length.as<int64_t>();
    a.offset = offset.as<int64_t>();
    if (slopes.count) a.slopes = slopes.as<float>();
    if (a.num_sinks) a.sinks = sinks.as<float>();
    Array* arrays[] = {&query, &key, &value, &mask, &bias, &out, &lse, &weights,
                       &top_indices, &top_weights, &received};
    Cells* cells[] = {&a.query, &a.key, &a.value, &a.mask, &a.bias, &a.out, &a.lse, &a.weights,
                      &a.top_indices, &a.top_weights, &a.received};
    for (size_t k = 0; k < std::size(arrays); ++k) {
      arrays[k]->read(file, shifted);
      *cells[k] = arrays[k]->cells;
    }
    for (Block* x : {&expected_out, &certain_out, &expected_lse, &certain_lse, &expected_weights, &visible})
      x->read(file);
  }

  std::vector<Block*> inputs() override {
    return {&length, &keys, &query_length, &key_length, &offset, &slopes, &sinks, &query.block,
            &key.block, &value.block, &mask.block, &bias.block};
  }
  std::vector<Block*> outputs() override {
    return {&out.block, &lse.block, &weights.block, &top_indices.block, &top_weights.block,
            &received.block};
  }

  void run(const Where& where) override {
    (a.top_k ? where.body.summarize : where.body.attend)(a, where.threads);
    compare(where);
  }

  void compare(const Where& where) {
    std::vector<uint8_t> mine(size_t(out.block.count), 0);  // the bytes of out that are an element's
    int64_t column = 0, place = 0, cell = 0;
    bool sound = true;
    int said_already = failures;
    for (int64_t row = 0; row < a.rows; ++row)
      for (int64_t head = 0; head < a.kv_heads; ++head)
        for (int64_t group = 0; group < a.group; ++group) {
          std::vector<double> total(size_t(a.keys[row]), 0);
          for (int64_t i = 0; i < a.length[row]; ++i, ++place) {
            auto at = [&](const char* what) {
              return said("%s at row %ld, head %ld, query %ld", what, long(row),
                          long(head * a.group + group), long(i));
            };
            for (int64_t c = 0; c < a.value_size; ++c, ++column) {
              const uint8_t* from = out.at(row, head, group, i, c);
              std::memset(mine.data() + (from - out.block.data), 1, size_t(bytes_of(a.out.type)));
              double x = number(from, a.out.type), y = expected_out.as<double>()[column];
              if (failures - said_already < 3 && !agrees(x, y, out_allowed, certain_out.data[column]))
                where.fail(at("out") + said(", column %ld is %.9g and not %.9g (allowed %.2g)", long(c),
                                            x, y, out_allowed));
            }
            double y = expected_lse.as<double>()[place];
            double x = lse.given ? number(lse.at(row, head, group, i, 0), Type::float64) : y;
            double allowed = lse_relative * std::fmax(1, std::fabs(y)) + lse_allowed;
            int certain = certain_lse.data[place];
            if (failures - said_already < 3 && !agrees(x, y, allowed, certain))
              where.fail(at("lse") + said(" is %.9g and not %.9g (allowed %.2g)", x, y, allowed));
            sound = sound && certain == NEAR && !std::isnan(y);
            if (!expected_weights.count) continue;
            const double* whole = expected_weights.as<double>() + cell;
            const uint8_t* seen = visible.data + cell;
            cell += a.keys[row];
            if (weights.given)
              for (int64_t j = 0; j < a.keys[row]; ++j) {
                double w = number(weights.at(row, head, group, i, j), Type::float32);
                bool free = std::isnan(y) && !seen[j];  // a hidden cell of a NaN row
                double v = std::isnan(y) ? NAN : whole[j];
                if (!free && failures - said_already < 3 &&
                    !agrees(w, v, seen[j] ? weight_allowed : 0, certain))
                  where.fail(at("weight") + said(", key %ld is %.9g and not %.9g", long(j), w, v));
              }
            if (a.top_k && certain == NEAR && !std::isnan(y)) {
              std::string wrong = ranks(row, head, group, i, whole, seen);
              if (!wrong.empty()) where.fail(at("summary") + ": " + wrong);
              for (int64_t j = 0; j < a.keys[row]; ++j) total[size_t(j)] += whole[j];
            }
          }
          if (a.top_k && sound)
            for (int64_t j = 0; j < a.keys[row]; ++j) {
              double x = number(received.at(row, head, group, 0, j), Type::float64);
              double allowed = weight_allowed * double(a.length[row] + 1);
              if (failures - said_already < 3 && !agrees(x, total[size_t(j)], allowed, NEAR))
                where.fail(said("received at row %ld, head %ld, key %ld is %.9g and not %.9g", long(row),
                                long(head * a.group + group), long(j), x, total[size_t(j)]));
            }
        }
    for (size_t k = 0; k < mine.size(); ++k)
      if (!mine[k] && out.block.data[k] != uint8_t(out.block.original[k]))
        return where.fail("something beside out was written to");
  }

  // What is wrong with the largest weights of one query.
  std::string ranks(int64_t row, int64_t head, int64_t group, int64_t i, const double* whole,
                    const uint8_t* seen) const {
    std::vector<bool> listed(size_t(a.keys[row]), false);
    int64_t count = 0, last = -1;
    double least = INFINITY, last_weight = INFINITY;
    for (int64_t j = 0; j < a.keys[row]; ++j) count += seen[j] != 0;
    if (count > a.top_k) count = a.top_k;
    for (int64_t k = 0; k < a.top_k; ++k) {
      int64_t j = int64_t(number(top_indices.at(row, head, group, i, k), Type::integer));
      double w = number(top_weights.at(row, head, group, i, k), Type::float32);
      if (k >= count) {
        if (j != -1 || w != 0) return said("rank %ld is not empty", long(k));
        continue;
      }
      if (j < 0 || j >= a.keys[row] || !seen[j]) return said("key %ld is listed and not visible", long(j));
      if (listed[size_t(j)]) return said("key %ld is listed twice", long(j));
      listed[size_t(j)] = true;
      if (!(std::fabs(w - whole[j]) <= weight_allowed))
        return said("key %ld has weight %.9g and not %.9g", long(j), w, whole[j]);
      if (w > last_weight || (w == last_weight && j < last)) return "the order is wrong";
      last = j;
      last_weight = w;
      least = std::fmin(least, whole[j]);
    }
    for (int64_t j = 0; j < a.keys[row]; ++j)
      if (seen[j] && !listed[size_t(j)] && whole[j] > least + 2 * weight_allowed)
        return said("key %ld has weight %.9g and is not listed", long(j), whole[j]);
    return "";
  }
};

// What holds the forward pass is given here; gradients stand in one piece.
struct GradientCase : AttentionCase {
  Gradient g;
  Array above, query_sums, key_sums, value_sums, bias_sums;
  Block slope_sums, sink_sums, unsound;
  Block expected[6];
  double allowed[6];

  GradientCase(File& file, bool shifted) : AttentionCase(file, shifted) {
    Array* arrays[] = {&above, &query_sums, &key_sums, &value_sums, &bias_sums};
    Cells* cells[] = {&g.above, &g.query, &g.key, &g.value, &g.bias};
    for (size_t k = 0; k < std::size(arrays); ++k) {
      arrays[k]->read(file, shifted);
      *cells[k] = arrays[k]->cells;
    }
    for (Block* x : {&slope_sums, &sink_sums, &unsound}) x->read(file);
    g.slopes = reinterpret_cast<double*>(slope_sums.data);
    g.sinks = reinterpret_cast<double*>(sink_sums.data);
    g.unsound = reinterpret_cast<bool*>(unsound.data);
    g.most = file.real();
    for (int k = 0; k < 6; ++k) {
      expected[k].read(file);
      allowed[k] = file.real();
    }
  }

  std::vector<Block*> inputs() override {
    std::vector<Block*> all = AttentionCase::inputs();
    for (Block* x : {&out.block, &lse.block, &above.block}) all.push_back(x);
    return all;
  }
  std::vector<Block*> outputs() override {
    return {&query_sums.block, &key_sums.block, &value_sums.block, &bias_sums.block,
            &slope_sums, &sink_sums, &unsound};
  }

  void run(const Where& where) override {
    where.body.differentiate(a, g, where.threads);
    const char* names[] = {"query", "key", "value", "bias", "slopes", "sinks"};
    for (int k = 0; k < 6; ++k) {
      Type type = k < 4 ? Type::float32 : Type::float64;
      const Block& block = *outputs()[size_t(k)];
      int64_t count = expected[k].count / 8;
      if (block.count != count * bytes_of(type)) where.fail(said("%s has another size", names[k]));
      for (int64_t at = 0; at < count; ++at) {
        double x = number(block.data + at * bytes_of(type), type);
        double y = expected[k].as<double>()[at];
        if (agrees(x, y, allowed[k], NEAR)) continue;
        where.fail(said("the gradient of %s at %ld is %.9g and not %.9g (allowed %.2g)", names[k],
                        long(at), x, y, allowed[k]));
        break;
      }
    }
    for (int64_t head = 0; head < a.rows * a.kv_heads; ++head)
      if (g.unsound[head]) where.fail(said("head %ld counts as unsound", long(head)));
  }
};

struct LinearCase : Case {
  Linear l;
  Block weight, x, bias, gate, residual, y, expected, allowed;
  int64_t in_step, out_step, y_start;

  LinearCase(File& file, bool shifted) {
    for (int64_t* n : {&l.rows, &l.in, &l.out, &in_step, &out_step, &l.x_step, &l.gate_step,
                       &l.residual_step, &l.y_step})
      *n = file.whole();
    l.type = l.y_type = Type(file.whole());
    l.activation = Activation(file.whole());
    int64_t shift = shifted ? bytes_of(l.type) : 0;
    for (Block* block : {&weight, &x, &bias, &gate, &residual, &y}) block->read(file, shift);
    expected.read(file);
    allowed.read(file);
    l.x = x.data;
    if (bias.count) l.bias = bias.as<float>();
    if (gate.count) l.gate = gate.data;
    if (residual.count) l.residual = residual.data;
    l.y = y.data;
  }
  std::vector<Block*> inputs() override { return {&weight, &x, &bias, &gate, &residual}; }
  std::vector<Block*> outputs() override { return {&y}; }

  void run(const Where& where) override {
    if (!where.body.linear) return;
    size_t bytes = where.body.packed_bytes(l.in, l.out, l.type);
    std::unique_ptr<void, void (*)(void*)> packed(
        ::operator new(bytes, std::align_val_t(64)),
        [](void* memory) { ::operator delete(memory, std::align_val_t(64)); });
    std::memset(packed.get(), 0xff, bytes);  // NaN
    where.body.pack(weight.data, in_step, out_step, l.in, l.out, l.type, packed.get(), where.threads);
    l.packed = packed.get();
    where.body.linear(l, where.threads);

    int64_t size = bytes_of(l.type);
    std::vector<uint8_t> mine(size_t(y.count), 0);
    for (int64_t r = 0, k = 0; r < l.rows; ++r)
      for (int64_t c = 0; c < l.out; ++c, ++k) {
        int64_t at = (r * l.y_step + c) * size;
        std::memset(mine.data() + at, 1, size_t(size));
        double found = number(y.data + at, l.type), wanted = expected.as<double>()[k];
        if (!agrees(found, wanted, allowed.as<double>()[k], NEAR))
          return where.fail(said("y at row %ld, column %ld is %.9g and not %.9g (allowed %.2g)", long(r),
                                 long(c), found, wanted, allowed.as<double>()[k]));
      }
    for (size_t k = 0; k < mine.size(); ++k)
      if (!mine[k] && y.data[k] != uint8_t(y.original[k]))
        return where.fail("something beside y was written to");
  }
};

// What learning asks: all float32 (targets: int64), in one piece each but for rows that may be
// further apart than they are long. The fields that each asks for are in the order of `run`.
struct LearningCase : Case {
  std::string which;
  std::vector<int64_t> sizes;
  std::vector<double> settings;
  std::vector<Block> given, found, expected;
  double allowed;

  LearningCase(File& file, bool shifted) {
    which = file.text();
    sizes.resize(size_t(file.whole()));
    for (int64_t& size : sizes) size = file.whole();
    settings.resize(size_t(file.whole()));
    for (double& setting : settings) setting = file.real();
    given = std::vector<Block>(size_t(file.whole()));
    for (Block& block : given) block.read(file, shifted ? 8 : 0);
    found = std::vector<Block>(size_t(file.whole()));
    expected = std::vector<Block>(found.size());
    for (Block& block : found) block.read(file, shifted ? 4 : 0);
    for (Block& block : expected) block.read(file);
    allowed = file.real();
  }
  std::vector<Block*> inputs() override { return pointers(given); }
  std::vector<Block*> outputs() override { return pointers(found); }

  static std::vector<Block*> pointers(std::vector<Block>& blocks) {
    std::vector<Block*> all;
    for (Block& block : blocks) all.push_back(&block);
    return all;
  }
  const float* in(size_t k) const { return given[k].count ? given[k].as<float>() : nullptr; }
  float* out(size_t k) const {
    return found[k].count ? reinterpret_cast<float*>(found[k].data) : nullptr;
  }
  float setting(size_t k) const { return float(settings[k]); }

  void run(const Where& where) override {
    const Body& body = where.body;
    if (which == "outer") {
      Outer p;
      p.depth = sizes[0];
      p.rows = sizes[1];
      p.columns = sizes[2];
      p.left_step = sizes[3];
      p.right_step = sizes[4];
      p.left = in(0);
      p.right = in(1);
      p.y = out(0);
      p.y_step = p.columns;
      p.left_sums = out(1);
      p.right_sums = out(2);
      body.outer(p, where.threads);
    } else if (which == "map") {
      body.map(Activation(sizes[1]), in(0), in(1), out(0), sizes[0], where.threads);
    } else if (which == "norm_grad") {
      NormGrad p;
      p.rows = sizes[0];
      p.size = sizes[1];
      p.x_step = sizes[2];
      p.above_step = sizes[3];
      p.centred = sizes[4] != 0;
      p.x = in(0);
      p.weight = in(1);
      p.scale = in(2);
      p.above = in(3);
      p.y = out(0);
      p.weight_sums = out(1);
      p.bias_sums = out(2);
      body.norm_grad(p, where.threads);
    } else if (which == "cross_entropy") {
      CrossEntropy p;
      p.rows = sizes[0];
      p.size = sizes[1];
      p.step = sizes[2];
      p.logits = in(0);
      p.targets = given[1].as<int64_t>();
      p.weights = in(2);
      p.losses = out(0);
      p.grad = out(1);
      body.cross_entropy(p, where.threads);
    } else if (which == "adamw") {
      AdamW p;
      p.count = sizes[0];
      p.gradient = in(0);
      p.decays = in(1);
      p.parameters = out(0);
      p.mean = out(1);
      p.square = out(2);
      float* to[] = {&p.decay,    &p.rate,        &p.factor,     &p.eps,  &p.keep_mean,
                     &p.add_mean, &p.keep_square, &p.add_square, &p.size, &p.root};
      for (size_t k = 0; k < std::size(to); ++k) *to[k] = setting(k);
      body.adamw(p, where.threads);
    } else {
      double total = body.squares(in(0), sizes[0], where.threads);
      *out(0) = float(total);
    }
    for (size_t k = 0; k < found.size(); ++k)
      for (int64_t at = 0; at < expected[k].count / 8; ++at) {
        double x = number(found[k].data + at * 4, Type::float32), y = expected[k].as<double>()[at];
        if (agrees(x, y, allowed, NEAR)) continue;
        return where.fail(said("result %ld at %ld is %.9g and not %.9g (allowed %.2g)", long(k),
                               long(at), x, y, allowed));
      }
  }
};

std::unique_ptr<Case> next_case(File& file, int number) {
  int64_t kind = file.whole();
  std::string name = file.text();
  std::unique_ptr<Case> found;
  bool shifted = number % 2;
  if (kind == 0) found.reset(new AttentionCase(file, shifted));
  if (kind == 1) found.reset(new LinearCase(file, shifted));
  if (kind == 2) found.reset(new GradientCase(file, shifted));
  if (kind == 3) found.reset(new LearningCase(file, shifted));
  if (!found) throw std::string("holds a case of no known kind");
  found->name = name;
  return found;
}

int ended = 0;  // runs

// Ends a run when it asks for the `left`th time.
struct Ending : Asked {
  int left;
  explicit Ending(int left) : left(left) {}
  bool ends() override { return --left < 0; }
};

[[maybe_unused]] void run_and_end(Case& asked, const Where& where) {
  static int runs = 0;
  Ending ending(++runs % 37);
  try {
    asked.run(where);
  } catch (const Stopped&) {
    ++ended;
  }
}

void run_on(const Body& body, Case& asked) {
  std::vector<std::vector<uint8_t>> first;
  for (int threads : {1, 2, 3}) {
    Where where{asked.name, body, threads};
    for (Block* block : asked.outputs()) block->reset();
    try {
#if defined(QKV_IMPATIENT)
      if (threads == 2) run_and_end(asked, where);
      for (Block* block : asked.outputs()) block->reset();
#endif
      asked.run(where);
    } catch (const std::exception& error) {
      where.fail(error.what());
    }
    for (Block* block : asked.inputs())
      if (!block->unchanged()) {
        where.fail("an input was written to");
        block->reset();
      }
    size_t k = 0;
    for (Block* block : asked.outputs()) {
      if (threads == 1) {
        first.emplace_back(block->data, block->data + block->count);
      } else if (block->count && std::memcmp(first[k].data(), block->data, size_t(block->count)) != 0) {
        where.fail("the bits are not those of one thread");
        break;
      }
      ++k;
    }
  }
}

}  // namespace
}  // namespace qkv

int main(int count, char** paths) {
  int cases = 0;
  std::string names;
  auto bodies = qkv::all_bodies();
  for (const qkv::Body* body : bodies) names += " " + qkv::name_of(*body);
  for (int k = 1; k < count; ++k) {
    try {
      qkv::File file(paths[k]);
      while (file.more()) {
        std::unique_ptr<qkv::Case> asked = qkv::next_case(file, cases++);
        for (const qkv::Body* body : bodies) qkv::run_on(*body, *asked);
      }
    } catch (const std::string& reason) {
      std::printf("%s %s\n", paths[k], reason.c_str());
      ++qkv::failures;
    }
  }
  if (qkv::ended) std::printf("%d runs ended early\n", qkv::ended);
  std::printf("%d cases on%s: %d failures\n", cases, names.c_str(), qkv::failures);
  return qkv::failures ? 1 : 0;
}
