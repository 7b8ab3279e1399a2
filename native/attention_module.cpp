// Attention and its gradient: methods of qkv._kernel.
#include <vector>

#include "module.h"

namespace qkv {
namespace {

// Returns the offset of each row of `array`. The leading axes are all axes before the last `inner`
// axes, and each combination of their indices is one row. Each leading axis of `array` has length
// 1, or the same length as the corresponding axis of `like`. An axis of length 1 is broadcast.
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

// The positions of the arguments for a batch and for packed rows. QUERY to LSE have the same position
// in both.
namespace batch {
enum {
  VARIANT, QUERY, KEY, VALUE, OUT, LSE, MASK, BIAS, SLOPES, SINKS, OFFSET, QUERY_LENGTHS, KEY_LENGTHS,
  LEFT, RIGHT, SOFTCAP, SCALE, THREADS, COUNT
};
}
namespace packed {
enum {
  VARIANT, QUERY, KEY, VALUE, OUT, LSE, STARTS, KEY_STARTS, SLOPES, SINKS, OFFSET, LEFT, RIGHT,
  SOFTCAP, SCALE, THREADS, COUNT
};
}

// The arguments that batches and packed rows share. This object owns the memory behind the pointers
// in `a`.
struct Call {
  const Array query, key, value, out, lse, slopes, sinks;
  Attention a;

  // `args` begins with the arguments QUERY to LSE, and `per_head` with SLOPES and SINKS. If
  // `computed` is true, the call writes to out and lse. Otherwise out and lse hold the results of
  // an earlier forward call.
  Call(PyObject* const* args, PyObject* const* per_head, bool computed)
      : query(args[0]), key(args[1]), value(args[2]), out(args[3], computed),
        lse(args[4], computed), slopes(per_head[0]), sinks(per_head[1]) {
    kept_.reserve(32);
    need(query && key && value && out, "an array is missing");
    need(is_working_float(query.type()) && key.type() == query.type() &&
             value.type() == query.type(),
         "query, key and value are not of one working type");
    need(out.type() == query.type() || out.type() == Type::float32,
         "out is neither float32 nor of the type of query");
    need_contiguous_rows({&query, &key, &value, &out});
    a.size = query.length(-1);
    a.value_size = value.length(-1);
    need(a.size >= 1 && a.size <= MAX_SIZE,
         "query and key must have a size from 1 to MAX_SIZE");
  }

  const int64_t* keep(std::vector<int64_t> numbers) {
    kept_.push_back(std::move(numbers));
    return kept_.back().data();
  }

  void heads(int64_t query_heads, int64_t kv_heads) {
    a.kv_heads = kv_heads;
    a.group = query_heads / std::max<int64_t>(kv_heads, 1);
    need(a.group * kv_heads == query_heads, "heads do not divide");
    if (slopes) {
      need(slopes.is(Type::float32, query_heads), "slopes are not one float32 for each head");
      a.slopes = static_cast<const float*>(slopes.data());
    }
    if (sinks && sinks.count()) {
      need(sinks.is(Type::float32, sinks.count()) && sinks.axes() == 2 &&
               sinks.length(-2) == query_heads,
           "sinks are not float32 of (heads, n)");
      a.sinks = static_cast<const float*>(sinks.data());
      a.num_sinks = sinks.length(-1);
    }
  }

  // Reads a whole number for all rows, or an array with a number for each row.
  const int64_t* per_row(PyObject* given, int64_t least, int64_t most) {
    std::vector<int64_t> numbers;
    if (PyLong_Check(given)) {
      numbers.assign(size_t(a.rows), whole(given));
    } else {
      Array array(given);
      need(array.is(Type::integer, a.rows), "a number for each row is wanted");
      auto* first = static_cast<const int64_t*>(array.data());
      numbers.assign(first, first + a.rows);
    }
    for (int64_t number : numbers)
      need(number >= least && number <= most, "a length or an offset is out of bounds");
    return keep(std::move(numbers));
  }

  // `args` begins with the argument LEFT.
  void window_and_scale(PyObject* const* args) {
    a.left = args[0] == Py_None ? FAR : std::min(FAR, whole(args[0]));
    a.right = args[1] == Py_None ? FAR : std::min(FAR, whole(args[1]));
    need(a.left >= 0 && a.right >= 0, "a side of the window is below 0");
    a.softcap = args[2] == Py_None ? 0 : real(args[2]);
    a.scale = real(args[3]);
  }

  bool empty() const {
    if (a.rows == 0 || a.kv_heads * a.group == 0) return true;
    return std::all_of(a.length, a.length + a.rows, [](int64_t length) { return length == 0; });
  }

 private:
  std::vector<std::vector<int64_t>> kept_;
};

// Arrays of (..., heads, length, size) with any leading axes.
struct Batch : Call {
  const Array mask, bias;
  int64_t length, keys;

  explicit Batch(PyObject* const* args, bool computed = true)
      : Call(args + batch::QUERY, args + batch::SLOPES, computed), mask(args[batch::MASK]),
        bias(args[batch::BIAS]), length(query.length(-2)), keys(key.length(-2)) {
    need(query.axes() >= 2, "query has no axes for length and size");
    heads(query.length(-3), key.length(-3));
    need(key.length(-1) == a.size && value.length(-2) == keys && value.length(-3) == a.kv_heads,
         "query, key and value do not fit");
    need(is_result(out, length, a.value_size), "out does not fit");
    need(!lse || (lse.type() == Type::float64 && is_result(lse, length, 1)),
         "lse is not float64 of (..., heads, length, 1)");

    a.rows = int64_t(starts(query, query, 3).size());
    a.query = query_cells(query, length, a.size);
    a.out = query_cells(out, length, a.value_size);
    a.lse = query_cells(lse, length, 1);
    a.key = key_cells(key, a.size);
    a.value = key_cells(value, a.value_size);
    a.mask = query_cells(mask, length, keys);
    a.bias = query_cells(bias, length, keys);
    need(!mask || !is_integer(mask.type()), "a mask of integers");
    need(!bias || (!is_integer(bias.type()) && bias.type() != Type::boolean), "bias is no float");
    a.length = keep(std::vector<int64_t>(size_t(a.rows), length));
    a.keys = keep(std::vector<int64_t>(size_t(a.rows), keys));
    PyObject *real_queries = args[batch::QUERY_LENGTHS], *real_keys = args[batch::KEY_LENGTHS];
    a.query_length = real_queries == Py_None ? a.length : per_row(real_queries, 0, length);
    a.key_length = real_keys == Py_None ? a.keys : per_row(real_keys, 0, keys);
    a.offset = per_row(args[batch::OFFSET], -FURTHEST, FURTHEST);
    window_and_scale(args + batch::LEFT);
  }

  // (..., Hq, i, j) with the leading axes of query; any axis of length 1 is repeated.
  Cells query_cells(const Array& array, int64_t rows, int64_t columns) {
    return cells(array, a.group, rows, columns);
  }
  // (..., Hkv, keys, j)
  Cells key_cells(const Array& array, int64_t columns) { return cells(array, 1, keys, columns); }

  bool has_leading_axes_of_query(const Array& array) const {
    for (int axis = -std::max(array.axes(), query.axes()); axis < -3; ++axis)
      if (array.length(axis) != query.length(axis)) return false;
    return true;
  }
  // Whether an array has the shape (..., Hq, i, j) without repeated axes.
  bool is_result(const Array& array, int64_t i, int64_t j) const {
    return array.axes() == query.axes() && has_leading_axes_of_query(array) &&
           array.length(-3) == query.length(-3) && array.length(-2) == i && array.length(-1) == j;
  }

 private:
  Cells cells(const Array& array, int64_t group, int64_t rows, int64_t columns) {
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
};

// Packed rows: arrays of (total, heads, size).
struct Packed : Call {
  const Array query_starts, key_starts;

  explicit Packed(PyObject* const* args, bool computed = true)
      : Call(args + packed::QUERY, args + packed::SLOPES, computed),
        query_starts(args[packed::STARTS]), key_starts(args[packed::KEY_STARTS]) {
    need(query_starts && key_starts, "an array is missing");
    need(query.axes() == 3 && key.axes() == 3, "packed rows are (total, heads, size)");
    heads(query.length(-2), key.length(-2));
    need(is_like(key, key, a.size) && is_like(value, key, a.value_size),
         "query, key and value do not fit");
    need(is_like(out, query, a.value_size), "out does not fit");
    need(!lse || (lse.type() == Type::float64 && is_like(lse, query, 1)),
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
    a.offset = per_row(args[packed::OFFSET], -FURTHEST, FURTHEST);
    window_and_scale(args + packed::LEFT);
  }

  // Whether an array has the shape (total, heads, size), with the total and the heads of `other`.
  static bool is_like(const Array& array, const Array& other, int64_t size) {
    return array.axes() == 3 && array.length(-3) == other.length(-3) &&
           array.length(-2) == other.length(-2) && array.length(-1) == size;
  }
  Cells query_cells(const Array& array) { return cells(array, query_starts, a.group); }
  Cells key_cells(const Array& array) { return cells(array, key_starts, 1); }

 private:
  // Reads the lengths of the sequences.
  const int64_t* lengths(const Array& given, int64_t total) {
    need(given.is(Type::integer, a.rows + 1), "starts are not int64");
    auto* first = static_cast<const int64_t*>(given.data());
    std::vector<int64_t> found(static_cast<size_t>(a.rows));
    for (size_t b = 0; b < found.size(); ++b) {
      need(first[b] >= 0 && first[b] <= first[b + 1] && first[b + 1] <= total, "starts are wrong");
      found[b] = first[b + 1] - first[b];
    }
    return keep(std::move(found));
  }
  Cells cells(const Array& array, const Array& at, int64_t group) {
    Cells c;
    if (!array) return c;
    c.data = array.data();
    c.type = array.type();
    std::vector<int64_t> rows(static_cast<size_t>(a.rows));
    for (size_t b = 0; b < rows.size(); ++b)
      rows[b] = static_cast<const int64_t*>(at.data())[b] * array.step(-3);
    c.rows = keep(std::move(rows));
    c.head = array.step(-2) * group;
    c.group = group == a.group ? array.step(-2) : 0;
    c.i = array.step(-3);
    c.j = array.step(-1);
    return c;
  }
};

// The arguments of a backward pass that a forward call does not take. Batches and packed rows have
// these arguments in common.
struct GradientArrays {
  const double most;
  const Array upstream, query, key, value;
  const Array slopes, sinks, unsound;  // (rows, Hq), (rows, Hq, n), (rows, Hkv)

  GradientArrays(const Call& call, PyObject* const* args, PyObject* const* per_row)
      : most(real(args[0])), upstream(args[1]), query(args[2], true), key(args[3], true),
        value(args[4], true), slopes(per_row[0], true), sinks(per_row[1], true),
        unsound(per_row[2], true) {
    need(call.lse && upstream && query && key && value && unsound, "an array is missing");
    need(call.a.value_size <= MAX_SIZE, "value must have a size of at most MAX_SIZE");
    need(is_working_float(upstream.type()), "the gradient of out must be float16, bfloat16 or float32");
    need_contiguous_rows({&upstream, &query, &key, &value});
    for (const Array* array : {&query, &key, &value})
      need(array->type() == Type::float32, "gradients are not float32");
  }

  // Reads all arguments except the gradients of query, key, value and bias.
  Gradient begin(const Attention& a) const {
    int64_t heads = a.kv_heads * a.group;
    auto numbers = [&](const Array& array, Type type, int64_t each) {
      need(array.is(type, a.rows * each), "sums per row do not fit");
      return array.data();
    };
    Gradient g;
    g.most = most;
    if (a.slopes) g.slopes = static_cast<double*>(numbers(slopes, Type::float64, heads));
    if (a.num_sinks)
      g.sinks = static_cast<double*>(numbers(sinks, Type::float64, heads * a.num_sinks));
    g.unsound = static_cast<bool*>(numbers(unsound, Type::boolean, a.kv_heads));
    return g;
  }
};

}  // namespace

PyObject* attend(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, batch::COUNT + 1, [&] {
    const Variant& variant = variant_of(args[batch::VARIANT]);
    int threads = number_of_threads(args[batch::THREADS]);
    Batch call(args);
    const Array weights(args[batch::COUNT], true);
    if (weights) {
      need(weights.type() == Type::float32 && call.is_result(weights, call.length, call.keys),
           "weights are not float32 of (..., heads, length, keys)");
      need_contiguous_rows({&weights});
      call.a.weights = call.query_cells(weights, call.length, call.keys);
    }
    if (!call.empty()) {
      Unlocked unlocked;
      variant.attend(call.a, threads);
    }
    return none();
  });
}

PyObject* attend_packed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, packed::COUNT, [&] {
    const Variant& variant = variant_of(args[packed::VARIANT]);
    int threads = number_of_threads(args[packed::THREADS]);
    Packed call(args);
    if (!call.empty()) {
      Unlocked unlocked;
      variant.attend(call.a, threads);
    }
    return none();
  });
}

PyObject* summarize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, batch::COUNT + 3, [&] {
    const Variant& variant = variant_of(args[batch::VARIANT]);
    int threads = number_of_threads(args[batch::THREADS]);
    Batch call(args);
    Attention& a = call.a;
    PyObject* const* more = args + batch::COUNT;
    const Array indices(more[0], true), weights(more[1], true), received(more[2], true);
    need(call.lse && indices && weights && received, "an array is missing");
    a.top_k = indices.length(-1);
    need(a.top_k >= 1, "top_k must be at least 1");
    need(indices.type() == Type::integer && weights.type() == Type::float32 &&
             received.type() == Type::float64,
         "the summary must be int64, float32 and float64");
    need(call.is_result(indices, call.length, a.top_k) &&
             call.is_result(weights, call.length, a.top_k) &&
             call.is_result(received, 1, call.keys),
         "the shapes of the summary do not fit");
    need_contiguous_rows({&indices, &weights});
    a.top_indices = call.query_cells(indices, call.length, a.top_k);
    a.top_weights = call.query_cells(weights, call.length, a.top_k);
    a.received = call.query_cells(received, 1, call.keys);
    if (!call.empty()) {
      Unlocked unlocked;
      variant.summarize(a, threads);
    }
    return none();
  });
}

PyObject* differentiate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, batch::COUNT + 9, [&] {
    const Variant& variant = variant_of(args[batch::VARIANT]);
    int threads = number_of_threads(args[batch::THREADS]);
    Batch call(args, false);
    const Attention& a = call.a;
    PyObject* const* more = args + batch::COUNT;
    const GradientArrays of(call, more, more + 6);
    const Array bias(more[5], true);
    auto fits = [&](const Array& array, int64_t heads, int64_t rows, int64_t columns) {
      return call.has_leading_axes_of_query(array) && array.length(-3) == heads &&
             array.length(-2) == rows && array.length(-1) == columns;
    };
    int64_t heads = a.kv_heads * a.group;
    need(of.upstream.length(-3) == heads && of.upstream.length(-2) == call.length &&
             of.upstream.length(-1) == a.value_size && fits(of.query, heads, call.length, a.size) &&
             fits(of.key, a.kv_heads, call.keys, a.size) &&
             fits(of.value, a.kv_heads, call.keys, a.value_size),
         "gradients do not fit");
    need(!bias == !call.bias && (!bias || bias.type() == Type::float32),
         "the gradient of bias is not float32");
    if (bias) need_contiguous_rows({&bias});
    Gradient g = of.begin(a);
    g.upstream = call.query_cells(of.upstream, call.length, a.value_size);
    g.query = call.query_cells(of.query, call.length, a.size);
    g.key = call.key_cells(of.key, a.size);
    g.value = call.key_cells(of.value, a.value_size);
    g.bias = call.query_cells(bias, call.length, call.keys);
    if (!call.empty()) {
      Unlocked unlocked;
      variant.differentiate(a, g, threads);
    }
    return none();
  });
}

PyObject* differentiate_packed(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return guarded(count, packed::COUNT + 8, [&] {
    const Variant& variant = variant_of(args[packed::VARIANT]);
    int threads = number_of_threads(args[packed::THREADS]);
    Packed call(args, false);
    const Attention& a = call.a;
    PyObject* const* more = args + packed::COUNT;
    const GradientArrays of(call, more, more + 5);
    need(call.is_like(of.upstream, call.query, a.value_size) &&
             call.is_like(of.query, call.query, a.size) && call.is_like(of.key, call.key, a.size) &&
             call.is_like(of.value, call.key, a.value_size),
         "gradients do not fit");
    Gradient g = of.begin(a);
    g.upstream = call.query_cells(of.upstream);
    g.query = call.query_cells(of.query);
    g.key = call.key_cells(of.key);
    g.value = call.key_cells(of.value);
    if (!call.empty()) {
      Unlocked unlocked;
      variant.differentiate(a, g, threads);
    }
    return none();
  });
}

}  // namespace qkv
