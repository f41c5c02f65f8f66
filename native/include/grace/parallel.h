// Loops over all cores. Chunk borders depend on the chunk count alone, and every use here merges
// its chunks in order, so results do not depend on how many threads ran.
#ifndef GRACE_PARALLEL_H_
#define GRACE_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace grace {

struct Range {
  int64_t begin;
  int64_t end;
};

inline Range chunk_of(int64_t count, int64_t chunks, int64_t i) {
  return {count * i / chunks, count * (i + 1) / chunks};
}

// Calls body(i) for every i in [0, tasks) on up to `threads` threads, the caller's among them.
// The first exception is rethrown here once all threads have ended.
template <typename Body>
void parallel_tasks(int64_t tasks, int32_t threads, Body&& body) {
  const int64_t workers = std::min<int64_t>(std::max(threads, 1), tasks);
  if (workers <= 1) {
    for (int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_lock;
  auto work = [&] {
    try {
      for (int64_t i = next++; i < tasks; i = next++) body(i);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(failure_lock);
      if (!failure) failure = std::current_exception();
      next = tasks;
    }
  };
  std::vector<std::thread> pool;
  pool.reserve(workers - 1);
  try {
    for (int64_t t = 1; t < workers; ++t) pool.emplace_back(work);
  } catch (const std::exception&) {
    // The system has no thread or memory for more of them: those that started do the work.
  }
  work();
  for (std::thread& thread : pool) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace grace

#endif  // GRACE_PARALLEL_H_
