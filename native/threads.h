// The pool: threads made on first use, shared by all callers, made anew in a child process.
#pragma once

#include <functional>

namespace qkv {

// Call `work(worker)` on the calling thread (worker 0) and, as far as they are free, on up to
// `threads - 1` threads of the pool (workers 1, 2, ...). `work` must take what there is to do from
// a shared counter: any number of workers, down to the caller alone, must finish it. Returns when
// every worker that began is done; the first exception is thrown again here.
void on_threads(int threads, const std::function<void(int worker)>& work);

// For whoever waits for another thread and has done so for a while.
void let_others_run();

}  // namespace qkv
