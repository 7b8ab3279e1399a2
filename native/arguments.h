// Functions that read the arguments of a method of qkv._kernel: arrays (by the buffer protocol) and
// numbers.
//
// The Python code has already checked every argument. This file only checks that no access leaves a
// buffer.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <stdexcept>

#include "variant.h"

namespace qkv {

struct Raised : std::exception {};  // a Python error is already set

[[noreturn]] inline void refuse(const char* reason) { throw std::invalid_argument(reason); }
inline void need(bool fits, const char* reason) {
  if (!fits) refuse(reason);
}

inline Type type_of(const char* format, Py_ssize_t size) {
  if (format && std::strchr("@=", format[0]) && format[0]) ++format;
  if (format && format[0] && !format[1]) {
    switch (format[0]) {
      case '?': return Type::boolean;
      case 'b': return Type::int8;
      case 'B': return Type::one_digit;
      case 'e': return Type::float16;
      case 'H': return Type::bfloat16;  // stored as bits
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

// An array from Python, which stays valid as long as this object lives. None gives an empty array.
// Axes are counted from the end: -1 is the last axis. Missing axes have length 1.
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
             "an array's strides are not whole elements");
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
  int64_t step(int axis) const {  // the step in elements; 0 along an axis of length 1
    return length(axis) == 1 ? 0 : view_.strides[view_.ndim + axis] / view_.itemsize;
  }
  bool is_contiguous() const {
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
  // Whether the array has `count` contiguous elements of this type.
  bool is(Type type, int64_t elements) const {
    return held_ && type_ == type && is_contiguous() && count() == elements;
  }

 private:
  bool has(int axis) const { return view_.ndim + axis >= 0; }
  Py_buffer view_{};
  Type type_ = Type::float32;
  bool held_ = false;
};

inline int64_t whole(PyObject* object) {
  long long number = PyLong_AsLongLong(object);
  if (number == -1 && PyErr_Occurred()) throw Raised();
  return number;
}

inline double real(PyObject* object) {
  double number = PyFloat_AsDouble(object);
  if (number == -1 && PyErr_Occurred()) throw Raised();
  return number;
}

inline int number_of_threads(PyObject* object) {
  return int(std::min<int64_t>(std::max<int64_t>(whole(object), 1), 1024));
}

inline const Variant& variant_of(PyObject* object) {
  int64_t number = whole(object);
  need(number >= 0 && size_t(number) < variants().size(), "there is no such variant");
  return *variants()[size_t(number)];
}

// `least` is 0 if no activation is allowed too, otherwise 1.
inline Activation activation_of(PyObject* object, const Variant& variant, int64_t least) {
  int64_t number = whole(object);
  need(number >= least && number <= variant.activations, "no such activation");
  return Activation(number);
}

inline bool is_working_float(Type type) {
  return type == Type::float16 || type == Type::bfloat16 || type == Type::float32;
}

inline bool is_integer(Type type) { return type == Type::integer || digits_of(type); }

inline void need_contiguous_rows(std::initializer_list<const Array*> arrays) {
  for (const Array* array : arrays)
    need(array->length(-1) < 2 || array->step(-1) == 1, "the last axis is not contiguous");
}

// Reads a float32 matrix (rows, columns) with contiguous rows; -1 allows any size.
inline void need_matrix(const Array& array, int64_t rows, int64_t columns) {
  need(array && array.type() == Type::float32 && array.axes() == 2 &&
           (rows < 0 || array.length(-2) == rows) && (columns < 0 || array.length(-1) == columns),
       "an array is not a matrix of float32 that fits");
  need_contiguous_rows({&array});
}

// Reads `count` contiguous float32 numbers; nullptr if the argument is None.
inline float* floats_or_none(const Array& array, int64_t count) {
  if (!array) return nullptr;
  need(array.is(Type::float32, count), "an array is not so many contiguous float32");
  return static_cast<float*>(array.data());
}
inline float* floats(const Array& array, int64_t count) {
  need(bool(array), "an array is missing");
  return floats_or_none(array, count);
}

}  // namespace qkv
