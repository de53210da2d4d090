#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

namespace headrace {
namespace {

constexpr uint64_t kClosed = 1, kWorker = 2, kWorkers = 0xfffe;
constexpr int kGeneration = 16;
constexpr int kSpins = 20000;  // pauses before a worker sleeps: half a millisecond or one
constexpr int kPolite = 2000;  // pauses before the caller yields to whom it waits for

void sleep_on(std::atomic<int>& word, int seen) {
  syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void wake_all(std::atomic<int>& word) {
  word.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<int*>(&word), FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}

// The cores that the process may use, in order.
std::vector<int> cores() {
  cpu_set_t mask;
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0)
    for (int core = 0; core < CPU_SETSIZE; core++)
      if (CPU_ISSET(core, &mask)) found.push_back(core);
  return found;
}

void pin_to(pthread_t thread, int core) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(core, &mask);
  pthread_setaffinity_np(thread, sizeof mask, &mask);
}

}  // namespace

Pool::Pool(int threads, bool pin) {
  const std::vector<int> allowed = cores();
  pin = pin && static_cast<int>(allowed.size()) >= threads;
  for (int i = 1; i < threads; i++) {
    workers_.emplace_back([this] { work(); });
    if (pin) pin_to(workers_.back().native_handle(), allowed[i]);
  }
  if (pin) pin_to(pthread_self(), allowed[0]);
}

Pool::~Pool() {
  ending_.store(true);
  wake_all(alarm_);
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_on_all(int chunks) {
  chunks_ = chunks;
  next_.store(0, std::memory_order_relaxed);
  const uint64_t generation = (state_.load() >> kGeneration) + 1;
  state_.store(generation << kGeneration);  // open
  if (sleepers_.load()) wake_all(alarm_);
  take_chunks();
  state_.fetch_or(kClosed);
  for (int i = 0; state_.load(std::memory_order_acquire) & kWorkers; i++) {
    if (i < kPolite)
      _mm_pause();
    else
      sched_yield();
  }
}

void Pool::take_chunks() {
  for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) call_(job_, i);
}

void Pool::work() {
  uint64_t done = 0;  // the generation that this worker has had last
  for (int spins = 0; !ending_.load(std::memory_order_relaxed);) {
    uint64_t state = state_.load(std::memory_order_acquire);
    const bool open = !(state & kClosed) && state >> kGeneration != done;
    if (open) {
      if (!state_.compare_exchange_weak(state, state + kWorker)) continue;
      take_chunks();
      done = state >> kGeneration;
      state_.fetch_sub(kWorker, std::memory_order_release);
      spins = 0;
    } else if (++spins < kSpins) {
      _mm_pause();
    } else {
      const int seen = alarm_.load();
      sleepers_.fetch_add(1);
      state = state_.load();
      if (((state & kClosed) || state >> kGeneration == done) && !ending_.load()) sleep_on(alarm_, seen);
      sleepers_.fetch_sub(1);
      spins = 0;
    }
  }
}

void* scratch(int slot, size_t bytes) {
  struct Memory {
    void* at[12] = {};
    size_t size[12] = {};
    ~Memory() {
      for (void* p : at) std::free(p);
    }
  };
  static thread_local Memory memory;
  if (memory.size[slot] < bytes) {
    std::free(memory.at[slot]);
    const size_t size = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    memory.at[slot] = std::aligned_alloc(64, size);
    memory.size[slot] = memory.at[slot] ? size : 0;
    if (!memory.at[slot]) throw std::bad_alloc();
  }
  return memory.at[slot];
}

}  // namespace headrace
