// The activations of a linear layer, computed on several vectors at once to hide latency.
#pragma once

#include "simd.h"

namespace qkv {

// The activations. Each needs two functions below: NAME(x), and NAME_slope(x), its derivative. Their
// numbers, from 1, are the codes in ops/activation.py; tests/test_tables.py compares the lists.
#define QKV_ACTIVATIONS(EACH) EACH(gelu) EACH(gelu_tanh) EACH(silu) EACH(relu) EACH(quick_gelu)

#define QKV_ACTIVATION(NAME) , NAME
enum class Activation : int { none QKV_ACTIVATIONS(QKV_ACTIVATION) };
#undef QKV_ACTIVATION

#define QKV_ACTIVATION(NAME) +1
constexpr int ACTIVATIONS = QKV_ACTIVATIONS(QKV_ACTIVATION);
#undef QKV_ACTIVATION

namespace QKV_VARIANT {

// The smaller of two numbers; NaN if `b` is NaN.
QKV_INLINE Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);  // not found by GCC 12
#else
  return a < b ? a : b;
#endif
}

// Phi(x) = (1 + erf(x / sqrt(2))) / 2 of the normal distribution, with an error below 1.1e-7
// (1.6e-7 without fused multiply-adds).
//
// Phi(x) = 1/2 + x * R(x * x). The polynomial R has its origin in the middle of 0 ... LAST**2. R was
// fitted to Phi by reweighted least squares; each coefficient was rounded before the next coefficient
// was fitted. For |x| > LAST, the result is exactly 0 or 1, because x * R rounds to -1/2 or 1/2.
template <int N>
QKV_INLINE void normal(const Floats (&x)[N], Floats (&phi)[N]) {
  constexpr float LAST = 0x1.580002p+2f, MIDDLE = 0x1.ce4p+3f;
  constexpr float R[15] = {
      0x1.8dd678p-66f, -0x1.d83cb4p-61f, 0x1.75d5ecp-57f, -0x1.d97e80p-53f, 0x1.4139bcp-47f,
      -0x1.0a82f0p-42f, 0x1.5e6ce6p-38f, -0x1.cdc0d4p-34f, 0x1.2696a4p-29f, -0x1.5e2d16p-25f,
      0x1.8bf670p-21f, -0x1.b58df2p-17f, 0x1.e95a82p-13f, -0x1.29b7cap-8f, 0x1.0d62a0p-3f};
  Floats near[N], u[N], r[N];
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    near[n] = smaller(splat(LAST), larger(splat(-LAST), x[n]));
    u[n] = near[n] * near[n] - MIDDLE;
    r[n] = u[n] * R[0] + R[1];
  }
  QKV_UNROLL for (int k = 2; k < 15; ++k) {
    QKV_UNROLL for (int n = 0; n < N; ++n) r[n] = r[n] * u[n] + R[k];
  }
  QKV_UNROLL for (int n = 0; n < N; ++n) phi[n] = larger(splat(0), near[n] * r[n] + 0.5f);
}

template <int N>
QKV_INLINE void gelu(Floats (&x)[N]) {
  Floats phi[N];
  normal(x, phi);
  QKV_UNROLL for (int n = 0; n < N; ++n) x[n] *= phi[n];
}

// x / (1 + 2**exponent). The exponent is clamped, so that no result is subnormal.
QKV_INLINE Floats times_sigmoid(Floats x, Floats exponent) {
  return x / (exp2(smaller(splat(NEGLIGIBLE), exponent)) + 1);
}

template <int N>
QKV_INLINE void silu(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) x[n] = times_sigmoid(x[n], x[n] * -LOG2_E);
}

// (1 + tanh(t)) / 2 is the sigmoid of 2 t.
template <int N>
QKV_INLINE void gelu_tanh(Floats (&x)[N]) {
  constexpr float ROOT = 0.79788456080286535588f;  // sqrt(2 / pi)
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    Floats t = x[n] * (x[n] * x[n] * (ROOT * 0.044715f) + ROOT);
    x[n] = times_sigmoid(x[n], t * (-2 * LOG2_E));
  }
}

// x times the sigmoid of 1.702 x.
constexpr float QUICK = 1.702f;

template <int N>
QKV_INLINE void quick_gelu(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) x[n] = times_sigmoid(x[n], x[n] * (-QUICK * LOG2_E));
}

template <int N>
QKV_INLINE void relu(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) x[n] = larger(splat(0), x[n]);
}

template <Activation A, int N>
QKV_INLINE void activate(Floats (&x)[N]) {
#define QKV_ACTIVATION(NAME) if constexpr (A == Activation::NAME) NAME(x);
  QKV_ACTIVATIONS(QKV_ACTIVATION)
#undef QKV_ACTIVATION
}

// ---- derivatives: each function replaces x by the derivative at x
// ---------------------------------
//
// x is clipped to a range outside which the derivative is constant. Otherwise infinity would be
// multiplied by 0.

QKV_INLINE Floats bounded(Floats x, float by) { return smaller(splat(by), larger(splat(-by), x)); }

// Phi(x) + x * exp(-x**2 / 2) / sqrt(2 pi)
template <int N>
QKV_INLINE void gelu_slope(Floats (&x)[N]) {
  constexpr float DENSITY = 0.39894228040143267794f;  // 1 / sqrt(2 pi)
  Floats phi[N];
  normal(x, phi);
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    Floats near = bounded(x[n], 20);
    x[n] = phi[n] + near * DENSITY * exp2(near * near * (-0.5f * LOG2_E));
  }
}

// Returns the derivative of x * s by x, where s = sigmoid(u): s + x * u' * s * (1 - s). With
// e = exp(-u), 1 - s is e * s. `slope` is u', and `exponent` is -u * log2(e).
QKV_INLINE Floats times_sigmoid_slope(Floats x, Floats exponent, Floats slope) {
  Floats e = exp2(smaller(splat(NEGLIGIBLE), exponent));
  Floats s = 1.0f / (e + 1);
  return s + x * slope * (e * s * s);
}

template <int N>
QKV_INLINE void silu_slope(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    Floats near = bounded(x[n], 120);
    x[n] = times_sigmoid_slope(near, near * -LOG2_E, splat(1));
  }
}

template <int N>
QKV_INLINE void gelu_tanh_slope(Floats (&x)[N]) {
  constexpr float ROOT = 0.79788456080286535588f;  // sqrt(2 / pi)
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    Floats near = bounded(x[n], 12), square = near * near;
    Floats t = near * (square * (ROOT * 0.044715f) + ROOT);
    Floats slope = square * (6 * ROOT * 0.044715f) + 2 * ROOT;
    x[n] = times_sigmoid_slope(near, t * (-2 * LOG2_E), slope);
  }
}

template <int N>
QKV_INLINE void quick_gelu_slope(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    Floats near = bounded(x[n], 70);
    x[n] = times_sigmoid_slope(near, near * (-QUICK * LOG2_E), splat(QUICK));
  }
}

// The derivative at NaN is 1, as in torch. The forward pass has already returned NaN.
template <int N>
QKV_INLINE void relu_slope(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n)
    x[n] = select((Ints)(x[n] <= Floats{}), splat(0), splat(1));
}

template <Activation A, int N>
QKV_INLINE void slope(Floats (&x)[N]) {
#define QKV_ACTIVATION(NAME) if constexpr (A == Activation::NAME) NAME##_slope(x);
  QKV_ACTIVATIONS(QKV_ACTIVATION)
#undef QKV_ACTIVATION
}

}  // namespace QKV_VARIANT
}  // namespace qkv
