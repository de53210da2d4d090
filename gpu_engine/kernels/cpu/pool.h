// A thread pool whose caller never waits for a worker without a core: the caller works on the chunks
// itself and waits only for workers that have begun one. (A barrier would wait for the next time slice of
// a worker that the kernel has put aside, 4 to 12 ms on a busy machine.)
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define CPU_RELAX() _mm_pause()
#else
#define CPU_RELAX() std::this_thread::yield()
#endif

class Pool {
 public:
  // `threads` counts the caller.
  explicit Pool(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    stopping_ = true;
    open(nullptr, nullptr, 0);
    close();
    for (auto& worker : workers_) worker.join();
  }

  // Runs f(chunk) for all chunks in [0, n); returns when all are done. One caller at a time.
  template <class F>
  void run(int n, const F& f) {
    if (workers_.empty() || n <= 1) {
      for (int i = 0; i < n; i++) f(i);
      return;
    }
    open([](const void* context, int i) { (*static_cast<const F*>(context))(i); }, &f, n);
    take_chunks();
    close();
  }

 private:
  using Task = void (*)(const void*, int);

  // state: generation << 16 | workers inside << 1 | closed
  static constexpr uint64_t kClosed = 1, kWorker = 2, kInside = 0xfffe;
  static constexpr int kSpins = 20000;  // about a millisecond before a worker sleeps

  void open(Task task, const void* context, int n) {
    task_ = task;
    context_ = context;
    size_ = n;
    next_.store(0, std::memory_order_relaxed);
    state_.store(((state_.load() >> 16) + 1) << 16);
    if (sleepers_.load()) {
      wakeups_++;
      futex(FUTEX_WAKE_PRIVATE, static_cast<int>(workers_.size()));
    }
  }

  void close() {
    state_.fetch_or(kClosed);
    for (int spins = 0; state_.load(std::memory_order_acquire) & kInside; spins++) {
      if (spins < 2000) CPU_RELAX();
      else sched_yield();
    }
  }

  void take_chunks() {
    for (int i; (i = next_.fetch_add(1)) < size_;) task_(context_, i);
  }

  void work() {
    uint64_t seen = 0;
    for (int spins = 0; !stopping_.load(std::memory_order_relaxed);) {
      uint64_t state = state_.load(std::memory_order_acquire);
      if (state >> 16 != seen && !(state & kClosed)) {
        if (!state_.compare_exchange_weak(state, state + kWorker)) continue;
        take_chunks();
        state_.fetch_sub(kWorker);
        seen = state >> 16;
        spins = 0;
        continue;
      }
      CPU_RELAX();
      if (++spins > kSpins) {
        sleep(seen);
        spins = 0;
      }
    }
  }

  void sleep(uint64_t seen) {
    int ticket = wakeups_.load();
    sleepers_++;
    uint64_t state = state_.load();
    if ((state >> 16 == seen || (state & kClosed)) && !stopping_) futex(FUTEX_WAIT_PRIVATE, ticket);
    sleepers_--;
  }

  void futex(int operation, int value) {
    syscall(SYS_futex, reinterpret_cast<int*>(&wakeups_), operation, value, nullptr, nullptr, 0);
  }

  std::vector<std::thread> workers_;
  std::atomic<uint64_t> state_{kClosed};
  std::atomic<int> next_{0}, sleepers_{0}, wakeups_{0};
  std::atomic<bool> stopping_{false};
  Task task_ = nullptr;
  const void* context_ = nullptr;
  int size_ = 0;
};
