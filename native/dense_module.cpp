// Methods of qkv._kernel for linear layers and norms, and for packing weights.
#include "module.h"

namespace qkv {
namespace {

constexpr int64_t DEEPEST_INT8 = 1 << 17;  // with more rows, a sum of int8 products could exceed int32

// Returns the type of the arrays in which packed weights are passed.
Type passed_as(Type type) {
  if (type == Type::wide_bfloat16) return Type::bfloat16;
  return digits_of(type) || type == Type::float16 ? type : Type::float32;
}

void need_packed(const Variant& variant, const Array& packed, int64_t in, int64_t out, Type type) {
  const Type passed = passed_as(type);
  const size_t each = digits_of(passed) ? 1 : passed == Type::float32 ? sizeof(float) : 2;
  need(packed.is(passed, packed.count()) && size_t(packed.count()) * each == variant.packed_bytes(in, out, type),
       "packed weights are not of the size that they need");
}

}  // namespace

PyObject* packed_size(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Variant& variant = variant_of(args[0]);
    int64_t in = whole(args[1]), out = whole(args[2]);
    need(in >= 0 && out >= 0 && (in == 0 || out <= FURTHEST / 64 / in), "too many weights");
    Type type = Array(args[3]).type();
    need(is_working_float(type) || (digits_of(type) && in <= DEEPEST_INT8), "weights are not of a working type");
    return PyLong_FromSize_t(variant.packed_bytes(in, out, type) / sizeof(float));
  });
}

PyObject* pack(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Variant& variant = variant_of(args[0]);
    Array weight(args[1]), packed(args[2], true);
    int threads = number_of_threads(args[3]);
    need(weight && weight.axes() == 2 && is_working_float(weight.type()),
         "weights are not (in, out) of a working type");
    int64_t in = weight.length(-2), out = weight.length(-1);
    const bool wide = weight.type() == Type::bfloat16 && packed.type() == Type::bfloat16;
    const Type type = wide ? Type::wide_bfloat16 : weight.type();
    need_packed(variant, packed, in, out, type);
    {
      Unlocked unlocked;
      variant.pack(weight.data(), weight.step(-2), weight.step(-1), in, out, type, packed.data(), threads);
    }
    return none();
  });
}

PyObject* pack_int8(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 6, [&] {
    const Variant& variant = variant_of(args[0]);
    const Array weight(args[1]), more(args[2]), scales(args[3]), packed(args[4], true);
    int threads = number_of_threads(args[5]);
    const Array& last = more ? more : weight;
    for (const Array* digits : {&weight, &last})
      need(*digits && digits->axes() == 2 && digits->type() == Type::int8, "weights are not (in, out) of int8");
    int64_t in = weight.length(-2), out = weight.length(-1);
    need(in <= DEEPEST_INT8 && last.length(-2) == in && last.length(-1) == out && last.step(-2) == weight.step(-2) &&
             last.step(-1) == weight.step(-1),
         "the digits of weights do not lie alike");
    need_packed(variant, packed, in, out, more ? Type::int8 : Type::one_digit);
    const float* factors = floats(scales, out);
    {
      Unlocked unlocked;
      variant.pack_int8(static_cast<const int8_t*>(weight.data()),
                        more ? static_cast<const int8_t*>(more.data()) : nullptr, weight.step(-2), weight.step(-1),
                        factors, in, out, packed.data(), threads);
    }
    return none();
  });
}

namespace {

// Computes a product: args are x, packed weights, bias, activation, gate, residual, y and threads.
// `run` gets the arguments of the kernel and the packed weights.
template <class Run>
PyObject* multiply(const Variant& variant, PyObject* const* args, const Run& run) {
  Array x(args[0]), packed(args[1]), bias(args[2]), gate(args[4]), residual(args[5]);
  Array y(args[6], true);
  Linear p;
  p.activation = activation_of(args[3], variant, 0);
  int threads = number_of_threads(args[7]);
  need(x && y && x.axes() == 2 && y.axes() == 2, "x and y are not (rows, in) and (rows, out)");
  p.rows = x.length(-2);
  p.in = x.length(-1);
  p.out = y.length(-1);
  p.type = x.type();
  p.y_type = y.type();
  need(is_working_float(p.type) && (p.y_type == p.type || p.y_type == Type::float32) &&
           y.length(-2) == p.rows,
       "x and y do not fit");
  need_contiguous_rows({&x, &y});
  p.bias = floats_or_none(bias, p.out);
  for (const Array* more : {&gate, &residual}) {
    if (!*more) continue;
    need(more->type() == p.y_type && more->axes() == 2 && more->length(-2) == p.rows &&
             more->length(-1) == p.out,
         "gate or residual is not like y");
    need_contiguous_rows({more});
  }
  p.packed_type = packed.type() == Type::float32    ? p.type
                  : packed.type() == Type::bfloat16 ? Type::wide_bfloat16
                                                    : packed.type();
  p.x = x.data();
  p.x_step = x.step(-2);
  p.packed = packed.data();
  p.gate = gate ? gate.data() : nullptr;
  p.gate_step = gate.step(-2);
  p.residual = residual ? residual.data() : nullptr;
  p.residual_step = residual.step(-2);
  p.y = y.data();
  p.y_step = y.step(-2);
  run(p, packed, threads);
  return none();
}

}  // namespace

PyObject* linear(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 9, [&] {
    const Variant& variant = variant_of(args[0]);
    return multiply(variant, args + 1, [&](const Linear& p, const Array& packed, int threads) {
      need(p.packed_type == p.type || p.type == Type::float32, "x is not of float32, or of the type of the weights");
      need(!digits_of(p.packed_type) || p.in > 0, "x is not (rows, in)");
      need_packed(variant, packed, p.in, p.out, p.packed_type);
      if (!p.rows || !p.out) return;
      Unlocked unlocked;
      variant.linear(p, threads);
    });
  });
}

PyObject* multiply_blocks(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 10, [&] {
    const Variant& variant = variant_of(args[0]);
    int64_t kind = whole(args[1]);
    return multiply(variant, args + 2, [&](const Linear& p, const Array& packed, int threads) {
      need(p.type == Type::float32 && packed.is(Type::float32, packed.count()) &&
               size_t(packed.count()) * sizeof(float) == variant.block_bytes(p.in, p.out, kind),
           "packed blocks are not of the size that they need");
      if (!p.rows || !p.out) return;
      Unlocked unlocked;
      variant.multiply_blocks(p, kind, threads);
    });
  });
}

PyObject* norm(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 9, [&] {
    const Variant& variant = variant_of(args[0]);
    Array x(args[1]), weight(args[2]), bias(args[3]), y(args[6], true), scale(args[7], true);
    Norm p;
    p.eps = float(real(args[4]));
    p.centred = whole(args[5]) != 0;
    int threads = number_of_threads(args[8]);
    need(x && y && x.axes() == 2 && y.axes() == 2, "x and y are not (rows, size)");
    p.rows = x.length(-2);
    p.size = x.length(-1);
    need(y.length(-2) == p.rows && y.length(-1) == p.size, "x and y do not fit");
    need_contiguous_rows({&x, &y});
    p.type = x.type();
    need((p.type == Type::float32 || p.type == Type::bfloat16) && y.type() == p.type,
         "x and y are not both float32 or bfloat16");
    p.x = x.data();
    p.x_step = x.step(-2);
    p.weight = floats(weight, p.size);
    p.bias = floats_or_none(bias, p.size);
    p.scale = floats(scale, p.rows);
    p.y = y.data();
    p.y_step = y.step(-2);
    if (p.rows && p.size) {
      Unlocked unlocked;
      variant.norm(p, threads);
    }
    return none();
  });
}

PyObject* multiply_tiles(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Variant& variant = variant_of(args[0]);
    Array sums(args[1], true), rows(args[2]), columns(args[3]);
    need(variant.multiply_tiles, "this variant has no tiles");
    const Type type = rows.type();
    for (const Array* factor : {&rows, &columns})
      need(factor->is(type, type == Type::int8 ? 1024 : 512), "not (16, 32) of bfloat16 or (16, 64) of int8");
    need(type == Type::int8 || type == Type::bfloat16, "not bfloat16 or int8");
    variant.multiply_tiles(type, floats(sums, 256), rows.data(), columns.data());
    return none();
  });
}

PyObject* narrow(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 4, [&] {
    const Variant& variant = variant_of(args[0]);
    Array x(args[1]), y(args[2], true);
    int threads = number_of_threads(args[3]);
    const float* from = floats(x, x.count());
    need(y.is(Type::bfloat16, x.count()), "y is not as many contiguous bfloat16 as x");
    {
      Unlocked unlocked;
      variant.narrow(from, x.count(), y.data(), threads);
    }
    return none();
  });
}

}  // namespace qkv
