// SPDX-License-Identifier: Apache-2.0
#include "ring/communication_thread.h"

#include <algorithm>
#include <utility>

#include "common/base/time.h"

namespace paceline {

CommunicationThread::CommunicationThread(int buckets, Work work, std::atomic<bool>& stop,
                                         AbortToken& abort)
    : work_(std::move(work)),
      stop_(stop),
      abort_(abort),
      outstanding_(static_cast<std::size_t>(buckets)),
      thread_([this] { loop(); }) {}

CommunicationThread::~CommunicationThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_.store(true);
  }
  work_arrived_.notify_one();
  thread_.join();
}

void CommunicationThread::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_arrived_.wait(lock, [&] { return stop_.load() || !queue_.empty(); });
    if (stop_.load()) {
      return;
    }
    const Task task = queue_.front();
    queue_.pop_front();
    lock.unlock();
    BucketCost cost;
    std::exception_ptr error;
    try {
      cost = work_(task.bucket, task.step);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      error_ = error;
      work_done_.notify_one();
      return;
    }
    --outstanding_[static_cast<std::size_t>(task.bucket)];
    --outstanding_total_;
    waits_.push_back({cost.times.begin_ns, cost.times.peers_ready_ns});
    communication_ns_ += cost.times.end_ns - cost.times.begin_ns;
    bytes_total_ = cost.bytes_sent_total;
    work_done_.notify_one();
  }
}

void CommunicationThread::check_error() const {
  if (error_) {
    std::rethrow_exception(error_);
  }
}

void CommunicationThread::submit(BucketId bucket, const StepInfo& step) {
  {
    const std::scoped_lock lock(mutex_);
    check_error();
    queue_.push_back({bucket, step});
    ++outstanding_.at(static_cast<std::size_t>(bucket));
    ++outstanding_total_;
  }
  work_arrived_.notify_one();
}

template <typename Done>
void CommunicationThread::block_until(Done done) {
  std::unique_lock lock(mutex_);
  check_error();
  if (done()) {
    return;
  }
  const std::int64_t begin = now_ns();
  while (!done()) {
    work_done_.wait_for(lock, kAbortPollInterval);
    check_error();
    abort_.check();
  }
  count_wait(begin, now_ns());
}

void CommunicationThread::count_wait(std::int64_t begin, std::int64_t end) {
  for (const Interval& wait : waits_) {
    wait_ns_ += std::max<std::int64_t>(0, std::min(end, wait.end) - std::max(begin, wait.begin));
  }
}

void CommunicationThread::wait(BucketId bucket) {
  const int& outstanding = outstanding_.at(static_cast<std::size_t>(bucket));
  block_until([&] { return outstanding == 0; });
}

void CommunicationThread::wait_all() {
  block_until([&] { return outstanding_total_ == 0; });
}

StepReport CommunicationThread::report() {
  const std::scoped_lock lock(mutex_);
  check_error();
  StepReport report;
  report.wait_s = seconds(std::exchange(wait_ns_, 0));
  report.communication_s = seconds(std::exchange(communication_ns_, 0));
  report.bytes_sent = bytes_total_ - std::exchange(bytes_reported_, bytes_total_);
  waits_.clear();
  return report;
}

}  // namespace paceline
