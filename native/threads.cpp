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
constexpr auto PATIENCE = std::chrono::microseconds(60);  // waiting awake, before going to sleep
#if defined(QKV_IMPATIENT)  // tests: asks whenever it may
constexpr auto ASKING = std::chrono::milliseconds(0);
constexpr int64_t SLICE = 0;
#else
constexpr auto ASKING = std::chrono::milliseconds(50);  // between two questions whether to end
constexpr int64_t SLICE = 1 << 22;                      // multiply-adds between two looks
#endif

// The cores that a thread may run on: workers take over those of whoever called.
struct Cores {
#if defined(__linux__)
  cpu_set_t set;
  Cores() {
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  }
  // All of the caller's but the one that it runs on: a sleeper is woken beside its waker otherwise,
  // and the two share a core for as long as a short call takes.
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

// The usual arithmetic for as long as it lives: a caller may have made its own thread take subnormal
// numbers for 0, and results must not depend on who computes them.
class UsualArithmetic {
#if defined(__SSE__)
 public:
  UsualArithmetic() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~UsualArithmetic() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

thread_local StopRequest* stop_request = nullptr;

// What a thread works for, for as long as it does: nothing is asked, and no clock looked at, in what
// is done within a slice.
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
  int wanted;  // how many more may join
  const Cores cores{};
  int joined = 1;  // the caller is worker 0
  std::atomic<int> active{0};
  std::atomic<bool> stopped{false};
  std::exception_ptr error{};
  Job* next = nullptr;
};

// True as soon as `ready` is; false if it is not for as long as it pays to stay awake.
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

// Never destroyed: its threads may still sleep in it when the process ends.
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
  Job* jobs_ = nullptr;       // those that workers may join, the newest first
  std::atomic<int> open_{0};  // how many those are
  int size_ = 0, asleep_ = 0;

  bool start_worker() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
    bool started = true;
    try {
      std::thread([this] { serve(); }).detach();
    } catch (const std::exception&) {
      started = false;  // no thread, or no memory for one: the work is done by fewer
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
        // the caller looks at `active` under the lock before it leaves, and the job with it
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

  void close(Job& job) {  // nobody joins any more
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
  // A child process has none of its parent's threads and perhaps a locked lock: it starts anew.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr, std::memory_order_relaxed); });
  (void)registered;
  Pool* made = new Pool;
  if (the_pool.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
  delete made;  // another caller was quicker
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
