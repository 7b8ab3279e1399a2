// Calls of linear layers, with weights as floats, in int8 or in blocks.
#pragma once

#include "case.h"

namespace qkv {

struct LinearCase : Case {
  Linear l;
  Block weight, x, bias, gate, residual, y, expected, allowed, more, scales;
  int64_t in_step, out_step, kind;  // the kind of blocks, or -1

  LinearCase(File& file, bool shifted) {
    for (int64_t* n : {&l.rows, &l.in, &l.out, &in_step, &out_step, &l.x_step, &l.gate_step,
                       &l.residual_step, &l.y_step, &kind})
      *n = file.whole();
    l.type = l.y_type = Type(file.whole());
    l.activation = Activation(file.whole());
    int64_t shift = shifted ? bytes_of(l.type) : 0;
    for (Block* block : {&weight, &x, &bias, &gate, &residual, &y}) block->read(file, shift);
    expected.read(file);
    allowed.read(file);
    more.read(file, 0);
    scales.read(file, 0);
    l.packed_type = more.count ? Type::int8 : scales.count ? Type::one_digit : l.type;
    l.x = x.data;
    if (bias.count) l.bias = bias.as<float>();
    if (gate.count) l.gate = gate.data;
    if (residual.count) l.residual = residual.data;
    l.y = y.data;
  }
  std::vector<Block*> inputs() override { return {&weight, &x, &bias, &gate, &residual, &more, &scales}; }
  std::vector<Block*> outputs() override { return {&y}; }

  void run(const Where& where) override {
    if (!where.variant.linear) return;
    size_t bytes = kind < 0 ? where.variant.packed_bytes(l.in, l.out, l.packed_type)
                            : where.variant.block_bytes(l.in, l.out, kind);
    std::unique_ptr<void, void (*)(void*)> packed(
        ::operator new(bytes, std::align_val_t(64)),
        [](void* memory) { ::operator delete(memory, std::align_val_t(64)); });
    std::memset(packed.get(), 0xff, bytes);  // NaN
    if (kind >= 0 && int64_t(bytes) != weight.count) return where.fail("blocks are not of the size that they need");
    if (kind >= 0)
      std::memcpy(packed.get(), weight.data, bytes);
    else if (scales.count)
      where.variant.pack_int8(weight.as<int8_t>(), more.count ? more.as<int8_t>() : nullptr, in_step, out_step,
                              scales.as<float>(), l.in, l.out, packed.get(), where.threads);
    else
      where.variant.pack(weight.data, in_step, out_step, l.in, l.out, l.type, packed.get(), where.threads);
    l.packed = packed.get();
    if (kind >= 0) where.variant.multiply_blocks(l, kind, where.threads);
    else where.variant.linear(l, where.threads);

    int64_t size = bytes_of(l.type);
    std::vector<uint8_t> mine(size_t(y.count), 0);
    for (int64_t r = 0, k = 0; r < l.rows; ++r)
      for (int64_t c = 0; c < l.out; ++c, ++k) {
        int64_t at = (r * l.y_step + c) * size;
        std::memset(mine.data() + at, 1, size_t(size));
        double found = number(y.data + at, l.type), wanted = expected.as<double>()[k];
        if (!agrees(found, wanted, allowed.as<double>()[k], NEAR))
          return where.fail(said("y at row %ld, column %ld is %.9g and not %.9g (allowed %.2g)", long(r),
                                 long(c), found, wanted, allowed.as<double>()[k]));
      }
    for (size_t k = 0; k < mine.size(); ++k)
      if (!mine[k] && y.data[k] != uint8_t(y.original[k]))
        return where.fail("something beside y was written to");
  }
};

}  // namespace qkv
