// The thread pool, and the interruption of long calls. Threads are made at first use, shared by all
// callers, and made again in a child process.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace qkv {

// Calls `work(worker)` on the calling thread (worker 0) and on up to `threads - 1` free threads of
// the pool (workers 1, 2, ...). `work` must take its tasks from a shared counter, so that any number
// of workers can finish all tasks. Returns when every worker has finished. After an exception, all
// workers stop, and this function throws the first exception again.
void on_threads(int threads, const std::function<void(int worker)>& work);

// The exception that `worked` throws in every worker to end the work.
struct Stopped : std::exception {};

// Checks, after every few million multiply-adds, whether the work should stop. Workers call this
// function between pieces of work of at most about 10 ms, with the rough number of multiply-adds
// since the last call.
void worked(int64_t operations);

// Returns the number of threads for attention with `work` multiplications; 1 for a small call.
inline int threads_for_attention(double work, int threads) {
  return work < double(1 << 20) ? 1 : threads;
}

// Returns the number of threads for a product with `work` multiply-adds, so that each thread works for
// at least ten microseconds.
inline int threads_for_product(double work, int threads) {
  const double most = 1 + work / (1 << 18);
  return most < threads ? int(most) : threads;
}

constexpr int64_t EXPONENTIAL = 16;  // one exponential takes about as long as this number of multiply-adds

// A worker calls this function in a loop while it waits for another worker.
void go_on_waiting();

// While this object exists and the kernel works for the thread that created the object, the kernel
// calls `made` about every 50 ms. If `made` returns true, the kernel stops this work.
class StopRequest {
 public:
  StopRequest();
  virtual ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  virtual bool made() = 0;

 private:
  StopRequest* before_;
};

}  // namespace qkv
