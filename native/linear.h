// Computes x @ W + bias with packed weights, and applies an activation, a gate and a residual.
//
// Packed weights are in panels of PANEL columns: [panel][k][PANEL], with zeros after the last
// column. A register tile is TILE rows of x by one panel. The sums of a tile stay in registers for
// all k, so the sum for each number of y does not depend on how threads divide rows and panels. The
// rows of x are copied to a buffer with a fixed step.
#pragma once

#include <atomic>
#include <stdexcept>
#include <type_traits>

#include "activation.h"
#include "buffer.h"
#include "columns.h"
#include "half.h"
#include "problem.h"
#include "threads.h"
#include "tile.h"

namespace qkv {
namespace QKV_VARIANT {

// Loads one row of a packed panel. In bfloat16, columns c and c + WIDTH share a word of 32 bits,
// because this layout is the fastest to unpack.
QKV_INLINE void take_row(const float* from, Floats& w0, Floats& w1) {
  w0 = load(from);
  w1 = load(from + WIDTH);
}
QKV_INLINE void take_row(const Float16* from, Floats& w0, Floats& w1) {
  w0 = take(from);
  w1 = take(from + WIDTH);
}
QKV_INLINE void take_row(const Bfloat16* from, Floats& w0, Floats& w1) {
  Words both = load_as<Words>(from);
  w0 = (Floats)(both << 16);
  w1 = (Floats)(both & 0xffff0000u);
}

// Prefetches a row of a panel, because the processor itself prefetches the next rows too late.
constexpr int AHEAD = 16;
template <class Weight>
QKV_INLINE void fetch_row(const Weight* row) {
  QKV_UNROLL for (int at = 0; at < PANEL; at += 64 / int(sizeof(Weight))) {
    __builtin_prefetch(row + at);
  }
}

// The type of a product, and the type of packed weights. Half-precision weights are converted to
// float32 only when they are used.
template <class T>
struct Product {
  typedef Single Step;
  typedef T Weight;
};
template <>
struct Product<Bfloat16> {
  typedef OfBfloat16 Step;
  typedef std::conditional_t<Step::DEPTH == 2, float, Bfloat16> Weight;
};
struct WideBfloat16 : Bfloat16 {};
template <>
struct Product<WideBfloat16> {
  typedef Single Step;
  typedef Bfloat16 Weight;
};

constexpr int64_t X_BLOCK = 384;             // the number of contiguous units of a row in the copy of x
constexpr int64_t ROW_STEP = X_BLOCK + 16;   // rows at this distance do not share cache sets
// The number of rows of x that are copied for each pass over W.
template <class Step>
constexpr int64_t X_ROWS = Step::ALIGN > 1 ? 256 : 112 / TILE * TILE;

inline int64_t panels_of(int64_t out) { return (out + PANEL - 1) / PANEL; }
template <class T>
inline int64_t units_of(int64_t in) {
  typedef typename Product<T>::Step Step;
  constexpr int each = Step::DEPTH * Step::ALIGN;
  return (in + each - 1) / each * Step::ALIGN;
}

// Computes the sums of ROWS rows and one panel. `x` is in blocks of X_BLOCK units, and the blocks are
// `block_step` apart.
template <class Step, class Weight, int ROWS>
void multiply(const float* x, int64_t block_step, const void* panel, int64_t units, float* sums) {
  const Weight* w = static_cast<const Weight*>(panel);
  if constexpr (Step::ALIGN > 1) {
    bool add = false;
    for (; units > 0 || !add; units -= X_BLOCK, x += block_step, w += X_BLOCK * PANEL, add = true)
      Step::template multiply<ROWS>(x, ROW_STEP, w, units < X_BLOCK ? units : X_BLOCK, sums, PANEL, add);
  } else {
    Floats c[ROWS][2];
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) c[r][0] = c[r][1] = Floats{};
    for (; units > 0; units -= X_BLOCK, x += block_step) {
      const Weight* end = w + (units < X_BLOCK ? units : X_BLOCK) * PANEL;
      for (const float* here = x; w != end; w += PANEL, ++here) {
        Floats w0, w1;
        take_row(w, w0, w1);
        if (ROWS > TILE / 2 + 1 || sizeof(Weight) < sizeof(float)) fetch_row(w + AHEAD * PANEL);
        QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
          Floats one = splat(here[r * ROW_STEP]);
          c[r][0] = Step::add_product(c[r][0], one, w0);
          c[r][1] = Step::add_product(c[r][1], one, w1);
        }
      }
    }
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
      store(sums + r * PANEL, c[r][0]);
      store(sums + r * PANEL + WIDTH, c[r][1]);
    }
  }
}

using Multiply = void (*)(const float*, int64_t, const void*, int64_t, float*);

template <class Step, class Weight, int ROWS = Step::HEIGHT>
inline Multiply multiply_for(int64_t rows) {
  if constexpr (ROWS > Step::ALIGN)
    if (rows <= ROWS - Step::ALIGN) return multiply_for<Step, Weight, ROWS - Step::ALIGN>(rows);
  return multiply<Step, Weight, ROWS>;
}

// Computes y from the sums for ROWS rows of one panel: bias, activation, gate, residual.
template <class T, Activation A, int ROWS>
QKV_INLINE void finish_rows(const Linear& p, const float* sums, Floats b0, Floats b1, int64_t row,
                            int64_t column, int64_t columns) {
  Floats v[2 * ROWS];
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
    v[2 * r] = load(sums + r * PANEL) + b0;
    v[2 * r + 1] = load(sums + r * PANEL + WIDTH) + b1;
  }
  activate<A>(v);
  if (p.gate) {
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
      const T* gate = static_cast<const T*>(p.gate) + (row + r) * p.gate_step + column;
      v[2 * r] *= take_some(gate, columns);
      v[2 * r + 1] *= take_some(gate + WIDTH, columns - WIDTH);
    }
  }
  if (p.residual) {
    QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
      const T* more = static_cast<const T*>(p.residual) + (row + r) * p.residual_step + column;
      v[2 * r] += take_some(more, columns);
      v[2 * r + 1] += take_some(more + WIDTH, columns - WIDTH);
    }
  }
  QKV_UNROLL for (int r = 0; r < ROWS; ++r) {
    T* y = static_cast<T*>(p.y) + (row + r) * p.y_step + column;
    put_some(y, v[2 * r], columns);
    put_some(y + WIDTH, v[2 * r + 1], columns - WIDTH);
  }
}

template <class T, Activation A>
void finish(const Linear& p, const float* sums, int64_t row, int64_t rows, int64_t panel) {
  const int64_t column = panel * PANEL, columns = p.out - column;
  Floats b0{}, b1{};
  if (p.bias) {
    b0 = take_some(p.bias + column, columns);
    b1 = take_some(p.bias + column + WIDTH, columns - WIDTH);
  }
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2)
    finish_rows<T, A, 2>(p, sums + r * PANEL, b0, b1, row + r, column, columns);
  if (r < rows) finish_rows<T, A, 1>(p, sums + r * PANEL, b0, b1, row + r, column, columns);
}

// Calls `run` with an activation as a constant.
template <class Run>
inline auto with_activation(Activation activation, const Run& run) {
#define QKV_ACTIVATION(NAME) \
  if (activation == Activation::NAME) return run(std::integral_constant<Activation, Activation::NAME>{});
  QKV_ACTIVATIONS(QKV_ACTIVATION)
#undef QKV_ACTIVATION
  throw std::invalid_argument("no such activation");
}

using Finish = void (*)(const Linear&, const float*, int64_t, int64_t, int64_t);

template <class T>
inline Finish finish_for(Activation activation) {
  if (activation == Activation::none) return finish<T, Activation::none>;
  return with_activation(activation, [](auto of) -> Finish { return finish<T, decltype(of)::value>; });
}

// Copies `count` numbers of one row as units, and fills the last unit with zeros.
inline void copy_units(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, size_t(count) * sizeof(float));
}
template <class T>
inline void copy_units(const T* from, int64_t count, float* to) {
  if constexpr (Product<T>::Step::DEPTH == 1) {
    for (int64_t k = 0; k < count; k += WIDTH)
      put_some(to + k, take_some(from + k, count - k), count - k);
  } else {
    for (int64_t k = count / 2; k < units_of<T>(count); ++k) to[k] = 0;
    std::memcpy(static_cast<void*>(to), from, size_t(count) * sizeof(T));
  }
}

// Divides the panels of each chunk of rows into groups, so that all threads have work. With few rows, most
// of the time goes into reading weights, and long consecutive runs are read fastest.
inline int64_t groups_of(int64_t panels, int64_t chunks, int64_t rows, int threads) {
  const int64_t pieces = (rows <= TILE / 2 ? 2 : 16) * threads;
  int64_t groups = 1;
  while (groups < panels && chunks * groups < pieces) groups *= 2;
  return groups > panels ? panels : groups;
}

// Multiplies rows of T by weights W. If W is narrower than T, W is converted to float32, as T is.
template <class T, class W = T>
void multiply_all(const Linear& p, int threads) {
  typedef typename Product<W>::Step Step;
  typedef typename Product<W>::Weight Weight;
  const int64_t units = units_of<W>(p.in), panels = panels_of(p.out);
  const int64_t blocks = units > 0 ? (units + X_BLOCK - 1) / X_BLOCK : 1;

  const int64_t chunks = (p.rows + X_ROWS<Step> - 1) / X_ROWS<Step>;
  const int64_t groups = groups_of(panels, chunks, p.rows, threads);
  const Finish finish_tile =
      p.y_type == Type::float32 ? finish_for<float>(p.activation) : finish_for<T>(p.activation);

  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    Buffer<float> copy, wide;
    alignas(64) float sums[Step::HEIGHT * PANEL];
    [[maybe_unused]] typename Step::Registers registers;
    int64_t held = -1;  // the chunk that the copy holds
    for (int64_t task; (task = next++) < chunks * groups;) {
      const int64_t chunk = task / groups, group = task % groups;
      const int64_t first = p.rows * chunk / chunks, rows = p.rows * (chunk + 1) / chunks - first;
      const int64_t block_step = (rows + Step::ALIGN - 1) / Step::ALIGN * Step::ALIGN * ROW_STEP;
      if (held != chunk) {
        copy.need(size_t(blocks * block_step));
        for (int64_t r = 0; r < rows; ++r) {
          const T* from = static_cast<const T*>(p.x) + (first + r) * p.x_step;
          for (int64_t b = 0; b < blocks; ++b) {
            const int64_t done = b * X_BLOCK * Step::DEPTH, rest = p.in - done;
            copy_units(from + done, rest < X_BLOCK * Step::DEPTH ? rest : X_BLOCK * Step::DEPTH,
                       copy.data() + b * block_step + r * ROW_STEP);
          }
        }
        held = chunk;
      }
      const int64_t tiles = tiles_of<Step>(rows);
      for (int64_t panel = panels * group / groups; panel < panels * (group + 1) / groups; ++panel) {
        const Weight* w = static_cast<const Weight*>(p.packed) + panel * units * PANEL;
        const bool widen = sizeof(Weight) < sizeof(float) && tiles > 1;  // convert a panel once for all tiles
        if (widen) {
          wide.need(size_t(units * PANEL));
          for (int64_t k = 0; k < units * PANEL; k += PANEL) {
            Floats w0, w1;
            take_row(w + k, w0, w1);
            store(wide.data() + k, w0);
            store(wide.data() + k + WIDTH, w1);
          }
        }
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t at = tile_begin<Step>(rows, tile), count = tile_begin<Step>(rows, tile + 1) - at;
          const float* x = copy.data() + at * ROW_STEP;
          if (widen)
            multiply_for<Step, float>(count)(x, block_step, wide.data(), units, sums);
          else
            multiply_for<Step, Weight>(count)(x, block_step, w, units, sums);
          finish_tile(p, sums, first + at, count, panel);
        }
        worked(rows * PANEL * p.in);
      }
    }
  });
}

// A packed row holds DEPTH numbers for each column. Returns the position in the packed row of one
// of these numbers: number `d` for column `c`.
template <class T>
inline int64_t slot(int64_t c, int d) {
  constexpr int depth = Product<T>::Step::DEPTH;
  if constexpr (std::is_base_of_v<Bfloat16, T> && depth == 1) return c % WIDTH * 2 + c / WIDTH;
  return c * depth + d;
}

template <class T>
void pack_all(const T* weight, int64_t in_step, int64_t out_step, int64_t in, int64_t out, T* packed,
              int threads) {
  constexpr int depth = Product<T>::Step::DEPTH;
  const int64_t units = units_of<T>(in), panels = panels_of(out);
  std::atomic<int64_t> next{0};
  on_threads(threads, [&](int) {
    for (int64_t panel; (panel = next++) < panels; worked(in * PANEL)) {
      const int64_t column = panel * PANEL;
      const int64_t columns = out - column < PANEL ? out - column : PANEL;
      const T* from = weight + column * out_step;
      T* to = packed + panel * units * depth * PANEL;
      if constexpr (std::is_same_v<T, float>) {
        if (out_step == 1 || out == 1) {
          copy_columns<PANEL>(from, in_step, in, columns, to, 0, nullptr);
          continue;
        }
        if (in_step == 1) {
          copy_transposed(from, out_step, in, columns, to);
          continue;
        }
      }
      for (int64_t unit = 0; unit < units; ++unit, to += depth * PANEL) {
        for (int d = 0; d < depth; ++d) {
          const int64_t k = unit * depth + d;
          const int64_t real = k < in ? columns : 0;
          for (int64_t c = 0; c < real; ++c) to[slot<T>(c, d)] = from[k * in_step + c * out_step];
          for (int64_t c = real; c < PANEL; ++c) to[slot<T>(c, d)] = T{};
        }
      }
    }
  });
}

inline size_t packed_bytes_of_floats(int64_t in, int64_t out, Type type) {
  const int64_t units = type == Type::bfloat16 ? units_of<Bfloat16>(in) * Product<Bfloat16>::Step::DEPTH
                                               : in;
  return size_t(units) * size_t(panels_of(out) * PANEL) * (type == Type::float32 ? 4 : 2);
}

}  // namespace QKV_VARIANT
}  // namespace qkv
