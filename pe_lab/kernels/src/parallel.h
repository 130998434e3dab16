// Parallel loops on torch's own threads.
#pragma once

#include <atomic>
#include <cfenv>
#include <system_error>
#include <thread>
#include <vector>

// GOMP_parallel of the OpenMP runtime that torch has loaded (see build.py). Linking OpenMP would
// add a second runtime, whose threads ignore torch.set_num_threads and spin beside torch's.
typedef void (*Fork)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

struct Pool {
  Fork fork;  // null: new threads are started
  int threads;
};

// The task numbers 0 .. count - 1, each taken once.
class Tasks {
 public:
  explicit Tasks(long count) : count_(count) {}
  // The next number, or -1.
  long next() {
    const long task = taken_.fetch_add(1, std::memory_order_relaxed);
    return task < count_ ? task : -1;
  }

 private:
  const long count_;
  std::atomic<long> taken_{0};
};

// Calls worker(tasks) in every thread; it allocates its scratch memory once and takes tasks until
// none is left. Returns false if a worker threw (out of memory).
template <class Worker>
bool in_parallel(const Pool& pool, long count, const Worker& worker) {
  struct Shared {
    Tasks tasks;
    const Worker& worker;
    std::atomic<bool> failed{false};
    std::fenv_t arithmetic;  // flushing denormals is a setting of each thread
  } shared{Tasks(count), worker, {false}, {}};
  std::fegetenv(&shared.arithmetic);
  const auto work = [](void* data) {
    Shared& shared = *static_cast<Shared*>(data);
    std::fesetenv(&shared.arithmetic);
    try {
      shared.worker(shared.tasks);
    } catch (...) {
      shared.failed = true;
    }
  };
  const long threads = pool.threads < count ? pool.threads : count;
  if (threads <= 1) {
    work(&shared);
  } else if (pool.fork != nullptr) {
    pool.fork(work, &shared, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    try {
      for (long t = 1; t < threads; ++t) others.emplace_back(work, &shared);
    } catch (const std::system_error&) {
      // The threads that could be started do the work.
    }
    work(&shared);
    for (std::thread& other : others) other.join();
  }
  return !shared.failed;
}
