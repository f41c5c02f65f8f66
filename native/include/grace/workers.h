// Threads that wait for work: a batch's few hundred microseconds of it are not worth starting any.
#ifndef GRACE_WORKERS_H_
#define GRACE_WORKERS_H_

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace grace {

class Workers {
 public:
  // Beside the caller's own. Where the system has no more threads, those that started do the work.
  explicit Workers(int32_t threads) {
    threads_.reserve(static_cast<size_t>(std::max(threads, 1)) - 1);  // a thread must not be lost
    try {
      for (int32_t i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {
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

  // Calls body(i) for every i in [0, tasks), on this thread and on those that wake up in time. The
  // first exception is rethrown here once all is at rest. A second caller at the same time works
  // alone.
  template <typename Body>
  void run(int64_t tasks, Body&& body) {
    const std::unique_lock<std::mutex> alone(running_, std::try_to_lock);
    Job job{tasks, std::ref(body)};
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
      job_ = nullptr;  // who wakes up only now finds nothing left
      rest_.wait(hold, [&] { return at_work_ == 0; });
    }
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  struct Job {
    Job(int64_t count, std::function<void(int64_t)> function)
        : tasks(count), body(std::move(function)) {}

    void work() {
      try {
        for (int64_t i = next++; i < tasks; i = next++) body(i);
      } catch (...) {
        const std::lock_guard<std::mutex> hold(lock);
        if (!failure) failure = std::current_exception();
        next = tasks;
      }
    }

    const int64_t tasks;
    const std::function<void(int64_t)> body;
    std::atomic<int64_t> next{0};
    std::mutex lock;
    std::exception_ptr failure;
  };

  void serve() {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "grace-match");  // else it has its starter's name
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

  std::vector<std::thread> threads_;
  std::mutex running_;  // held by the thread whose job runs
  std::mutex lock_;     // guards the four below
  Job* job_ = nullptr;
  uint64_t round_ = 0;  // numbers the jobs: each thread takes part in one once
  int32_t at_work_ = 0;
  bool ending_ = false;
  std::condition_variable wake_;
  std::condition_variable rest_;
};

}  // namespace grace

#endif  // GRACE_WORKERS_H_
