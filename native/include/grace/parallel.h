// Loops over all cores. Chunk borders depend on the chunk count alone, and every use here merges
// its chunks in order, so results do not depend on how many threads ran.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace grace {

struct Range {
  int64_t begin;
  int64_t end;
};

inline Range chunk_of(int64_t count, int64_t chunks, int64_t i) {
  return {count * i / chunks, count * (i + 1) / chunks};
}

// A job: the calls body(i) for every i in [0, tasks), divided among any number of threads.
class Job {
 public:
  Job(int64_t tasks, std::function<void(int64_t)> body) : tasks_(tasks), body_(std::move(body)) {}

  void work() {
    try {
      for (int64_t i = next_++; i < tasks_; i = next_++) body_(i);
    } catch (...) {
      const std::lock_guard<std::mutex> hold(lock_);
      if (!failure_) failure_ = std::current_exception();
      next_ = tasks_;
    }
  }

  // Throws the first exception of the body. Call it after all threads have ended their work.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const int64_t tasks_;
  const std::function<void(int64_t)> body_;
  std::atomic<int64_t> next_{0};
  std::mutex lock_;
  std::exception_ptr failure_;
};

// Threads that wait for jobs, some of which are too short to start threads for.
class Workers {
 public:
  // Starts threads - 1 threads, since the caller's thread works too. If the system refuses one,
  // those that have started do the work. Their name has at most 15 bytes.
  Workers(int32_t threads, const char* name) : name_(name) {
    threads_.reserve(std::max(threads, 1) - 1);  // so that no later call loses a thread
    try {
      for (int32_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::exception&) {
      // The system has no thread or memory for more of them.
    }
  }

  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  ~Workers() {
    {
      const std::lock_guard<std::mutex> hold(lock_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Calls body(i) for every i in [0, tasks), on this thread and on those that wake up in time.
  // Rethrows the first exception after all of them have stopped. If another caller's job runs, this
  // thread works alone.
  template <typename Body>
  void run(int64_t tasks, Body&& body) {
    const std::unique_lock<std::mutex> alone(running_, std::try_to_lock);
    Job job(tasks, std::ref(body));
    const bool shared = alone.owns_lock() && !threads_.empty() && tasks > 1;
    if (shared) {
      {
        const std::lock_guard<std::mutex> hold(lock_);
        job_ = &job;
        ++round_;
      }
      wake_.notify_all();
    }
    job.work();
    if (shared) {
      std::unique_lock<std::mutex> hold(lock_);
      job_ = nullptr;  // a thread that wakes up now finds no job
      rest_.wait(hold, [&] { return at_work_ == 0; });
    }
    job.rethrow();
  }

 private:
  void serve() {
#ifdef __linux__
    pthread_setname_np(pthread_self(), name_);  // or else it has the name of its starter
#elif defined(__APPLE__)
    pthread_setname_np(name_);
#endif
    std::unique_lock<std::mutex> hold(lock_);
    uint64_t seen = 0;
    for (;;) {
      wake_.wait(hold, [&] { return ending_ || (job_ != nullptr && round_ != seen); });
      if (ending_) return;
      seen = round_;
      Job* job = job_;
      ++at_work_;
      hold.unlock();
      job->work();
      hold.lock();
      if (--at_work_ == 0) rest_.notify_one();
    }
  }

  const char* const name_;
  std::vector<std::thread> threads_;
  std::mutex running_;  // the thread whose job runs holds it
  std::mutex lock_;     // guards the four below
  Job* job_ = nullptr;
  uint64_t round_ = 0;  // numbers the jobs, so that a thread joins each job once
  int32_t at_work_ = 0;
  bool ending_ = false;
  std::condition_variable wake_;
  std::condition_variable rest_;
};

// Calls body(i) for every i in [0, tasks) on up to `threads` threads, the caller's among them.
// The first exception is rethrown here once all threads have ended.
template <typename Body>
void parallel_tasks(int64_t tasks, int32_t threads, Body&& body) {
  Workers(static_cast<int32_t>(std::min<int64_t>(threads, tasks)), "grace-tasks").run(tasks, body);
}

// Calls body(range) for consecutive ranges that cover [0, count), `most` long except the last.
template <typename Body>
void parallel_ranges(int64_t count, int64_t most, int32_t threads, Body&& body) {
  parallel_tasks((count + most - 1) / most, threads, [&](int64_t task) {
    body(Range{task * most, std::min(count, (task + 1) * most)});
  });
}

// Sorts items by bucket, stably: each(chunk, take) calls take(bucket, item) for each item of a
// chunk, the same each time. Writes the items to `sorted`; returns where each bucket begins and,
// after the last one, the number of items.
template <typename Each>
std::vector<int64_t> counting_sort(int64_t chunks, int64_t buckets, int32_t threads,
                                   int32_t* sorted, const Each& each) {
  std::vector<std::vector<int64_t>> next(chunks);
  parallel_tasks(chunks, threads, [&](int64_t c) {
    next[c].assign(buckets, 0);
    each(c, [&](int64_t bucket, int32_t) { ++next[c][bucket]; });
  });
  std::vector<int64_t> begins(buckets + 1);
  int64_t at = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    begins[bucket] = at;
    for (std::vector<int64_t>& of_chunk : next) {
      at += std::exchange(of_chunk[bucket], at);
    }
  }
  begins[buckets] = at;
  parallel_tasks(chunks, threads, [&](int64_t c) {
    each(c, [&](int64_t bucket, int32_t item) { sorted[next[c][bucket]++] = item; });
  });
  return begins;
}

}  // namespace grace
