// The Python module qkv._kernel: buffers in, the chosen body called without the interpreter's lock.
//
// Python has checked every argument and written the errors that a user reads. What is checked again
// here, cheaply, is that no shape leads outside of a buffer.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <vector>

#include "body.h"
#include "threads.h"

namespace {

using qkv::Attention;
using qkv::Body;
using qkv::Cells;
using qkv::FAR;
using qkv::FURTHEST;
using qkv::Gradient;
using qkv::Type;

struct Raised : std::exception {};  // a Python error is set already

[[noreturn]] void refuse(const char* reason) { throw std::invalid_argument(reason); }
void need(bool fits, const char* reason) {
  if (!fits) refuse(reason);
}

// Whether Python handles signals on this thread.
bool is_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#else
  return true;  // to ask on another thread does nothing
#endif
}

// Computing without the interpreter's lock, which is taken again however it ends. A signal that
// comes meanwhile is handled; where its handler raises an error, the work ends.
class Unlocked : qkv::Asked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() override { lock(); }

 private:
  bool ends() override {
    if (!is_main_thread()) return false;
    lock();
    bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }
  void lock() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      // The interpreter is ending and wants this thread gone, by unwinding its stack (until Python
      // 3.13). What would be given back there belongs to the interpreter: stay here instead.
      for (;;) pause();
    }
  }

  PyThreadState* state_;
};

Type type_of(const char* format, Py_ssize_t size) {
  if (format && std::strchr("@=", format[0]) && format[0]) ++format;
  if (format && format[0] && !format[1]) {
    switch (format[0]) {
      case '?': return Type::boolean;
      case 'e': return Type::float16;
      case 'H': return Type::bfloat16;  // by its bits
      case 'f': return Type::float32;
      case 'd': return Type::float64;
      case 'l':
      case 'q':
        if (size == 8) return Type::integer;
    }
  }
  PyErr_SetString(PyExc_TypeError, "the kernel does not know this type");
  throw Raised();
}

// An array as Python hands it over, held for as long as this lives; None gives an empty one. Axes
// are counted from the end, and those that are not there have length 1: -1 is the last axis.
class Array {
 public:
  Array(PyObject* object, bool writable = false) {
    if (object == Py_None) return;
    int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &view_, flags) != 0) throw Raised();
    held_ = true;
    try {
      type_ = type_of(view_.format, view_.itemsize);
      for (int k = 0; k < view_.ndim; ++k)
        need(view_.shape[k] < 2 || view_.strides[k] % view_.itemsize == 0,
             "an array does not stand on whole elements");
      need(reinterpret_cast<uintptr_t>(view_.buf) % view_.itemsize == 0, "an array is misaligned");
    } catch (...) {
      PyBuffer_Release(&view_);
      throw;
    }
  }
  ~Array() {
    if (held_) PyBuffer_Release(&view_);
  }
  Array(const Array&) = delete;

  explicit operator bool() const { return held_; }
  Type type() const { return type_; }
  void* data() const { return view_.buf; }
  int axes() const { return view_.ndim; }
  int64_t length(int axis) const { return has(axis) ? view_.shape[view_.ndim + axis] : 1; }
  int64_t step(int axis) const {  // in elements; 0 along an axis of length 1
    return length(axis) == 1 ? 0 : view_.strides[view_.ndim + axis] / view_.itemsize;
  }

  // Whether it stands in one piece, so that it can be read as plain numbers.
  bool plain() const {
    int64_t expected = 1;
    for (int axis = -1; axis >= -axes(); --axis) {
      if (length(axis) != 1 && step(axis) != expected) return false;
      expected *= length(axis);
    }
    return true;
  }
  int64_t count() const {
    int64_t all = 1;
    for (int axis = -axes(); axis < 0; ++axis) all *= length(axis);
    return all;
  }

 private:
  bool has(int axis) const { return view_.ndim + axis >= 0; }
  Py_buffer view_{};
  Type type_ = Type::float32;
  bool held_ = false;
};

const Body& body_of(PyObject* number) {
  long at = PyLong_AsLong(number);
  if (at == -1 && PyErr_Occurred()) throw Raised();
  need(at >= 0 && size_t(at) < qkv::bodies().size(), "there is no such body");
  return *qkv::bodies()[size_t(at)];
}

int64_t whole(PyObject* object) {
  long long number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw Raised();
  return number;
}

int number_of_threads(PyObject* object) {
  return int(std::min<int64_t>(std::max<int64_t>(whole(object), 1), 1024));
}

double real(PyObject* object) {
  double number = PyFloat_AsDouble(object);
  if (number == -1 && PyErr_Occurred()) throw Raised();
  return number;
}

// ---- attention ----------------------------------------------------------------------------------

bool is_working_float(Type type) {
  return type == Type::float16 || type == Type::bfloat16 || type == Type::float32;
}

// Where each row of `array` begins. A row is one place among the axes in front of the last `inner`,
// whose lengths are those of `like`; an axis of length 1 is repeated.
std::vector<int64_t> starts(const Array& array, const Array& like, int inner) {
  int outer = std::max(0, like.axes() - inner);
  need(array.axes() <= std::max(like.axes(), inner), "an array has too many axes");
  std::vector<int64_t> found{0};
  for (int axis = -inner - outer; axis < -inner; ++axis) {
    int64_t length = like.length(axis), step = array.step(axis);
    need(array.length(axis) == length || array.length(axis) == 1,
         "leading dimensions do not broadcast");
    std::vector<int64_t> more;
    more.reserve(found.size() * size_t(length));
    for (int64_t start : found)
      for (int64_t k = 0; k < length; ++k) more.push_back(start + k * step);
    found = std::move(more);
  }
  return found;
}

// A call being put together: what its pointers point to lives here.
struct Problem {
  Attention a;
  std::vector<std::vector<int64_t>> kept;

  Problem() { kept.reserve(32); }

  const int64_t* keep(std::vector<int64_t> numbers) {
    kept.push_back(std::move(numbers));
    return kept.back().data();
  }

  // (..., Hkv * group, i, j) with any axis of length 1 repeated; leading axes are those of query.
  // Query heads come in groups that share a key head, key heads in groups of one.
  Cells cells(const Array& array, const Array& query, int64_t group, int64_t rows, int64_t columns) {
    Cells c;
    if (!array) return c;
    need((array.length(-3) == a.kv_heads * group || array.length(-3) == 1) &&
             (array.length(-2) == rows || array.length(-2) == 1) &&
             (array.length(-1) == columns || array.length(-1) == 1),
         "an array does not fit the heads and lengths");
    c.data = array.data();
    c.type = array.type();
    c.rows = keep(starts(array, query, 3));
    c.head = array.step(-3) * group;
    c.group = group == a.group ? array.step(-3) : 0;
    c.i = array.step(-2);
    c.j = array.step(-1);
    return c;
  }

  // One whole number for all rows, or an array with one for each.
  const int64_t* per_row(PyObject* given, int64_t least, int64_t most) {
    std::vector<int64_t> numbers;
    if (PyLong_Check(given)) {
      numbers.assign(size_t(a.rows), whole(given));
    } else {
      Array array(given);
      need(array && array.type() == Type::integer && array.plain() && array.count() == a.rows,
           "a number for each row is wanted");
      auto* first = static_cast<const int64_t*>(array.data());
      numbers.assign(first, first + a.rows);
    }
    for (int64_t number : numbers)
      need(number >= least && number <= most, "a length or an offset is out of bounds");
    return keep(std::move(numbers));
  }

  void per_head(const Array& slopes, const Array& sinks) {
    int64_t heads = a.kv_heads * a.group;
    if (slopes) {
      need(slopes.type() == Type::float32 && slopes.plain() && slopes.count() == heads,
           "slopes are not one float32 for each head");
      a.slopes = static_cast<const float*>(slopes.data());
    }
    if (sinks && sinks.count()) {
      need(sinks.type() == Type::float32 && sinks.plain() && sinks.axes() == 2 &&
               sinks.length(-2) == heads,
           "sinks are not float32 of (heads, n)");
      a.sinks = static_cast<const float*>(sinks.data());
      a.num_sinks = sinks.length(-1);
    }
  }

  void window(PyObject* left, PyObject* right) {
    a.left = left == Py_None ? FAR : std::min(FAR, whole(left));
    a.right = right == Py_None ? FAR : std::min(FAR, whole(right));
    need(a.left >= 0 && a.right >= 0, "a side of the window is below 0");
  }

  bool empty() const {
    if (a.rows == 0 || a.kv_heads * a.group == 0) return true;
    return std::all_of(a.length, a.length + a.rows, [](int64_t length) { return length == 0; });
  }
};

void need_unit_step(std::initializer_list<const Array*> arrays) {
  for (const Array* array : arrays)
    need(array->length(-1) < 2 || array->step(-1) == 1, "the last axis does not stand together");
}

void need_size(int64_t size) {
  need(size >= 1 && size <= qkv::MAX_SIZE, "query and key must have a size from 1 to MAX_SIZE");
}

void need_one_type(const Array& query, const Array& key, const Array& value, const Array& out) {
  need(is_working_float(query.type()) && key.type() == query.type() &&
           value.type() == query.type() && out.type() == query.type(),
       "query, key, value and out are not of one working type");
}

// What attention and its summary are both asked, in this order, from `body` on.
enum {
  BODY, QUERY, KEY, VALUE, OUT, LSE, MASK, BIAS, SLOPES, SINKS, OFFSET, QUERY_LENGTHS, KEY_LENGTHS,
  LEFT, RIGHT, SOFTCAP, SCALE, THREADS, COMMON
};

struct Common {
  const Array query, key, value, out, lse, mask, bias, slopes, sinks;
  Problem problem;
  int64_t length, keys;

  // `computed`: out and lse are results, not given.
  explicit Common(PyObject* const* args, bool computed = true)
      : query(args[QUERY]), key(args[KEY]), value(args[VALUE]), out(args[OUT], computed),
        lse(args[LSE], computed), mask(args[MASK]), bias(args[BIAS]), slopes(args[SLOPES]),
        sinks(args[SINKS]) {
    need(query && key && value && out, "an array is missing");
    need_one_type(query, key, value, out);
    need_unit_step({&query, &key, &value, &out});
    Attention& a = problem.a;
    length = query.length(-2);
    keys = key.length(-2);
    int64_t heads = query.length(-3);
    a.size = query.length(-1);
    a.value_size = value.length(-1);
    a.kv_heads = key.length(-3);
    a.group = heads / std::max<int64_t>(a.kv_heads, 1);
    need(query.axes() >= 2 && a.group * a.kv_heads == heads, "heads do not divide");
    need(key.length(-1) == a.size && value.length(-2) == keys && value.length(-3) == a.kv_heads,
         "query, key and value do not fit");
    need_size(a.size);
    need(out.length(-2) == length && out.length(-1) == a.value_size && out.length(-3) == heads &&
             out.axes() == query.axes(),
         "out does not fit");
    need(!lse || (lse.type() == Type::float64 && lse.axes() == query.axes() &&
                  lse.length(-1) == 1 && lse.length(-2) == length && lse.length(-3) == heads),
         "lse is not float64 of (..., heads, length, 1)");
    for (int axis = -out.axes(); axis < -3; ++axis)
      need(out.length(axis) == query.length(axis) &&
               (!lse || lse.length(axis) == query.length(axis)),
           "the result's leading dimensions are not those of query");

    std::vector<int64_t> begins = starts(query, query, 3);
    a.rows = int64_t(begins.size());
    a.query = problem.cells(query, query, a.group, length, a.size);
    a.out = problem.cells(out, query, a.group, length, a.value_size);
    a.lse = problem.cells(lse, query, a.group, length, 1);
    a.key = problem.cells(key, query, 1, keys, a.size);
    a.value = problem.cells(value, query, 1, keys, a.value_size);
    a.mask = problem.cells(mask, query, a.group, length, keys);
    a.bias = problem.cells(bias, query, a.group, length, keys);
    need(!mask || mask.type() != Type::integer, "a mask of integers");
    need(!bias || (bias.type() != Type::integer && bias.type() != Type::boolean), "bias is no float");
    a.length = problem.keep(std::vector<int64_t>(size_t(a.rows), length));
    a.keys = problem.keep(std::vector<int64_t>(size_t(a.rows), keys));
    a.query_length =
        args[QUERY_LENGTHS] == Py_None ? a.length : problem.per_row(args[QUERY_LENGTHS], 0, length);
    a.key_length =
        args[KEY_LENGTHS] == Py_None ? a.keys : problem.per_row(args[KEY_LENGTHS], 0, keys);
    a.offset = problem.per_row(args[OFFSET], -FURTHEST, FURTHEST);
    problem.per_head(slopes, sinks);
    problem.window(args[LEFT], args[RIGHT]);
    a.softcap = args[SOFTCAP] == Py_None ? 0 : real(args[SOFTCAP]);
    a.scale = real(args[SCALE]);
  }
};

template <class Work>
PyObject* guarded(Py_ssize_t count, Py_ssize_t expected, const Work& work) {
  try {
    if (count != expected) {
      PyErr_Format(PyExc_TypeError, "%zd arguments are wanted and %zd given", expected, count);
      return nullptr;
    }
    return work();
  } catch (const Raised&) {
  } catch (const qkv::Stopped&) {  // by a signal's handler, whose error is set
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_Format(PyExc_ValueError, "kernel: %s", error.what());
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "kernel: %s", error.what());
  }
  return nullptr;
}

PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* attend(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, COMMON + 1, [&] {
    const Body& body = body_of(args[BODY]);
    int threads = number_of_threads(args[THREADS]);
    Common common(args);
    Attention& a = common.problem.a;
    Array weights(args[COMMON], true);
    if (weights) {
      need(weights.type() == Type::float32 && weights.axes() == common.query.axes() &&
               weights.length(-1) == common.keys && weights.length(-2) == common.length &&
               weights.length(-3) == a.kv_heads * a.group,
           "weights are not float32 of (..., heads, length, keys)");
      for (int axis = -weights.axes(); axis < -3; ++axis)
        need(weights.length(axis) == common.query.length(axis), "weights do not fit");
      need_unit_step({&weights});
      a.weights = common.problem.cells(weights, common.query, a.group, common.length, common.keys);
    }
    if (!common.problem.empty()) {
      Unlocked unlocked;
      body.attend(a, threads);
    }
    return none();
  });
}

// What is asked about packed rows, in this order, from `body` on.
enum {
  ROWS_BODY, ROWS_QUERY, ROWS_KEY, ROWS_VALUE, ROWS_OUT, ROWS_LSE, ROWS_STARTS, ROWS_KEY_STARTS,
  ROWS_SLOPES, ROWS_SINKS, ROWS_OFFSET, ROWS_LEFT, ROWS_RIGHT, ROWS_SOFTCAP, ROWS_SCALE,
  ROWS_THREADS, ROWS_COMMON
};

struct PackedRows {
  const Array query, key, value, out, lse, query_starts, key_starts, slopes, sinks;
  Problem problem;

  // `computed`: out and lse are results, not given.
  explicit PackedRows(PyObject* const* args, bool computed = true)
      : query(args[ROWS_QUERY]), key(args[ROWS_KEY]), value(args[ROWS_VALUE]),
        out(args[ROWS_OUT], computed), lse(args[ROWS_LSE], computed),
        query_starts(args[ROWS_STARTS]), key_starts(args[ROWS_KEY_STARTS]),
        slopes(args[ROWS_SLOPES]), sinks(args[ROWS_SINKS]) {
    need(query && key && value && out && query_starts && key_starts, "an array is missing");
    need_one_type(query, key, value, out);
    need_unit_step({&query, &key, &value, &out});
    Attention& a = problem.a;
    int64_t heads = query.length(-2);
    a.size = query.length(-1);
    a.value_size = value.length(-1);
    a.kv_heads = key.length(-2);
    a.group = heads / std::max<int64_t>(a.kv_heads, 1);
    need(query.axes() == 3 && key.axes() == 3 && value.axes() == 3 && out.axes() == 3 &&
             (!lse || lse.axes() == 3),
         "packed rows are (total, heads, size)");
    need(a.group * a.kv_heads == heads && key.length(-1) == a.size &&
             value.length(-2) == a.kv_heads && value.length(-3) == key.length(-3),
         "query, key and value do not fit");
    need_size(a.size);
    need(like_query(out, a.value_size), "out does not fit");
    need(!lse || (lse.type() == Type::float64 && like_query(lse, 1)),
         "lse is not float64 of (total, heads, 1)");

    a.rows = query_starts.count() - 1;
    need(query_starts.axes() == 1 && key_starts.axes() == 1 && a.rows >= 0 &&
             key_starts.count() == a.rows + 1,
         "starts do not fit");
    a.length = a.query_length = lengths(query_starts, query.length(-3));
    a.keys = a.key_length = lengths(key_starts, key.length(-3));
    a.query = query_cells(query);
    a.out = query_cells(out);
    a.lse = query_cells(lse);
    a.key = key_cells(key);
    a.value = key_cells(value);
    problem.per_head(slopes, sinks);
    a.offset = problem.per_row(args[ROWS_OFFSET], -FURTHEST, FURTHEST);
    problem.window(args[ROWS_LEFT], args[ROWS_RIGHT]);
    a.softcap = args[ROWS_SOFTCAP] == Py_None ? 0 : real(args[ROWS_SOFTCAP]);
    a.scale = real(args[ROWS_SCALE]);
  }

  bool like_query(const Array& array, int64_t size) const {
    return array.axes() == 3 && array.length(-3) == query.length(-3) &&
           array.length(-2) == query.length(-2) && array.length(-1) == size;
  }
  bool like_key(const Array& array, int64_t size) const {
    return array.axes() == 3 && array.length(-3) == key.length(-3) &&
           array.length(-2) == key.length(-2) && array.length(-1) == size;
  }
  Cells query_cells(const Array& array) { return cells(array, query_starts, problem.a.group); }
  Cells key_cells(const Array& array) { return cells(array, key_starts, 1); }

 private:
  // How long the sequences are.
  const int64_t* lengths(const Array& given, int64_t total) {
    need(given.type() == Type::integer && given.plain(), "starts are not int64");
    auto* first = static_cast<const int64_t*>(given.data());
    std::vector<int64_t> found(static_cast<size_t>(problem.a.rows));
    for (size_t b = 0; b < found.size(); ++b) {
      need(first[b] >= 0 && first[b] <= first[b + 1] && first[b + 1] <= total, "starts are wrong");
      found[b] = first[b + 1] - first[b];
    }
    return problem.keep(std::move(found));
  }
  Cells cells(const Array& array, const Array& at, int64_t group) {
    Cells c;
    if (!array) return c;
    c.data = array.data();
    c.type = array.type();
    std::vector<int64_t> rows(static_cast<size_t>(problem.a.rows));
    for (size_t b = 0; b < rows.size(); ++b)
      rows[b] = static_cast<const int64_t*>(at.data())[b] * array.step(-3);
    c.rows = problem.keep(std::move(rows));
    c.head = array.step(-2) * group;
    c.group = group == problem.a.group ? array.step(-2) : 0;
    c.i = array.step(-3);
    c.j = array.step(-1);
    return c;
  }
};

PyObject* attend_packed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, ROWS_COMMON, [&] {
    const Body& body = body_of(args[ROWS_BODY]);
    int threads = number_of_threads(args[ROWS_THREADS]);
    PackedRows rows(args);
    if (!rows.problem.empty()) {
      Unlocked unlocked;
      body.attend(rows.problem.a, threads);
    }
    return none();
  });
}

PyObject* summarize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, COMMON + 3, [&] {
    const Body& body = body_of(args[BODY]);
    int threads = number_of_threads(args[THREADS]);
    Common common(args);
    Attention& a = common.problem.a;
    const Array indices(args[COMMON], true), weights(args[COMMON + 1], true);
    const Array received(args[COMMON + 2], true);
    need(common.lse && indices && weights && received, "an array is missing");
    int64_t heads = a.kv_heads * a.group;
    a.top_k = indices.length(-1);
    need(a.top_k >= 1 && weights.length(-1) == a.top_k, "ranks do not fit");
    need(indices.type() == Type::integer && weights.type() == Type::float32 &&
             received.type() == Type::float64,
         "a summary is int64, float32 and float64");
    for (const Array* array : {&indices, &weights, &received}) {
      need(array->axes() == common.query.axes() && array->length(-3) == heads,
           "a summary does not fit");
      for (int axis = -array->axes(); axis < -3; ++axis)
        need(array->length(axis) == common.query.length(axis), "a summary does not fit");
    }
    need(indices.length(-2) == common.length && weights.length(-2) == common.length &&
             received.length(-2) == 1 && received.length(-1) == common.keys,
         "a summary does not fit");
    need_unit_step({&indices, &weights});
    Problem& problem = common.problem;
    a.top_indices = problem.cells(indices, common.query, a.group, common.length, a.top_k);
    a.top_weights = problem.cells(weights, common.query, a.group, common.length, a.top_k);
    a.received = problem.cells(received, common.query, a.group, 1, common.keys);
    if (!problem.empty()) {
      Unlocked unlocked;
      body.summarize(a, threads);
    }
    return none();
  });
}

// What a gradient has for each row: `slopes (rows, heads)`, `sinks (rows, heads, n)`, and `unsound
// (rows, key heads)`.
void per_row_sums(Gradient& g, const Attention& a, const Array& slopes, const Array& sinks,
                  const Array& unsound) {
  auto numbers = [&](const Array& array, Type type, int64_t each) {
    need(array && array.type() == type && array.plain() && array.count() == a.rows * each,
         "numbers of the rows do not fit");
    return array.data();
  };
  int64_t heads = a.kv_heads * a.group;
  if (a.slopes) g.slopes = static_cast<double*>(numbers(slopes, Type::float64, heads));
  if (a.num_sinks)
    g.sinks = static_cast<double*>(numbers(sinks, Type::float64, heads * a.num_sinks));
  g.unsound = static_cast<bool*>(numbers(unsound, Type::boolean, a.kv_heads));
}

PyObject* differentiate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, COMMON + 9, [&] {
    const Body& body = body_of(args[BODY]);
    int threads = number_of_threads(args[THREADS]);
    Common common(args, false);
    Problem& problem = common.problem;
    Attention& a = problem.a;
    int64_t heads = a.kv_heads * a.group;
    Gradient g;
    g.most = real(args[COMMON]);
    const Array above(args[COMMON + 1]), query(args[COMMON + 2], true), key(args[COMMON + 3], true);
    const Array value(args[COMMON + 4], true), bias(args[COMMON + 5], true);
    const Array slopes(args[COMMON + 6], true), sinks(args[COMMON + 7], true);
    const Array unsound(args[COMMON + 8], true);
    need(common.lse && above && query && key && value && unsound, "an array is missing");
    need(a.value_size <= qkv::MAX_SIZE, "value must have a size of at most MAX_SIZE");
    need(is_working_float(above.type()), "the gradient of out is of no working type");
    need_unit_step({&above, &query, &key, &value});
    need(above.length(-1) == a.value_size && above.length(-2) == common.length &&
             above.length(-3) == heads && query.length(-1) == a.size &&
             query.length(-2) == common.length && query.length(-3) == heads &&
             key.length(-1) == a.size && value.length(-1) == a.value_size,
         "gradients do not fit");
    for (const Array* array : {&key, &value})
      need(array->length(-2) == common.keys && array->length(-3) == a.kv_heads,
           "gradients do not fit");
    for (const Array* array : {&query, &key, &value}) {
      need(array->type() == Type::float32, "gradients are not float32");
      for (int axis = -std::max(array->axes(), common.query.axes()); axis < -3; ++axis)
        need(array->length(axis) == common.query.length(axis), "gradients do not fit");
    }
    need(!bias == !common.bias && (!bias || bias.type() == Type::float32),
         "the gradient of bias is not float32");
    if (bias) need_unit_step({&bias});
    per_row_sums(g, a, slopes, sinks, unsound);
    g.above = problem.cells(above, common.query, a.group, common.length, a.value_size);
    g.query = problem.cells(query, common.query, a.group, common.length, a.size);
    g.key = problem.cells(key, common.query, 1, common.keys, a.size);
    g.value = problem.cells(value, common.query, 1, common.keys, a.value_size);
    g.bias = problem.cells(bias, common.query, a.group, common.length, common.keys);
    if (!problem.empty()) {
      Unlocked unlocked;
      body.differentiate(a, g, threads);
    }
    return none();
  });
}

PyObject* differentiate_packed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, ROWS_COMMON + 8, [&] {
    const Body& body = body_of(args[ROWS_BODY]);
    int threads = number_of_threads(args[ROWS_THREADS]);
    PackedRows rows(args, false);
    const Attention& a = rows.problem.a;
    Gradient g;
    PyObject* const* more = args + ROWS_COMMON;
    g.most = real(more[0]);
    const Array above(more[1]), query(more[2], true), key(more[3], true), value(more[4], true);
    const Array slopes(more[5], true), sinks(more[6], true), unsound(more[7], true);
    need(rows.lse && above && query && key && value && unsound, "an array is missing");
    need(a.value_size <= qkv::MAX_SIZE, "value must have a size of at most MAX_SIZE");
    need(is_working_float(above.type()), "the gradient of out is of no working type");
    need_unit_step({&above, &query, &key, &value});
    need(rows.like_query(above, a.value_size) && rows.like_query(query, a.size) &&
             rows.like_key(key, a.size) && rows.like_key(value, a.value_size),
         "gradients do not fit");
    for (const Array* array : {&query, &key, &value})
      need(array->type() == Type::float32, "gradients are not float32");
    per_row_sums(g, a, slopes, sinks, unsound);
    g.above = rows.query_cells(above);
    g.query = rows.query_cells(query);
    g.key = rows.key_cells(key);
    g.value = rows.key_cells(value);
    if (!rows.problem.empty()) {
      Unlocked unlocked;
      body.differentiate(a, g, threads);
    }
    return none();
  });
}

// ---- linear -------------------------------------------------------------------------------------

// Packed weights are a float32 array, whatever is in them.
void need_packed(const Body& body, const Array& packed, int64_t in, int64_t out, Type type) {
  need(packed && packed.type() == Type::float32 && packed.plain() &&
           size_t(packed.count()) * sizeof(float) == body.packed_bytes(in, out, type),
       "packed weights are not of the size that they need");
}

PyObject* packed_size(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Body& body = body_of(args[0]);
    int64_t in = whole(args[1]), out = whole(args[2]);
    need(in >= 0 && out >= 0 && (in == 0 || out <= FURTHEST / 64 / in), "too many weights");
    Type type = Array(args[3]).type();
    need(is_working_float(type), "weights are not of a working type");
    return PyLong_FromSize_t(body.packed_bytes(in, out, type) / sizeof(float));
  });
}

PyObject* pack(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Body& body = body_of(args[0]);
    Array weight(args[1]), packed(args[2], true);
    int threads = number_of_threads(args[3]);
    need(weight && weight.axes() == 2 && is_working_float(weight.type()),
         "weights are not (in, out) of a working type");
    int64_t in = weight.length(-2), out = weight.length(-1);
    need_packed(body, packed, in, out, weight.type());
    {
      Unlocked unlocked;
      body.pack(weight.data(), weight.step(-2), weight.step(-1), in, out, weight.type(),
                packed.data(), threads);
    }
    return none();
  });
}

PyObject* linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 9, [&] {
    const Body& body = body_of(args[0]);
    Array x(args[1]), packed(args[2]), bias(args[3]), gate(args[5]), residual(args[6]);
    Array y(args[7], true);
    int64_t activation = whole(args[4]);
    int threads = number_of_threads(args[8]);
    need(x && y && x.axes() == 2 && y.axes() == 2, "x and y are not (rows, in) and (rows, out)");
    qkv::Linear p;
    p.rows = x.length(-2);
    p.in = x.length(-1);
    p.out = y.length(-1);
    p.type = x.type();
    p.y_type = y.type();
    need(is_working_float(p.type) && (p.y_type == p.type || p.y_type == Type::float32) &&
             y.length(-2) == p.rows,
         "x and y do not fit");
    need_unit_step({&x, &y});
    need_packed(body, packed, p.in, p.out, p.type);
    need(!bias || (bias.type() == Type::float32 && bias.plain() && bias.count() == p.out),
         "bias is not (out,) of float32");
    need(activation >= 0 && activation <= int64_t(qkv::Activation::relu), "no such activation");
    for (const Array* more : {&gate, &residual}) {
      if (!*more) continue;
      need(more->type() == p.y_type && more->axes() == 2 && more->length(-2) == p.rows &&
               more->length(-1) == p.out,
           "gate or residual is not like y");
      need_unit_step({more});
    }
    p.x = x.data();
    p.x_step = x.step(-2);
    p.packed = packed.data();
    p.bias = bias ? static_cast<const float*>(bias.data()) : nullptr;
    p.activation = qkv::Activation(activation);
    p.gate = gate ? gate.data() : nullptr;
    p.gate_step = gate.step(-2);
    p.residual = residual ? residual.data() : nullptr;
    p.residual_step = residual.step(-2);
    p.y = y.data();
    p.y_step = y.step(-2);
    if (p.rows && p.out) {
      Unlocked unlocked;
      body.linear(p, threads);
    }
    return none();
  });
}

PyObject* norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 9, [&] {
    const Body& body = body_of(args[0]);
    Array x(args[1]), weight(args[2]), bias(args[3]), y(args[6], true), scale(args[7], true);
    qkv::Norm p;
    p.eps = float(real(args[4]));
    p.centred = whole(args[5]) != 0;
    int threads = number_of_threads(args[8]);
    need(x && y && weight && scale && x.axes() == 2 && y.axes() == 2,
         "x and y are not (rows, size)");
    p.rows = x.length(-2);
    p.size = x.length(-1);
    need(y.length(-2) == p.rows && y.length(-1) == p.size, "x and y do not fit");
    need_unit_step({&x, &y});
    need(weight.plain() && weight.count() == p.size && (!bias || bias.plain()) &&
             (!bias || bias.count() == p.size) && scale.plain() && scale.count() == p.rows,
         "weight, bias or scale does not fit");
    p.type = x.type();
    need((p.type == Type::float32 || p.type == Type::bfloat16) && y.type() == p.type,
         "x and y are not both float32 or bfloat16");
    need(weight.type() == Type::float32 && scale.type() == Type::float32 &&
             (!bias || bias.type() == Type::float32),
         "weight, bias or scale is not float32");
    p.x = x.data();
    p.x_step = x.step(-2);
    p.weight = static_cast<const float*>(weight.data());
    p.bias = bias ? static_cast<const float*>(bias.data()) : nullptr;
    p.scale = static_cast<float*>(scale.data());
    p.y = y.data();
    p.y_step = y.step(-2);
    if (p.rows && p.size) {
      Unlocked unlocked;
      body.norm(p, threads);
    }
    return none();
  });
}

PyObject* narrow(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Body& body = body_of(args[0]);
    Array x(args[1]), y(args[2], true);
    int threads = number_of_threads(args[3]);
    need(x && y && x.type() == Type::float32 && y.type() == Type::bfloat16 && x.plain() &&
             y.plain() && x.count() == y.count(),
         "x and y are not as many float32 and bfloat16, in one piece");
    {
      Unlocked unlocked;
      body.narrow(static_cast<const float*>(x.data()), x.count(), y.data(), threads);
    }
    return none();
  });
}

// ---- learning -----------------------------------------------------------------------------------

// A matrix of float32 whose rows stand together, (rows, columns) of any size where -1 is asked for.
void need_matrix(const Array& array, int64_t rows, int64_t columns) {
  need(array && array.type() == Type::float32 && array.axes() == 2 &&
           (rows < 0 || array.length(-2) == rows) && (columns < 0 || array.length(-1) == columns),
       "an array is not a matrix of float32 that fits");
  need_unit_step({&array});
}

// `count` numbers of float32 in one piece; nullptr where nothing is given.
float* numbers(const Array& array, int64_t count) {
  if (!array) return nullptr;
  need(array.type() == Type::float32 && array.plain() && array.count() == count,
       "an array is not so many float32 in one piece");
  return static_cast<float*>(array.data());
}
float* wanted(const Array& array, int64_t count) {
  need(bool(array), "an array is missing");
  return numbers(array, count);
}

PyObject* outer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 7, [&] {
    const Body& body = body_of(args[0]);
    Array left(args[1]), right(args[2]), y(args[3], true);
    Array left_sums(args[4], true), right_sums(args[5], true);
    int threads = number_of_threads(args[6]);
    qkv::Outer p;
    need_matrix(left, -1, -1);
    p.depth = left.length(-2);
    p.rows = left.length(-1);
    need_matrix(right, p.depth, -1);
    p.columns = right.length(-1);
    need_matrix(y, p.rows, p.columns);
    p.left_sums = numbers(left_sums, p.rows);
    p.right_sums = numbers(right_sums, p.columns);
    p.left = static_cast<const float*>(left.data());
    p.left_step = left.step(-2);
    p.right = static_cast<const float*>(right.data());
    p.right_step = right.step(-2);
    p.y = static_cast<float*>(y.data());
    p.y_step = y.step(-2);
    if (p.rows && p.columns) {
      Unlocked unlocked;
      body.outer(p, threads);
    }
    return none();
  });
}

PyObject* map(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 6, [&] {
    const Body& body = body_of(args[0]);
    int64_t activation = whole(args[1]);
    Array x(args[2]), grad(args[3]), y(args[4], true);
    int threads = number_of_threads(args[5]);
    need(activation > 0 && activation <= int64_t(qkv::Activation::relu), "no such activation");
    const int64_t size = x.count();
    const float *from = wanted(x, size), *above = numbers(grad, size);
    float* to = wanted(y, size);
    if (size) {
      Unlocked unlocked;
      body.map(qkv::Activation(activation), from, above, to, size, threads);
    }
    return none();
  });
}

PyObject* norm_grad(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 10, [&] {
    const Body& body = body_of(args[0]);
    Array x(args[1]), weight(args[2]), scale(args[3]), above(args[4]);
    Array y(args[6], true), weight_sums(args[7], true), bias_sums(args[8], true);
    qkv::NormGrad p;
    p.centred = whole(args[5]) != 0;
    int threads = number_of_threads(args[9]);
    need_matrix(x, -1, -1);
    p.rows = x.length(-2);
    p.size = x.length(-1);
    need(p.size > 0, "vectors have no numbers");
    need_matrix(above, p.rows, p.size);
    p.x = static_cast<const float*>(x.data());
    p.x_step = x.step(-2);
    p.above = static_cast<const float*>(above.data());
    p.above_step = above.step(-2);
    p.weight = wanted(weight, p.size);
    p.scale = wanted(scale, p.rows);
    p.y = wanted(y, p.rows * p.size);
    p.weight_sums = wanted(weight_sums, p.size);
    p.bias_sums = numbers(bias_sums, p.size);
    {
      Unlocked unlocked;
      body.norm_grad(p, threads);
    }
    return none();
  });
}

PyObject* cross_entropy(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 7, [&] {
    const Body& body = body_of(args[0]);
    Array logits(args[1]), targets(args[2]), weights(args[3]);
    Array losses(args[4], true), grad(args[5], true);
    int threads = number_of_threads(args[6]);
    qkv::CrossEntropy p;
    need_matrix(logits, -1, -1);
    p.rows = logits.length(-2);
    p.size = logits.length(-1);
    need(targets && targets.type() == Type::integer && targets.plain() && targets.count() == p.rows,
         "targets are not an int64 for each row");
    p.logits = static_cast<const float*>(logits.data());
    p.step = logits.step(-2);
    p.targets = static_cast<const int64_t*>(targets.data());
    p.weights = numbers(weights, p.rows);
    p.losses = wanted(losses, p.rows);
    p.grad = wanted(grad, p.rows * p.size);
    if (p.rows) {
      Unlocked unlocked;
      body.cross_entropy(p, threads);
    }
    return none();
  });
}

PyObject* adamw(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 17, [&] {
    const Body& body = body_of(args[0]);
    Array parameters(args[1], true), gradient(args[2]), mean(args[3], true), square(args[4], true);
    Array decays(args[5]);
    qkv::AdamW p;
    p.count = parameters.count();
    p.parameters = wanted(parameters, p.count);
    p.gradient = wanted(gradient, p.count);
    p.mean = wanted(mean, p.count);
    p.square = wanted(square, p.count);
    p.decays = numbers(decays, p.count);
    float* settings[] = {&p.decay,    &p.rate,        &p.factor,     &p.eps,  &p.keep_mean,
                         &p.add_mean, &p.keep_square, &p.add_square, &p.size, &p.root};
    for (size_t k = 0; k < 10; ++k) *settings[k] = float(real(args[6 + k]));
    int threads = number_of_threads(args[16]);
    if (p.count) {
      Unlocked unlocked;
      body.adamw(p, threads);
    }
    return none();
  });
}

PyObject* squares(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 3, [&] {
    const Body& body = body_of(args[0]);
    Array x(args[1]);
    int threads = number_of_threads(args[2]);
    const int64_t size = x.count();
    const float* from = wanted(x, size);
    double total;
    {
      Unlocked unlocked;
      total = body.squares(from, size, threads);
    }
    return PyFloat_FromDouble(total);
  });
}

// ---- what the machine gives ---------------------------------------------------------------------

PyObject* multiply_adds(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 3, [&] {
    const Body& body = body_of(args[0]);
    int bfloat16 = PyObject_IsTrue(args[1]), threads = number_of_threads(args[2]);
    if (bfloat16 < 0) throw Raised();
    double rate;
    {
      Unlocked unlocked;
      rate = body.multiply_adds(bfloat16 ? Type::bfloat16 : Type::float32, threads);
    }
    return PyFloat_FromDouble(rate);
  });
}

PyObject* read_rate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 2, [&] {
    const Body& body = body_of(args[0]);
    int threads = number_of_threads(args[1]);
    double rate;
    {
      Unlocked unlocked;
      rate = body.read_rate(threads);
    }
    return PyFloat_FromDouble(rate);
  });
}

// ---- the module ---------------------------------------------------------------------------------

PyObject* bodies(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Body* body : qkv::bodies()) {
    PyObject* entry =
        names ? Py_BuildValue("(sO)", body->name, body->bfloat16 ? Py_True : Py_False) : nullptr;
    if (!entry || PyList_Append(names, entry) != 0) {
      Py_XDECREF(entry);
      Py_XDECREF(names);
      return nullptr;
    }
    Py_DECREF(entry);
  }
  return names;
}

template <class Function>
PyCFunction function(Function f) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(f));
}

PyMethodDef methods[] = {
    {"bodies", bodies, METH_NOARGS, "Name, and whether bfloat16 is multiplied as it is; best first."},
    {"attend", function(attend), METH_FASTCALL, "Attention; see qkv/_kernel.pyi."},
    {"attend_packed", function(attend_packed), METH_FASTCALL, "Attention of packed sequences."},
    {"summarize", function(summarize), METH_FASTCALL, "Attention and what its weights come to."},
    {"differentiate", function(differentiate), METH_FASTCALL, "The gradient of attention."},
    {"differentiate_packed", function(differentiate_packed), METH_FASTCALL,
     "The gradient of attention of packed sequences."},
    {"packed_size", function(packed_size), METH_FASTCALL, "Floats that packed weights take."},
    {"pack", function(pack), METH_FASTCALL, "Lay weights out for many products."},
    {"linear", function(linear), METH_FASTCALL, "x @ W + bias, activation, gate, residual."},
    {"norm", function(norm), METH_FASTCALL, "LayerNorm or RMSNorm of rows."},
    {"narrow", function(narrow), METH_FASTCALL, "float32 to bfloat16."},
    {"outer", function(outer), METH_FASTCALL, "left.T @ right, and sums of columns."},
    {"map", function(map), METH_FASTCALL, "An activation, or the gradient of one."},
    {"norm_grad", function(norm_grad), METH_FASTCALL, "The gradient of norm."},
    {"cross_entropy", function(cross_entropy), METH_FASTCALL, "Losses and their gradient."},
    {"adamw", function(adamw), METH_FASTCALL, "One step of AdamW."},
    {"squares", function(squares), METH_FASTCALL, "The sum of all squares."},
    {"multiply_adds", function(multiply_adds), METH_FASTCALL, "Operations a second at most."},
    {"read_rate", function(read_rate), METH_FASTCALL, "Bytes a second at most."},
    {nullptr, nullptr, 0, nullptr},
};

int fill(PyObject* module) {
  return PyModule_AddIntConstant(module, "MAX_SIZE", long(qkv::MAX_SIZE));
}

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(fill)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_kernel", "The native kernel.", 0, methods, slots,
    nullptr,               nullptr,   nullptr,
};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit__kernel() { return PyModuleDef_Init(&definition); }
