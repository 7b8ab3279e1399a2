// Methods of qkv._kernel for training, except attention.
#include "module.h"

namespace qkv {

PyObject* outer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 7, [&] {
    const Variant& variant = variant_of(args[0]);
    Array left(args[1]), right(args[2]), y(args[3], true);
    Array left_sums(args[4], true), right_sums(args[5], true);
    int threads = number_of_threads(args[6]);
    Outer p;
    need_matrix(left, -1, -1);
    p.depth = left.length(-2);
    p.rows = left.length(-1);
    need_matrix(right, p.depth, -1);
    p.columns = right.length(-1);
    need_matrix(y, p.rows, p.columns);
    p.left_sums = floats_or_none(left_sums, p.rows);
    p.right_sums = floats_or_none(right_sums, p.columns);
    p.left = static_cast<const float*>(left.data());
    p.left_step = left.step(-2);
    p.right = static_cast<const float*>(right.data());
    p.right_step = right.step(-2);
    p.y = static_cast<float*>(y.data());
    p.y_step = y.step(-2);
    if (p.rows && p.columns) {
      Unlocked unlocked;
      variant.outer(p, threads);
    }
    return none();
  });
}

PyObject* map(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 6, [&] {
    const Variant& variant = variant_of(args[0]);
    Activation activation = activation_of(args[1], variant, 1);
    Array x(args[2]), grad(args[3]), y(args[4], true);
    int threads = number_of_threads(args[5]);
    const int64_t size = x.count();
    const float *from = floats(x, size), *upstream = floats_or_none(grad, size);
    float* to = floats(y, size);
    if (size) {
      Unlocked unlocked;
      variant.map(activation, from, upstream, to, size, threads);
    }
    return none();
  });
}

PyObject* norm_grad(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 10, [&] {
    const Variant& variant = variant_of(args[0]);
    Array x(args[1]), weight(args[2]), scale(args[3]), upstream(args[4]);
    Array y(args[6], true), weight_sums(args[7], true), bias_sums(args[8], true);
    NormGrad p;
    p.centred = whole(args[5]) != 0;
    int threads = number_of_threads(args[9]);
    need_matrix(x, -1, -1);
    p.rows = x.length(-2);
    p.size = x.length(-1);
    need(p.size > 0, "vectors have no numbers");
    need_matrix(upstream, p.rows, p.size);
    p.x = static_cast<const float*>(x.data());
    p.x_step = x.step(-2);
    p.upstream = static_cast<const float*>(upstream.data());
    p.upstream_step = upstream.step(-2);
    p.weight = floats(weight, p.size);
    p.scale = floats(scale, p.rows);
    p.y = floats(y, p.rows * p.size);
    p.weight_sums = floats(weight_sums, p.size);
    p.bias_sums = floats_or_none(bias_sums, p.size);
    {
      Unlocked unlocked;
      variant.norm_grad(p, threads);
    }
    return none();
  });
}

PyObject* cross_entropy(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 7, [&] {
    const Variant& variant = variant_of(args[0]);
    Array logits(args[1]), targets(args[2]), weights(args[3]);
    Array losses(args[4], true), grad(args[5], true);
    int threads = number_of_threads(args[6]);
    CrossEntropy p;
    need_matrix(logits, -1, -1);
    p.rows = logits.length(-2);
    p.size = logits.length(-1);
    need(targets.is(Type::integer, p.rows), "targets are not an int64 for each row");
    p.logits = static_cast<const float*>(logits.data());
    p.step = logits.step(-2);
    p.targets = static_cast<const int64_t*>(targets.data());
    p.weights = floats_or_none(weights, p.rows);
    p.losses = floats(losses, p.rows);
    p.grad = floats(grad, p.rows * p.size);
    if (p.rows) {
      Unlocked unlocked;
      variant.cross_entropy(p, threads);
    }
    return none();
  });
}

PyObject* adamw(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 17, [&] {
    const Variant& variant = variant_of(args[0]);
    Array parameters(args[1], true), gradient(args[2]), mean(args[3], true), square(args[4], true);
    Array decays(args[5]);
    AdamW p;
    p.count = parameters.count();
    p.parameters = floats(parameters, p.count);
    p.gradient = floats(gradient, p.count);
    p.mean = floats(mean, p.count);
    p.square = floats(square, p.count);
    p.decays = floats_or_none(decays, p.count);
    float* settings[] = {&p.decay,    &p.rate,        &p.factor,     &p.eps,  &p.keep_mean,
                         &p.add_mean, &p.keep_square, &p.add_square, &p.size, &p.root};
    for (size_t k = 0; k < 10; ++k) *settings[k] = float(real(args[6 + k]));
    int threads = number_of_threads(args[16]);
    if (p.count) {
      Unlocked unlocked;
      variant.adamw(p, threads);
    }
    return none();
  });
}

PyObject* squares(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, 3, [&] {
    const Variant& variant = variant_of(args[0]);
    Array x(args[1]);
    int threads = number_of_threads(args[2]);
    const int64_t size = x.count();
    const float* from = floats(x, size);
    double total;
    {
      Unlocked unlocked;
      total = variant.squares(from, size, threads);
    }
    return PyFloat_FromDouble(total);
  });
}

}  // namespace qkv
