// Calls of attention, and of its gradient.
#pragma once

#include "case.h"

namespace qkv {

struct AttentionCase : Case {
  Attention a;
  Block length, keys, query_length, key_length, offset, slopes, sinks;
  Array query, key, value, mask, bias;
  Array out, lse, weights, top_indices, top_weights, received;
  double out_allowed, weight_allowed, lse_relative, lse_allowed;
  // ordered by row, head and i, and then by column (out), nothing (lse) or key (weights)
  Block expected_out, certain_out, expected_lse, certain_lse, expected_weights, visible;

  AttentionCase(File& file, bool shifted) {
    for (int64_t* x : {&a.rows, &a.kv_heads, &a.group, &a.size, &a.value_size, &a.left, &a.right,
                       &a.num_sinks, &a.top_k})
      *x = file.whole();
    for (double* x : {&a.softcap, &a.scale, &out_allowed, &weight_allowed, &lse_relative, &lse_allowed})
      *x = file.real();
    for (Block* x : {&length, &keys, &query_length, &key_length, &offset, &slopes, &sinks})
      x->read(file);
    a.length = length.as<int64_t>();
    a.keys = keys.as<int64_t>();
    a.query_length = query_length.as<int64_t>();
    a.key_length = key_length.as<int64_t>();
    a.offset = offset.as<int64_t>();
    if (slopes.count) a.slopes = slopes.as<float>();
    if (a.num_sinks) a.sinks = sinks.as<float>();
    Array* arrays[] = {&query, &key, &value, &mask, &bias, &out, &lse, &weights,
                       &top_indices, &top_weights, &received};
    Cells* cells[] = {&a.query, &a.key, &a.value, &a.mask, &a.bias, &a.out, &a.lse, &a.weights,
                      &a.top_indices, &a.top_weights, &a.received};
    for (size_t k = 0; k < std::size(arrays); ++k) {
      arrays[k]->read(file, shifted);
      *cells[k] = arrays[k]->cells;
    }
    for (Block* x : {&expected_out, &certain_out, &expected_lse, &certain_lse, &expected_weights, &visible})
      x->read(file);
  }

  std::vector<Block*> inputs() override {
    return {&length, &keys, &query_length, &key_length, &offset, &slopes, &sinks, &query.block,
            &key.block, &value.block, &mask.block, &bias.block};
  }
  std::vector<Block*> outputs() override {
    return {&out.block, &lse.block, &weights.block, &top_indices.block, &top_weights.block,
            &received.block};
  }

  void run(const Where& where) override {
    (a.top_k ? where.variant.summarize : where.variant.attend)(a, where.threads);
    compare(where);
  }

  void compare(const Where& where) {
    std::vector<uint8_t> mine(size_t(out.block.count), 0);  // marks the bytes of out's elements
    int64_t column = 0, place = 0, cell = 0;
    bool sound = true;
    int said_already = failures;
    for (int64_t row = 0; row < a.rows; ++row)
      for (int64_t head = 0; head < a.kv_heads; ++head)
        for (int64_t group = 0; group < a.group; ++group) {
          std::vector<double> total(size_t(a.keys[row]), 0);
          for (int64_t i = 0; i < a.length[row]; ++i, ++place) {
            auto at = [&](const char* what) {
              return said("%s at row %ld, head %ld, query %ld", what, long(row),
                          long(head * a.group + group), long(i));
            };
            for (int64_t c = 0; c < a.value_size; ++c, ++column) {
              const uint8_t* from = out.at(row, head, group, i, c);
              std::memset(mine.data() + (from - out.block.data), 1, size_t(bytes_of(a.out.type)));
              double x = number(from, a.out.type), y = expected_out.as<double>()[column];
              if (failures - said_already < 3 && !agrees(x, y, out_allowed, certain_out.data[column]))
                where.fail(at("out") + said(", column %ld is %.9g and not %.9g (allowed %.2g)", long(c),
                                            x, y, out_allowed));
            }
            double y = expected_lse.as<double>()[place];
            double x = lse.given ? number(lse.at(row, head, group, i, 0), Type::float64) : y;
            double allowed = lse_relative * std::fmax(1, std::fabs(y)) + lse_allowed;
            int certain = certain_lse.data[place];
            if (failures - said_already < 3 && !agrees(x, y, allowed, certain))
              where.fail(at("lse") + said(" is %.9g and not %.9g (allowed %.2g)", x, y, allowed));
            sound = sound && certain == NEAR && !std::isnan(y);
            if (!expected_weights.count) continue;
            const double* whole = expected_weights.as<double>() + cell;
            const uint8_t* seen = visible.data + cell;
            cell += a.keys[row];
            if (weights.given)
              for (int64_t j = 0; j < a.keys[row]; ++j) {
                double w = number(weights.at(row, head, group, i, j), Type::float32);
                bool free = std::isnan(y) && !seen[j];  // a masked key of a NaN row
                double v = std::isnan(y) ? NAN : whole[j];
                if (!free && failures - said_already < 3 &&
                    !agrees(w, v, seen[j] ? weight_allowed : 0, certain))
                  where.fail(at("weight") + said(", key %ld is %.9g and not %.9g", long(j), w, v));
              }
            if (a.top_k && certain == NEAR && !std::isnan(y)) {
              std::string wrong = ranks(row, head, group, i, whole, seen);
              if (!wrong.empty()) where.fail(at("summary") + ": " + wrong);
              for (int64_t j = 0; j < a.keys[row]; ++j) total[size_t(j)] += whole[j];
            }
          }
          if (a.top_k && sound)
            for (int64_t j = 0; j < a.keys[row]; ++j) {
              double x = number(received.at(row, head, group, 0, j), Type::float64);
              double allowed = weight_allowed * double(a.length[row] + 1);
              if (failures - said_already < 3 && !agrees(x, total[size_t(j)], allowed, NEAR))
                where.fail(said("received at row %ld, head %ld, key %ld is %.9g and not %.9g", long(row),
                                long(head * a.group + group), long(j), x, total[size_t(j)]));
            }
        }
    for (size_t k = 0; k < mine.size(); ++k)
      if (!mine[k] && out.block.data[k] != uint8_t(out.block.original[k]))
        return where.fail("something beside out was written to");
  }

  // Returns the error in the largest weights of one query, or an empty string.
  std::string ranks(int64_t row, int64_t head, int64_t group, int64_t i, const double* whole,
                    const uint8_t* seen) const {
    std::vector<bool> listed(size_t(a.keys[row]), false);
    int64_t count = 0, last = -1;
    double least = INFINITY, last_weight = INFINITY;
    for (int64_t j = 0; j < a.keys[row]; ++j) count += seen[j] != 0;
    if (count > a.top_k) count = a.top_k;
    for (int64_t k = 0; k < a.top_k; ++k) {
      int64_t j = int64_t(number(top_indices.at(row, head, group, i, k), Type::integer));
      double w = number(top_weights.at(row, head, group, i, k), Type::float32);
      if (k >= count) {
        if (j != -1 || w != 0) return said("rank %ld is not empty", long(k));
        continue;
      }
      if (j < 0 || j >= a.keys[row] || !seen[j]) return said("key %ld is listed and not visible", long(j));
      if (listed[size_t(j)]) return said("key %ld is listed twice", long(j));
      listed[size_t(j)] = true;
      if (!(std::fabs(w - whole[j]) <= weight_allowed))
        return said("key %ld has weight %.9g and not %.9g", long(j), w, whole[j]);
      if (w > last_weight || (w == last_weight && j < last)) return "the order is wrong";
      last = j;
      last_weight = w;
      least = std::fmin(least, whole[j]);
    }
    for (int64_t j = 0; j < a.keys[row]; ++j)
      if (seen[j] && !listed[size_t(j)] && whole[j] > least + 2 * weight_allowed)
        return said("key %ld has weight %.9g and is not listed", long(j), whole[j]);
    return "";
  }
};

// A call of the backward pass. `out` and `lse`, the results of the forward pass, are inputs here.
// Gradients are contiguous.
struct GradientCase : AttentionCase {
  Gradient g;
  Array upstream, query_sums, key_sums, value_sums, bias_sums;
  Block slope_sums, sink_sums, unsound;
  Block expected[6];
  double allowed[6];

  GradientCase(File& file, bool shifted) : AttentionCase(file, shifted) {
    Array* arrays[] = {&upstream, &query_sums, &key_sums, &value_sums, &bias_sums};
    Cells* cells[] = {&g.upstream, &g.query, &g.key, &g.value, &g.bias};
    for (size_t k = 0; k < std::size(arrays); ++k) {
      arrays[k]->read(file, shifted);
      *cells[k] = arrays[k]->cells;
    }
    for (Block* x : {&slope_sums, &sink_sums, &unsound}) x->read(file);
    g.slopes = reinterpret_cast<double*>(slope_sums.data);
    g.sinks = reinterpret_cast<double*>(sink_sums.data);
    g.unsound = reinterpret_cast<bool*>(unsound.data);
    g.most = file.real();
    for (int k = 0; k < 6; ++k) {
      expected[k].read(file);
      allowed[k] = file.real();
    }
  }

  std::vector<Block*> inputs() override {
    std::vector<Block*> all = AttentionCase::inputs();
    for (Block* x : {&out.block, &lse.block, &upstream.block}) all.push_back(x);
    return all;
  }
  std::vector<Block*> outputs() override {
    return {&query_sums.block, &key_sums.block, &value_sums.block, &bias_sums.block,
            &slope_sums, &sink_sums, &unsound};
  }

  void run(const Where& where) override {
    where.variant.differentiate(a, g, where.threads);
    const char* names[] = {"query", "key", "value", "bias", "slopes", "sinks"};
    for (int k = 0; k < 6; ++k) {
      Type type = k < 4 ? Type::float32 : Type::float64;
      const Block& block = *outputs()[size_t(k)];
      int64_t count = expected[k].count / 8;
      if (block.count != count * bytes_of(type)) where.fail(said("%s has another size", names[k]));
      for (int64_t at = 0; at < count; ++at) {
        double x = number(block.data + at * bytes_of(type), type);
        double y = expected[k].as<double>()[at];
        // tiles multiply weights that were rounded to bfloat16, whose relative error is up to 2**-9
        bool rounded = a.query.type == Type::bfloat16 && std::strcmp(where.variant.bfloat16, "tiles") == 0;
        if (agrees(x, y, allowed[k] * (rounded ? 800 : 1), NEAR)) continue;
        where.fail(said("the gradient of %s at %ld is %.9g and not %.9g (allowed %.2g)", names[k],
                        long(at), x, y, allowed[k]));
        break;
      }
    }
    for (int64_t head = 0; head < a.rows * a.kv_heads; ++head)
      if (g.unsound[head]) where.fail(said("head %ld counts as unsound", long(head)));
  }
};

}  // namespace qkv
