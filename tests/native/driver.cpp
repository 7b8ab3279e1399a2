// Runs case files on every variant that this machine can run. This program is for sanitizers and
// emulators, for which a Python process is too heavy. writer.py writes the files, with the expected
// results.
//
//   driver FILE...    one line for each failure; exit code 1 if there was any
//
// Every array has its own heap block, which is exactly as long as the part that may be read, so an
// address sanitizer detects a read beyond this part. Built with QKV_IMPATIENT, each case runs once
// more on each variant, with a request to stop early.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "attention_cases.h"
#include "dense_cases.h"
#include "threads.h"
#include "training_cases.h"

namespace qkv {

// `variants` leaves out AVX-512 without BF16 if AVX-512 with BF16 runs, and the model of the tiles; the driver
// runs all of them.
#if defined(QKV_HAS_AVX512)
namespace avx512 { extern const Variant variant; }
#endif
#if defined(QKV_HAS_AMXMODEL)
namespace amxmodel { extern const Variant variant; }
#endif

namespace {

std::vector<const Variant*> all_variants() {
  std::vector<const Variant*> found = variants();
  [[maybe_unused]] auto runs = [&](const char* bfloat16) {
    return std::any_of(found.begin(), found.end(),
                       [&](const Variant* one) { return std::strcmp(one->bfloat16, bfloat16) == 0; });
  };
#if defined(QKV_HAS_AVX512)
  if (runs("dot products")) found.push_back(&avx512::variant);
#endif
#if defined(QKV_HAS_AMXMODEL)
  found.push_back(&amxmodel::variant);
#endif
  return found;
}

std::unique_ptr<Case> next_case(File& file, int number) {
  int64_t kind = file.whole();
  std::string name = file.text();
  std::unique_ptr<Case> found;
  bool shifted = number % 2;
  if (kind == 0) found.reset(new AttentionCase(file, shifted));
  if (kind == 1) found.reset(new LinearCase(file, shifted));
  if (kind == 2) found.reset(new GradientCase(file, shifted));
  if (kind == 3) found.reset(new TrainingCase(file, shifted));
  if (!found) throw std::string("holds a case of no known kind");
  found->name = name;
  return found;
}

int ended = 0;  // the number of runs that were ended early

// Requests a stop after `left` checks.
struct Ending : StopRequest {
  int left;
  explicit Ending(int left) : left(left) {}
  bool made() override { return --left < 0; }
};

[[maybe_unused]] void run_and_end(Case& asked, const Where& where) {
  static int runs = 0;
  Ending ending(++runs % 37);
  try {
    asked.run(where);
  } catch (const Stopped&) {
    ++ended;
  }
}

void run_on(const Variant& variant, Case& asked) {
  std::vector<std::vector<uint8_t>> first;
  for (int threads : {1, 2, 3}) {
    Where where{asked.name, variant, threads};
    for (Block* block : asked.outputs()) block->reset();
    try {
#if defined(QKV_IMPATIENT)
      if (threads == 2) run_and_end(asked, where);
      for (Block* block : asked.outputs()) block->reset();
#endif
      asked.run(where);
    } catch (const std::exception& error) {
      where.fail(error.what());
    }
    for (Block* block : asked.inputs())
      if (!block->unchanged()) {
        where.fail("an input was written to");
        block->reset();
      }
    size_t k = 0;
    for (Block* block : asked.outputs()) {
      if (threads == 1) {
        first.emplace_back(block->data, block->data + block->count);
      } else if (block->count && std::memcmp(first[k].data(), block->data, size_t(block->count)) != 0) {
        where.fail("the bits are not those of one thread");
        break;
      }
      ++k;
    }
  }
}

}  // namespace
}  // namespace qkv

int main(int count, char** paths) {
  int cases = 0;
  std::string names;
  auto variants = qkv::all_variants();
  for (const qkv::Variant* variant : variants) names += " " + qkv::name_of(*variant);
  for (int k = 1; k < count; ++k) {
    try {
      qkv::File file(paths[k]);
      while (file.more()) {
        std::unique_ptr<qkv::Case> asked = qkv::next_case(file, cases++);
        for (const qkv::Variant* variant : variants) qkv::run_on(*variant, *asked);
      }
    } catch (const std::string& reason) {
      std::printf("%s %s\n", paths[k], reason.c_str());
      ++qkv::failures;
    }
  }
  if (qkv::ended) std::printf("%d runs ended early\n", qkv::ended);
  std::printf("%d cases on%s: %d failures\n", cases, names.c_str(), qkv::failures);
  return qkv::failures ? 1 : 0;
}
