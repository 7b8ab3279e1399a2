// The thread pool: threads are made on first use, shared by all callers, and made again in a child
// process. This file also says how a long call is interrupted.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace qkv {

// Calls `work(worker)` on the calling thread (worker 0) and on up to `threads - 1` free threads of
// the pool (workers 1, 2, ...). `work` must take its tasks from a shared counter, so that any
// number of workers can finish the work, even the caller alone. Returns when every worker has
// finished. After an exception the other workers stop too, and the first exception is thrown again
// here.
void on_threads(int threads, const std::function<void(int worker)>& work);

// `worked` throws this in every worker to end the work.
struct Stopped : std::exception {};

// Workers call this between pieces of work, with the rough number of multiply-adds since the last
// call. A piece may take at most about 10 ms. After every few million multiply-adds, the function
// checks whether to continue.
void worked(int64_t operations);

// The number of threads for attention with `work` multiplications: a small call wakes no thread.
inline int threads_for_attention(double work, int threads) {
  return work < double(1 << 20) ? 1 : threads;
}

// The number of threads for a product of `work` multiply-adds: each has at least ten microseconds.
inline int threads_for_product(double work, int threads) {
  const double most = 1 + work / (1 << 18);
  return most < threads ? int(most) : threads;
}

constexpr int64_t EXPONENTIAL = 16;  // rough number of multiply-adds of one exponential

// Called by a worker that waits for another worker.
void go_on_waiting();

// As long as this object lives, the calling thread asks about every 50 ms whether its calls should
// stop.
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
