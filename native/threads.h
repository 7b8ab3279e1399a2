// The pool: threads made on first use, shared by all callers, made anew in a child process; and how a
// call that takes long is ended.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace qkv {

// Call `work(worker)` on the calling thread (worker 0) and, as far as they are free, on up to
// `threads - 1` threads of the pool (workers 1, 2, ...). `work` must take what there is to do from
// a shared counter: any number of workers, down to the caller alone, must finish it. Returns when
// every worker that began is done; after an exception the others stop too, and the first one is
// thrown again here.
void on_threads(int threads, const std::function<void(int worker)>& work);

// Thrown by `worked` in every worker once the work is to end.
struct Stopped : std::exception {};

// To be called by workers between pieces of work, with the multiply-adds (roughly) since the last
// call: no piece may take longer than some 10 ms. Every few million it looks whether to go on.
void worked(int64_t operations);

constexpr int64_t EXPONENTIAL = 16;  // multiply-adds that one takes, roughly

// The same by whoever waits for another worker.
void go_on_waiting();

// Whether what this thread calls is to be stopped, for as long as this lives: asked about every 50 ms,
// on the calling thread.
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
