// The methods of qkv._kernel, and the code that runs around every method.
#pragma once

#include "arguments.h"
#include "threads.h"

namespace qkv {

// Calls `work` without the interpreter's lock, and takes the lock again afterwards. Signals are
// handled during the work. If a handler raises an error, the work ends.
class Unlocked : StopRequest {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() override { lock(); }

 private:
  bool made() override;
  void lock();

  PyThreadState* state_;
};

// Sets the Python error for the current C++ exception.
void raise_in_python();

// Calls `work` with `expected` arguments; returns a method's result, or sets a Python error.
template <class Work>
PyObject* guarded(Py_ssize_t count, Py_ssize_t expected, const Work& work) {
  try {
    if (count == expected) return work();
    PyErr_Format(PyExc_TypeError, "%zd arguments are wanted and %zd given", expected, count);
  } catch (...) {
    raise_in_python();
  }
  return nullptr;
}

inline PyObject* none() {
  Py_INCREF(Py_None);
  return Py_None;
}

using Method = PyObject*(PyObject* module, PyObject* const* args, Py_ssize_t count);

// in attention_module.cpp
Method attend, attend_packed, summarize, differentiate, differentiate_packed;
// in dense_module.cpp
Method packed_size, pack, pack_int8, linear, multiply_blocks, norm, narrow, multiply_tiles;
// in training_module.cpp
Method outer, map, norm_grad, cross_entropy, adamw, squares;

}  // namespace qkv
