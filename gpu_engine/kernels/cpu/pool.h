// A team of threads for many short jobs: a decoder step has several hundred of them.
//
// The caller works too, and never waits for a worker that has not begun: where the kernel gave a worker's core
// to another process, the caller does all chunks itself. (An OpenMP barrier would wait for the worker's next
// time slice, some milliseconds, at each of those jobs.) Workers spin for a while after a job, then sleep.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace headrace {

class Pool {
 public:
  // `threads` counts the caller. `pin`: caller and workers stay on one core each of those that the process may
  // use; without it new threads may share the caller's core for long. Ignored where there are too few cores.
  Pool(int threads, bool pin);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // f(chunk) for each chunk in [0, chunks), on all threads; returns when all have ended. One caller at a time.
  template <class F>
  void run(int chunks, const F& f) {
    if (workers_.empty() || chunks <= 1) {
      for (int i = 0; i < chunks; i++) f(i);
      return;
    }
    call_ = [](const void* job, int chunk) { (*static_cast<const F*>(job))(chunk); };
    job_ = &f;
    run_on_all(chunks);
  }

 private:
  void run_on_all(int chunks);
  void work();
  void take_chunks();

  // One word, so that joining a job and its end are one atomic step each: generation << 16 | busy workers << 1 |
  // closed. A closed job takes no more workers.
  std::atomic<uint64_t> state_{1};
  std::atomic<int> next_{0}, sleepers_{0}, alarm_{0};
  std::atomic<bool> ending_{false};
  void (*call_)(const void*, int) = nullptr;
  const void* job_ = nullptr;
  int chunks_ = 0;
  std::vector<std::thread> workers_;
};

// Memory of the calling thread, 64-byte aligned, for `slot` in [0, 12); valid until the thread's next call for
// that slot.
void* scratch(int slot, size_t bytes);

template <class T>
T* scratch_of(int slot, size_t count) {
  return static_cast<T*>(scratch(slot, count * sizeof(T)));
}

}  // namespace headrace
