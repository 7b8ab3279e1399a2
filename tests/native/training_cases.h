// Calls of the functions for training, except attention.
#pragma once

#include "case.h"

namespace qkv {

// All arrays are float32 (targets: int64). Rows are contiguous, but there may be gaps between rows.
// The fields of each function are in the order of `run`.
struct TrainingCase : Case {
  std::string which;
  std::vector<int64_t> sizes;
  std::vector<double> settings;
  std::vector<Block> given, found, expected;
  double allowed;

  TrainingCase(File& file, bool shifted) {
    which = file.text();
    sizes.resize(size_t(file.whole()));
    for (int64_t& size : sizes) size = file.whole();
    settings.resize(size_t(file.whole()));
    for (double& setting : settings) setting = file.real();
    given = std::vector<Block>(size_t(file.whole()));
    for (Block& block : given) block.read(file, shifted ? 8 : 0);
    found = std::vector<Block>(size_t(file.whole()));
    expected = std::vector<Block>(found.size());
    for (Block& block : found) block.read(file, shifted ? 4 : 0);
    for (Block& block : expected) block.read(file);
    allowed = file.real();
  }
  std::vector<Block*> inputs() override { return pointers(given); }
  std::vector<Block*> outputs() override { return pointers(found); }

  static std::vector<Block*> pointers(std::vector<Block>& blocks) {
    std::vector<Block*> all;
    for (Block& block : blocks) all.push_back(&block);
    return all;
  }
  const float* in(size_t k) const { return given[k].count ? given[k].as<float>() : nullptr; }
  float* out(size_t k) const {
    return found[k].count ? reinterpret_cast<float*>(found[k].data) : nullptr;
  }
  float setting(size_t k) const { return float(settings[k]); }

  void run(const Where& where) override {
    const Variant& variant = where.variant;
    if (which == "outer") {
      Outer p;
      p.depth = sizes[0];
      p.rows = sizes[1];
      p.columns = sizes[2];
      p.left_step = sizes[3];
      p.right_step = sizes[4];
      p.left = in(0);
      p.right = in(1);
      p.y = out(0);
      p.y_step = p.columns;
      p.left_sums = out(1);
      p.right_sums = out(2);
      variant.outer(p, where.threads);
    } else if (which == "map") {
      variant.map(Activation(sizes[1]), in(0), in(1), out(0), sizes[0], where.threads);
    } else if (which == "norm_grad") {
      NormGrad p;
      p.rows = sizes[0];
      p.size = sizes[1];
      p.x_step = sizes[2];
      p.upstream_step = sizes[3];
      p.centred = sizes[4] != 0;
      p.x = in(0);
      p.weight = in(1);
      p.scale = in(2);
      p.upstream = in(3);
      p.y = out(0);
      p.weight_sums = out(1);
      p.bias_sums = out(2);
      variant.norm_grad(p, where.threads);
    } else if (which == "cross_entropy") {
      CrossEntropy p;
      p.rows = sizes[0];
      p.size = sizes[1];
      p.step = sizes[2];
      p.logits = in(0);
      p.targets = given[1].as<int64_t>();
      p.weights = in(2);
      p.losses = out(0);
      p.grad = out(1);
      variant.cross_entropy(p, where.threads);
    } else if (which == "adamw") {
      AdamW p;
      p.count = sizes[0];
      p.gradient = in(0);
      p.decays = in(1);
      p.parameters = out(0);
      p.mean = out(1);
      p.square = out(2);
      float* to[] = {&p.decay,    &p.rate,        &p.factor,     &p.eps,  &p.keep_mean,
                     &p.add_mean, &p.keep_square, &p.add_square, &p.size, &p.root};
      for (size_t k = 0; k < std::size(to); ++k) *to[k] = setting(k);
      variant.adamw(p, where.threads);
    } else {
      double total = variant.squares(in(0), sizes[0], where.threads);
      *out(0) = float(total);
    }
    for (size_t k = 0; k < found.size(); ++k)
      for (int64_t at = 0; at < expected[k].count / 8; ++at) {
        double x = number(found[k].data + at * 4, Type::float32), y = expected[k].as<double>()[at];
        if (agrees(x, y, allowed, NEAR)) continue;
        return where.fail(said("result %ld at %ld is %.9g and not %.9g (allowed %.2g)", long(k),
                               long(at), x, y, allowed));
      }
  }
};

}  // namespace qkv
