// The Python module qkv._kernel: the table of its methods, the interpreter's lock, and errors.
#include "module.h"

#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include <new>

namespace qkv {
namespace {

// Whether Python handles signals on this thread.
bool is_main_thread() {
#if defined(__linux__)
  return syscall(SYS_gettid) == getpid();
#else
  return true;  // on other threads, Python ignores this check
#endif
}

}  // namespace

bool Unlocked::made() {
  if (!is_main_thread()) return false;
  lock();
  bool raised = PyErr_CheckSignals() != 0;
  state_ = PyEval_SaveThread();
  return raised;
}

void Unlocked::lock() {
  try {
    PyEval_RestoreThread(state_);
  } catch (...) {
    // The interpreter is ending, and Python before 3.14 unwinds the stack of this thread. Unwinding would
    // free objects of the interpreter, so wait here forever.
    for (;;) pause();
  }
}

void raise_in_python() {
  try {
    throw;
  } catch (const Raised&) {
  } catch (const Stopped&) {  // a signal handler has set a Python error
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::invalid_argument& error) {
    PyErr_Format(PyExc_ValueError, "kernel: %s", error.what());
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "kernel: %s", error.what());
  }
}

namespace {

PyObject* multiply_adds(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 3, [&] {
    const Variant& variant = variant_of(args[0]);
    int bfloat16 = PyObject_IsTrue(args[1]), threads = number_of_threads(args[2]);
    if (bfloat16 < 0) throw Raised();
    double rate;
    {
      Unlocked unlocked;
      rate = variant.multiply_adds(bfloat16 ? Type::bfloat16 : Type::float32, threads);
    }
    return PyFloat_FromDouble(rate);
  });
}

PyObject* read_rate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 2, [&] {
    const Variant& variant = variant_of(args[0]);
    int threads = number_of_threads(args[1]);
    double rate;
    {
      Unlocked unlocked;
      rate = variant.read_rate(threads);
    }
    return PyFloat_FromDouble(rate);
  });
}

PyObject* list_variants(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const Variant* variant : variants()) {
    PyObject* entry =
        names ? Py_BuildValue("(ss)", variant->name, variant->bfloat16) : nullptr;
    if (!entry || PyList_Append(names, entry) != 0) {
      Py_XDECREF(entry);
      Py_XDECREF(names);
      return nullptr;
    }
    Py_DECREF(entry);
  }
  return names;
}

PyObject* describe_bfloat16(PyObject*, PyObject*) { return PyUnicode_FromString(about_bfloat16().c_str()); }

PyCFunction function(Method* method) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(method));
}

PyMethodDef methods[] = {
    {"variants", list_variants, METH_NOARGS, "Names, and how bfloat16 is multiplied; the fastest first."},
    {"about_bfloat16", describe_bfloat16, METH_NOARGS, "Why this machine multiplies bfloat16 as it does."},
    {"attend", function(attend), METH_FASTCALL, "Attention; see qkv/_kernel.pyi."},
    {"attend_packed", function(attend_packed), METH_FASTCALL, "Attention of packed sequences."},
    {"summarize", function(summarize), METH_FASTCALL, "Attention and a summary of its weights."},
    {"differentiate", function(differentiate), METH_FASTCALL, "The gradient of attention."},
    {"differentiate_packed", function(differentiate_packed), METH_FASTCALL,
     "The gradient of attention of packed sequences."},
    {"packed_size", function(packed_size), METH_FASTCALL, "The number of floats in packed weights."},
    {"pack", function(pack), METH_FASTCALL, "Pack weights for many products."},
    {"pack_int8", function(pack_int8), METH_FASTCALL, "Pack int8 weights with a scale for each column."},
    {"linear", function(linear), METH_FASTCALL, "x @ W + bias, activation, gate, residual."},
    {"multiply_blocks", function(multiply_blocks), METH_FASTCALL, "`linear` with W in blocks."},
    {"norm", function(norm), METH_FASTCALL, "LayerNorm or RMSNorm of rows."},
    {"narrow", function(narrow), METH_FASTCALL, "float32 to bfloat16."},
    {"multiply_tiles", function(multiply_tiles), METH_FASTCALL, "One product of tiles, for tests."},
    {"outer", function(outer), METH_FASTCALL, "left.T @ right, and sums of columns."},
    {"map", function(map), METH_FASTCALL, "An activation, or its gradient."},
    {"norm_grad", function(norm_grad), METH_FASTCALL, "The gradient of norm."},
    {"cross_entropy", function(cross_entropy), METH_FASTCALL, "Losses and their gradient."},
    {"adamw", function(adamw), METH_FASTCALL, "One step of AdamW."},
    {"squares", function(squares), METH_FASTCALL, "The sum of all squares."},
    {"multiply_adds", function(multiply_adds), METH_FASTCALL, "The highest measured operations per second."},
    {"read_rate", function(read_rate), METH_FASTCALL, "The highest measured bytes per second."},
    {nullptr, nullptr, 0, nullptr},
};

int fill(PyObject* module) {
  if (PyModule_AddStringConstant(module, "SOURCES", QKV_SOURCES)) return -1;
  return PyModule_AddIntConstant(module, "MAX_SIZE", long(MAX_SIZE));
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
}  // namespace qkv

extern "C" PyMODINIT_FUNC PyInit__kernel() { return PyModuleDef_Init(&qkv::definition); }
