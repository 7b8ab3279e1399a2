#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace qkv {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto PATIENCE = std::chrono::microseconds(60);  // busy waiting before sleeping
#if defined(QKV_IMPATIENT)  // in tests, check for stop requests as often as possible
constexpr auto ASKING = std::chrono::milliseconds(0);
constexpr int64_t SLICE = 0;
#else
constexpr auto ASKING = std::chrono::milliseconds(50);  // the time between two checks whether to stop
constexpr int64_t SLICE = 1 << 22;                      // the multiply-adds between two looks at the clock
#endif

// The cores on which a thread may run. Workers run on the cores of the caller.
struct Cores {
#if defined(__linux__)
  cpu_set_t set;
  Cores() {
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  }
  // All cores of the caller except the core that it runs on. Otherwise a woken thread could start
  // on the caller's core, and both would share this core during a short call.
  void adopt(const Cores& caller) {
    cpu_set_t wanted = caller.set;
    if (caller.core >= 0 && CPU_COUNT(&wanted) > 1) CPU_CLR(size_t(caller.core), &wanted);
    if (CPU_EQUAL(&set, &wanted) || CPU_COUNT(&wanted) == 0) return;
    if (sched_setaffinity(0, sizeof wanted, &wanted) == 0) set = wanted;
  }
  int core = sched_getcpu();
#else
  void adopt(const Cores&) {}
#endif
};

// As long as this object lives, the thread computes with subnormal numbers. The caller's thread may
// have been set to treat subnormal numbers as 0, and results must not depend on the thread.
class UsualArithmetic {
#if defined(__SSE__)
 public:
  UsualArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  // keeps one flag for the tests: whether an operand was subnormal
  ~UsualArithmetic() { _mm_setcsr(before_ | (_mm_getcsr() & SUBNORMAL)); }

 private:
  static constexpr unsigned SUBNORMAL = 2;
  unsigned before_;
#endif
};

thread_local StopRequest* stop_request = nullptr;

// The call for which a thread works. The thread looks at the clock, and checks whether to stop, only
// between slices of work.
class Turn {
 public:
  Turn(std::atomic<bool>& stopped, StopRequest* request);
  ~Turn();
  Turn(const Turn&) = delete;

  void worked(int64_t operations) {
    if ((left_ -= operations) > 0) return;
    left_ = SLICE;
    look();
  }
  void look() {
    if (!stopped_ && request_) {
      auto now = Clock::now();
      if (next_ == Clock::time_point()) next_ = now + ASKING;
      if (now >= next_) {
        if (request_->made()) stopped_ = true;
        next_ = Clock::now() + ASKING;
      }
    }
    if (stopped_) throw Stopped();
  }

 private:
  std::atomic<bool>& stopped_;
  StopRequest* request_;  // nullptr on threads of the pool
  int64_t left_ = SLICE;
  Clock::time_point next_{};
  Turn* before_;
};

thread_local Turn* turn = nullptr;

Turn::Turn(std::atomic<bool>& stopped, StopRequest* request)
    : stopped_(stopped), request_(request), before_(turn) {
  turn = this;
}
Turn::~Turn() { turn = before_; }

struct Job {
  const std::function<void(int)>& work;
  int wanted;  // the number of workers that may still join
  const Cores cores{};
  int joined = 1;  // the number of workers so far; the caller is worker 0
  std::atomic<int> active{0};
  std::atomic<bool> stopped{false};
  std::exception_ptr error{};
  Job* next = nullptr;
};

// Waits busily; returns true as soon as `ready` returns true, and false after the time `PATIENCE`.
template <class Ready>
bool soon(const Ready& ready) {
  auto end = Clock::now() + PATIENCE;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
#if defined(__x86_64__) || defined(__i386__)
      _mm_pause();
#endif
    }
  } while (Clock::now() < end);
  return ready();
}

// The pool of threads. It is never destroyed, because its threads may still sleep when the process
// ends.
class Pool {
 public:
  void run(int threads, const std::function<void(int)>& work) {
    Job job{work, threads - 1};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (size_ < threads - 1 && start_worker()) ++size_;
      job.next = jobs_;
      jobs_ = &job;
      open_.fetch_add(1, std::memory_order_release);
      for (int i = 0; i < job.wanted && i < asleep_; ++i) wake_.notify_one();
    }
    attempt(job, 0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      close(job);
    }
    soon([&] { return job.active.load(std::memory_order_acquire) == 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    auto done = [&] { return job.active.load() == 0; };
    while (stop_request && !job.stopped && !done_.wait_for(lock, ASKING, done)) {
      lock.unlock();
      bool requested = stop_request->made();
      lock.lock();
      if (requested) fail(job, std::make_exception_ptr(Stopped()));
    }
    done_.wait(lock, done);
    lock.unlock();
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* jobs_ = nullptr;       // jobs that workers may join, the newest first
  std::atomic<int> open_{0};  // the number of jobs in `jobs_`
  int size_ = 0, asleep_ = 0;

  bool start_worker() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // pool threads must not receive signals
    bool started = true;
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {
      started = false;  // if no thread or memory is available, fewer threads do the work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
  }

  void serve() {
    Cores own;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      while (Job* job = jobs_) {
        int worker = job->joined++;
        job->active.fetch_add(1);
        if (--job->wanted == 0) close(*job);
        lock.unlock();
        own.adopt(job->cores);
        attempt(*job, worker);
        lock.lock();
        // the caller checks `active` under the lock before it leaves and destroys the job
        if (job->active.fetch_sub(1) == 1) done_.notify_all();
      }
      lock.unlock();
      soon([this] { return open_.load(std::memory_order_acquire) > 0; });
      lock.lock();
      if (jobs_) continue;
      ++asleep_;
      wake_.wait(lock, [this] { return jobs_ != nullptr; });
      --asleep_;
    }
  }

  void close(Job& job) {  // after this call, no worker can join
    for (Job** at = &jobs_; *at; at = &(*at)->next) {
      if (*at != &job) continue;
      *at = job.next;
      open_.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }

  void attempt(Job& job, int worker) {
    try {
      [[maybe_unused]] UsualArithmetic usual;
      Turn turn(job.stopped, worker ? nullptr : stop_request);
      job.work(worker);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex_);
      fail(job, std::current_exception());
    }
  }

  void fail(Job& job, std::exception_ptr error) {
    if (!job.error) job.error = std::move(error);
    job.stopped = true;
    close(job);
  }
};

std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  Pool* found = the_pool.load(std::memory_order_acquire);
  if (found) return *found;
  // A child process does not have its parent's threads, and the lock may be locked. So make a new pool.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr, std::memory_order_relaxed); });
  (void)registered;
  Pool* made = new Pool;
  if (the_pool.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
  delete made;  // another thread has made the pool first
  return *found;
}

}  // namespace

void on_threads(int threads, const std::function<void(int worker)>& work) {
  if (threads > 1) return pool().run(threads, work);
  [[maybe_unused]] UsualArithmetic usual;
  std::atomic<bool> stopped{false};
  Turn turn(stopped, stop_request);
  work(0);
}

void worked(int64_t operations) { turn->worked(operations); }

void go_on_waiting() {
  turn->look();
  sched_yield();
}

StopRequest::StopRequest() : before_(stop_request) { stop_request = this; }
StopRequest::~StopRequest() { stop_request = before_; }

}  // namespace qkv
