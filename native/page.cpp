// The operations of the model in a live page, for WebAssembly: see kernels.js beside the page's engine, which calls
// them. `.ci/wasm.py` compiles this file, without the rest of the kernel.
//
// An array is flat, in float32, and in row-major order. A number does not depend on how many rows are computed with
// it: each lane of a sum adds the same products in the same order, so a token that is computed alone gets the same
// bits as one that is computed with others.
#define QKV_VARIANT page

#include "activation.h"

#define QKV_PAGE(NAME) extern "C" __attribute__((export_name(#NAME))) void NAME

namespace qkv {
namespace page {

constexpr int ROWS = 4;    // the rows of a weight that are read together
constexpr int TOKENS = 2;  // the rows of x

// Loads the first `count` numbers of a vector; the other lanes are `rest`. kernels.js leaves space behind the arrays, so
// whole vectors can be read everywhere.
QKV_INLINE Floats load_up_to(const float* from, int count, float rest = 0) {
  return select(lanes() < count, load(from), splat(rest));
}
__attribute__((noinline)) void store_first(float* to, Floats v, int count) {
  for (int k = 0; k < count; ++k, v = __builtin_shufflevector(v, v, 1, 2, 3, 0)) to[k] = v[0];
}
QKV_INLINE void store_up_to(float* to, Floats v, int count) {
  if (count >= WIDTH) return store(to, v);
  store_first(to, v, count);
}

// Computes the dot products of N rows of x with ROWS rows of w; lane m of out[n] belongs to row m of w.
template <int N>
QKV_INLINE void dots(const float* x, int x_step, const float* const (&w)[ROWS], int size, Floats (&out)[N]) {
  static_assert(ROWS == WIDTH);
  Floats sums[N][ROWS] = {};
  auto add = [&](int k, auto take) QKV_LAMBDA {
    Floats a[N];
    QKV_UNROLL for (int n = 0; n < N; ++n) a[n] = take(x + n * x_step + k);
    QKV_UNROLL for (int m = 0; m < ROWS; ++m) {
      const Floats b = take(w[m] + k);
      QKV_UNROLL for (int n = 0; n < N; ++n) sums[n][m] += a[n] * b;
    }
  };
  int k = 0;
  for (; k + WIDTH <= size; k += WIDTH) add(k, [](const float* from) QKV_LAMBDA { return load(from); });
  if (k < size) add(k, [&](const float* from) QKV_LAMBDA { return load_up_to(from, size - k); });
  QKV_UNROLL for (int n = 0; n < N; ++n) {
    transpose(sums[n]);
    out[n] = (sums[n][0] + sums[n][1]) + (sums[n][2] + sums[n][3]);
  }
}

// Computes all dot products of the rows of x (count, size) with the rows of w (rows, size). `put` receives them, four
// at a time: put(row of x, first row of w, products).
template <class Put>
QKV_INLINE void products(const float* x, int x_step, int count, const float* w, int w_step, int rows, int size,
                         const Put& put) {
  for (int r = 0; r < rows; r += ROWS) {
    const float* some[ROWS];
    for (int m = 0; m < ROWS; ++m) some[m] = w + (r + m < rows ? r + m : rows - 1) * w_step;
    int t = 0;
    for (; t + TOKENS <= count; t += TOKENS) {
      Floats out[TOKENS];
      dots(x + t * x_step, x_step, some, size, out);
      for (int n = 0; n < TOKENS; ++n) put(t + n, r, out[n]);
    }
    if (t < count) {
      Floats out[1];
      dots(x + t * x_step, x_step, some, size, out);
      put(t, r, out[0]);
    }
  }
}

// x (T, I), weight (O, I), bias (O) or null -> out (T, O)
QKV_PAGE(linear)(const float* x, const float* weight, const float* bias, float* out, int T, int I, int O) {
  products(x, I, T, weight, I, O, I, [&](int t, int o, Floats sums) QKV_LAMBDA {
    if (bias) sums += load_up_to(bias + o, O - o);
    store_up_to(out + t * O + o, sums, O - o);
  });
}

// Returns the mean of f over a row.
template <class F>
QKV_INLINE float mean_of(const float* x, int size, const F& f) {
  Floats sums{};
  int k = 0;
  for (; k + WIDTH <= size; k += WIDTH) sums += f(load(x + k));
  if (k < size) sums += select(lanes() < size - k, f(load(x + k)), Floats{});
  return sum(sums) / float(size);
}

// x (rows, size), weight (size), bias (size) or null -> out (rows, size). The rounded mean leaves a small mean, which is
// subtracted too. `offset` is added to the weight.
QKV_PAGE(normalize)(const float* x, const float* weight, const float* bias, float* out, int rows, int size, float eps,
                    float offset, int rms) {
  for (int r = 0; r < rows; ++r, x += size, out += size) {
    float mean = 0, rest = 0;
    if (!rms) {
      mean = mean_of(x, size, [](Floats v) QKV_LAMBDA { return v; });
      rest = mean_of(x, size, [&](Floats v) QKV_LAMBDA { return v - mean; });
    }
    auto centred = [&](Floats v) QKV_LAMBDA { return v - mean - rest; };
    const float variance = mean_of(x, size, [&](Floats v) QKV_LAMBDA { return centred(v) * centred(v); });
    const float factor = 1 / __builtin_sqrtf(variance + eps);
    for (int k = 0; k < size; k += WIDTH) {
      const int count = size - k;
      Floats v = centred(load_up_to(x + k, count)) * factor * (load_up_to(weight + k, count) + offset);
      if (bias) v += load_up_to(bias + k, count);
      store_up_to(out + k, v, count);
    }
  }
}

template <int N>
QKV_INLINE void tanh_of(Floats (&x)[N]) {
  QKV_UNROLL for (int n = 0; n < N; ++n) x[n] = tanh(x[n]);
}

template <class Apply>
QKV_INLINE void activate_with(const float* by, float* x, int size, const Apply& apply) {
  constexpr int VECTORS = 4;
  for (int k = 0; k < size; k += VECTORS * WIDTH) {
    Floats v[VECTORS];
    QKV_UNROLL for (int n = 0; n < VECTORS; ++n) v[n] = load_up_to(x + k + n * WIDTH, size - k - n * WIDTH);
    apply(v);
    QKV_UNROLL for (int n = 0; n < VECTORS; ++n) {
      const int count = size - k - n * WIDTH;
      if (by) v[n] *= load_up_to(by + k + n * WIDTH, count);
      store_up_to(x + k + n * WIDTH, v[n], count);
    }
  }
}

// Applies an activation to x (size), in place, and multiplies the results by the numbers of `by`, if given. The codes
// are those of `Activation`; tanh has the code after the last.
QKV_PAGE(activate)(float* x, const float* by, int size, int code) {
#define QKV_ACTIVATION(NAME) \
  if (code == int(Activation::NAME)) return activate_with(by, x, size, [](auto& v) QKV_LAMBDA { NAME(v); });
  QKV_ACTIVATIONS(QKV_ACTIVATION)
#undef QKV_ACTIVATION
  activate_with(by, x, size, [](auto& v) QKV_LAMBDA { tanh_of(v); });
}

// q (L, H * d), k (S, shared * d), hidden (H, L, S) -> out (H, L, S). Without a softcap, `softcap` is 0.
QKV_PAGE(score)(const float* q, const float* k, const uint8_t* hidden, float* out, int L, int S, int H, int shared,
                int d, float scale, float softcap) {
  for (int h = 0; h < H; ++h, q += d, hidden += L * S, out += L * S)
    products(q, H * d, L, k + h * shared / H * d, shared * d, S, d, [&](int i, int j, Floats sums) QKV_LAMBDA {
      sums *= scale;
      if (softcap != 0) sums = softcap * tanh(sums / softcap);
      const Ints masked = __builtin_convertvector(load_as<Bytes>(hidden + i * S + j), Ints) != 0;
      sums = select(masked, splat(-INF), sums);
      store_up_to(out + i * S + j, sums, S - j);
    });
}

// Turns each row of scores (rows, S) into weights, in place.
QKV_PAGE(soften)(float* x, int rows, int S) {
  for (int r = 0; r < rows; ++r, x += S) {
    Floats most = splat(-INF), sums{};
    for (int j = 0; j < S; j += WIDTH) most = larger(most, load_up_to(x + j, S - j, -INF));
    float largest = most[0];
    for (int n = 1; n < WIDTH; ++n) largest = most[n] > largest ? most[n] : largest;
    if (largest == -INF) largest = 0;
    for (int j = 0; j < S; j += WIDTH) {
      const Floats power = exp2((load_up_to(x + j, S - j, -INF) - largest) * LOG2_E);
      sums += power;
      store_up_to(x + j, power, S - j);
    }
    const float total = sum(sums);
    if (total == 0) continue;  // no key is visible
    for (int j = 0; j < S; j += WIDTH) store_up_to(x + j, load_up_to(x + j, S - j) / total, S - j);
  }
}

// Adds up V vectors of the values of each key, weighted by N rows of the pattern.
template <int N, int V>
QKV_INLINE void mix(const float* pattern, const float* v, int step, int S, float* out, int out_step, int count) {
  Floats sums[N][V] = {};
  for (int j = 0; j < S; ++j, v += step) {
    Floats value[V];
    QKV_UNROLL for (int c = 0; c < V; ++c) value[c] = V > 1 ? load(v + c * WIDTH) : load_up_to(v, count);
    QKV_UNROLL for (int n = 0; n < N; ++n)
      QKV_UNROLL for (int c = 0; c < V; ++c) sums[n][c] += pattern[n * S + j] * value[c];
  }
  QKV_UNROLL for (int n = 0; n < N; ++n)
    QKV_UNROLL for (int c = 0; c < V; ++c)
      store_up_to(out + n * out_step + c * WIDTH, sums[n][c], V > 1 ? WIDTH : count);
}

template <int N>
QKV_INLINE void mix_all(const float* pattern, const float* v, int step, int S, float* out, int out_step, int d) {
  constexpr int WIDE = 4;
  int c = 0;
  for (; c + WIDE * WIDTH <= d; c += WIDE * WIDTH) mix<N, WIDE>(pattern, v + c, step, S, out + c, out_step, d - c);
  for (; c < d; c += WIDTH) mix<N, 1>(pattern, v + c, step, S, out + c, out_step, d - c);
}

// pattern (H, L, S), v (S, shared * d) -> out (L, H * d)
QKV_PAGE(weigh)(const float* pattern, const float* v, float* out, int L, int S, int H, int shared, int d) {
  for (int h = 0; h < H; ++h, pattern += L * S, out += d) {
    const float* values = v + h * shared / H * d;
    int i = 0;
    for (; i + TOKENS <= L; i += TOKENS)
      mix_all<TOKENS>(pattern + i * S, values, shared * d, S, out + i * H * d, H * d, d);
    if (i < L) mix_all<1>(pattern + i * S, values, shared * d, S, out + i * H * d, H * d, d);
  }
}

// ---- the blocks of a GGUF file: 32 numbers with a scale in float16, multiplied as they lie in the file

typedef int16_t Eight __attribute__((vector_size(16)));
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef int64_t Twice __attribute__((vector_size(16)));  // four numbers of int16, twice
typedef uint8_t LowEight __attribute__((vector_size(8)));
typedef int8_t SignedEight __attribute__((vector_size(8)));

constexpr int BLOCK = 32;
constexpr float MOST = 32767;  // the largest number of int16
constexpr float FAR = 8;       // a number is far from the others of its block if it is this many times as large as each

// Each kind has the bytes of a block and of its head, a number that stands for 0, and whether a minimum follows the scale.
struct Q4_0 {
  using Half = LowEight;
  static constexpr int BYTES = 18, HEAD = 2, ZERO = 8;
  static constexpr bool LEAST = false;
};
struct Q4_1 {
  using Half = LowEight;
  static constexpr int BYTES = 20, HEAD = 4, ZERO = 0;
  static constexpr bool LEAST = true;
};
struct Q8_0 {
  using Half = SignedEight;
  static constexpr int BYTES = 34, HEAD = 2, ZERO = 0;
  static constexpr bool LEAST = false;
};

// Four rows of a block, as vectors of four numbers of each row: vector g holds the numbers 4 g to 4 g + 3. If a number
// has four bits, byte n holds the numbers n and n + 16.
template <class Kind>
QKV_INLINE void by_fours(const uint8_t* const (&rows)[ROWS], Bytes16 (&to)[BLOCK / 4]) {
  constexpr int VECTORS = (Kind::BYTES - Kind::HEAD) / 16;
  QKV_UNROLL for (int c = 0; c < VECTORS; ++c) {
    Floats words[ROWS];
    QKV_UNROLL for (int m = 0; m < ROWS; ++m) words[m] = load_as<Floats>(rows[m] + Kind::HEAD + 16 * c);
    transpose(words);
    QKV_UNROLL for (int m = 0; m < ROWS; ++m) {
      const Bytes16 v = (Bytes16)words[m];
      to[4 * c + m] = VECTORS == 2 ? v : v & 15;
      if (VECTORS == 1) to[4 + m] = v >> 4;
    }
  }
}

template <class Kind>
QKV_INLINE void widen(Bytes16 v, Eight (&to)[2]) {
  using Half = typename Kind::Half;
  const LowEight low = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
  const LowEight high = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  to[0] = __builtin_convertvector((Half)low, Eight) - int16_t(Kind::ZERO);
  to[1] = __builtin_convertvector((Half)high, Eight) - int16_t(Kind::ZERO);
}

QKV_INLINE Floats from_half(Words bits) {  // the exponents of float16 and float32 differ by 112
  const Floats size = (Floats)((bits & 0x7fff) << 13) * 0x1p112f;
  return (Floats)((Words)size | (bits & 0x8000) << 16);
}

QKV_INLINE Ints pair_products(Eight a, Eight b) { return (Ints)__builtin_wasm_dot_s_i32x4_i16x8(a, b); }

// A block of x: its scale, the sum of its rounded numbers, and the number that is far from the others, or 0. The block
// of int16 has 0 in the place of that number, so that the others keep their precision.
struct Rounded {
  float scale, sum, far;
  int place;
};

QKV_INLINE Floats magnitude(Floats v) { return larger(v, -v); }
QKV_INLINE float largest_of(const float* x) {
  Floats most{};
  for (int c = 0; c < BLOCK; c += WIDTH) most = larger(most, magnitude(load(x + c)));
  float largest = most[0];
  for (int n = 1; n < WIDTH; ++n) largest = most[n] > largest ? most[n] : largest;
  return largest;
}

// Rounds x (size) to int16 numbers with a scale for each block.
QKV_INLINE void quantize(const float* x, int size, int16_t* whole, Rounded* rounded) {
  for (int k = 0; k < size; k += BLOCK, ++rounded) {
    float own[BLOCK];
    std::memcpy(own, x + k, sizeof own);
    float largest = largest_of(own);
    Ints near{};
    for (int c = 0; c < BLOCK; c += WIDTH) near += magnitude(load(own + c)) * FAR > largest;
    *rounded = Rounded{};
    if (near[0] + near[1] + near[2] + near[3] == -1) {
      int place = 0;
      while (own[place] != largest && own[place] != -largest) ++place;
      rounded->far = own[place], rounded->place = place;
      own[place] = 0;
      largest = largest_of(own);
    }
    const float factor = largest > 0 ? MOST / largest : 0;
    Ints total{};
    for (int c = 0; c < BLOCK; c += 2 * WIDTH) {
      const Ints low = __builtin_convertvector(__builtin_elementwise_rint(load(own + c) * factor), Ints);
      const Ints high = __builtin_convertvector(__builtin_elementwise_rint(load(own + c + WIDTH) * factor), Ints);
      const Eight both = (Eight)__builtin_wasm_narrow_s_i16x8_i32x4(low, high);
      std::memcpy(whole + k + c, &both, sizeof both);
      total += low + high;
    }
    rounded->scale = largest / MOST;
    rounded->sum = float(total[0] + total[1] + total[2] + total[3]) * rounded->scale;
  }
}

// Returns the whole numbers of a weight's blocks at one place, for each row.
template <class Kind>
QKV_INLINE Floats wholes_at(const uint8_t* w, int w_step, int rows, int place) {
  Floats out;
  for (int m = 0; m < ROWS; ++m) {
    const uint8_t* q = w + (m < rows ? m : rows - 1) * w_step + Kind::HEAD;
    if constexpr (Kind::BYTES == 34)
      out[m] = float(int8_t(q[place]));
    else
      out[m] = float((place < 16 ? q[place] & 15 : q[place - 16] >> 4) - Kind::ZERO);
  }
  return out;
}

// Computes the dot products of N rows of x with ROWS rows of w; only the first `rows` of these may be read.
template <class Kind, int N>
QKV_INLINE void block_dots(const uint8_t* w, int w_step, int rows, const int16_t* x, const Rounded* rounded, int size,
                           Floats (&out)[N]) {
  const int blocks = size / BLOCK;
  QKV_UNROLL for (int n = 0; n < N; ++n) out[n] = Floats{};
  for (int b = 0; b < blocks; ++b, w += Kind::BYTES) {
    const uint8_t* own[ROWS];
    Words heads;
    QKV_UNROLL for (int m = 0; m < ROWS; ++m) {
      own[m] = w + (m < rows ? m : rows - 1) * w_step;
      heads[m] = load_as<uint32_t>(own[m]);
    }
    Bytes16 fours[BLOCK / 4];
    by_fours<Kind>(own, fours);
    Ints sums[N][2] = {};  // of the rows 0, 0, 1, 1 and of the rows 2, 2, 3, 3
    QKV_UNROLL for (int g = 0; g < BLOCK / 4; ++g) {
      Eight q[2];
      widen<Kind>(fours[g], q);
      QKV_UNROLL for (int n = 0; n < N; ++n) {
        const int64_t four = load_as<int64_t>(reinterpret_cast<const uint8_t*>(x + n * size + b * BLOCK + 4 * g));
        const Eight twice = (Eight)Twice{four, four};
        QKV_UNROLL for (int c = 0; c < 2; ++c) sums[n][c] += pair_products(q[c], twice);
      }
    }
    const Floats scale = from_half(heads);
    QKV_UNROLL for (int n = 0; n < N; ++n) {
      const Ints total = __builtin_shufflevector(sums[n][0], sums[n][1], 0, 2, 4, 6) +
                         __builtin_shufflevector(sums[n][0], sums[n][1], 1, 3, 5, 7);
      const Rounded& one = rounded[n * blocks + b];
      out[n] += to_floats(total) * scale * one.scale;
      if (Kind::LEAST) out[n] += from_half(heads >> 16) * (one.sum + one.far);
      if (one.far != 0) out[n] += wholes_at<Kind>(w, w_step, rows, one.place) * scale * one.far;
    }
  }
}

// Reads a byte of each line of the cache, so that the bytes are in the cache when they are needed.
QKV_INLINE void touch(const uint8_t* bytes, int count) {
  int sum = 0;
  for (int k = 0; k < count; k += 64) sum += bytes[k];
  asm volatile("" ::"r"(sum));
}

template <class Kind>
QKV_INLINE void block_products(const uint8_t* weight, const float* bias, float* out, const int16_t* x,
                               const Rounded* rounded, int T, int I, int O) {
  constexpr int SHARED = 4;  // the tokens that share an unpacked block
  constexpr int AHEAD = 4;   // the groups of rows between the one that is read and the one that is computed
  const int step = I / BLOCK * Kind::BYTES, blocks = I / BLOCK;
  for (int o = 0; o < O; o += ROWS) {
    auto put = [&](int t, Floats v) QKV_LAMBDA {
      if (bias) v += load_up_to(bias + o, O - o);
      store_up_to(out + t * O + o, v, O - o);
    };
    if (o + (AHEAD + 1) * ROWS <= O) touch(weight + (o + AHEAD * ROWS) * step, ROWS * step);
    int t = 0;
    for (; t + SHARED <= T; t += SHARED) {
      Floats found[SHARED];
      block_dots<Kind>(weight + o * step, step, O - o, x + t * I, rounded + t * blocks, I, found);
      for (int n = 0; n < SHARED; ++n) put(t + n, found[n]);
    }
    for (; t < T; ++t) {
      Floats found[1];
      block_dots<Kind>(weight + o * step, step, O - o, x + t * I, rounded + t * blocks, I, found);
      put(t, found[0]);
    }
  }
}

// x (T, I), weight: O rows of I / 32 blocks, bias (O) or null -> out (T, O). `kind` is an index in the list of blocks.js.
// `scratch` has space for T * (2 * I + I / 2) bytes.
QKV_PAGE(linear_blocks)(const float* x, const uint8_t* weight, const float* bias, float* out, int T, int I, int O,
                        void* scratch, int kind) {
  int16_t* whole = static_cast<int16_t*>(scratch);
  Rounded* rounded = reinterpret_cast<Rounded*>(whole + T * I);
  quantize(x, T * I, whole, rounded);
  if (kind == 0) block_products<Q4_0>(weight, bias, out, whole, rounded, T, I, O);
  if (kind == 1) block_products<Q4_1>(weight, bias, out, whole, rounded, T, I, O);
  if (kind == 2) block_products<Q8_0>(weight, bias, out, whole, rounded, T, I, O);
}

}  // namespace page
}  // namespace qkv
