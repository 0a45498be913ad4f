// SPDX-License-Identifier: Apache-2.0
#include "ring/communication_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/time.h"

namespace paceline {

CommunicationThread::CommunicationThread(int buckets, Work work, LaunchOrder* order,
                                         std::atomic<bool>& stop, AbortToken& abort)
    : work_(std::move(work)),
      order_(order),
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

BucketCost CommunicationThread::run(const Task& task) {
  const auto where = [&](const Error& error) {
    return fmt::format("{} (step {}, bucket {})", error.what(), task.step.step, task.bucket);
  };
  try {
    return work_(task.bucket, task.step);
  } catch (const PeerLost& error) {
    throw PeerLost(where(error));
  } catch (const TimeoutError& error) {
    throw TimeoutError(where(error));
  }
}

void CommunicationThread::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    std::exception_ptr error;
    try {
      const std::optional<Task> task = next_task(lock);
      if (!task) {
        return;
      }
      lock.unlock();
      const BucketCost cost = run(*task);
      lock.lock();
      note(*task, cost);
    } catch (...) {
      error = std::current_exception();
    }
    if (error) {
      if (!lock.owns_lock()) {
        lock.lock();
      }
      error_ = error;
      work_done_.notify_one();
      return;
    }
    work_done_.notify_one();
  }
}

/// Nothing once stop_ is set.
std::optional<CommunicationThread::Task> CommunicationThread::next_task(
    std::unique_lock<std::mutex>& lock) {
  std::optional<BucketId> bucket;
  if (order_ != nullptr && order_->open() && !order_->decides()) {
    lock.unlock();
    const std::int64_t asked = now_ns();
    bucket = order_->ask();
    const std::int64_t told = now_ns();
    lock.lock();
    waits_.push_back({asked, told, LaunchOrder::kDecider});
  }
  if (!wait_for_work(lock, bucket)) {
    return std::nullopt;
  }
  if (order_ != nullptr && order_->open() && order_->decides()) {
    bucket = std::ranges::max(queue_, {}, &Task::bucket).bucket;
    lock.unlock();
    order_->tell(*bucket);
    lock.lock();
  }
  if (order_ != nullptr) {
    order_->launched();
  }
  return take(bucket);
}

/// Until `bucket` (none: any) is queued; false: stopped.
bool CommunicationThread::wait_for_work(std::unique_lock<std::mutex>& lock,
                                        std::optional<BucketId> bucket) {
  work_arrived_.wait(lock, [&] {
    return stop_.load() ||
           (bucket ? std::ranges::find(queue_, *bucket, &Task::bucket) != queue_.end()
                   : !queue_.empty());
  });
  return !stop_.load();
}

CommunicationThread::Task CommunicationThread::take(std::optional<BucketId> bucket) {
  const auto at = bucket ? std::ranges::find(queue_, *bucket, &Task::bucket) : queue_.begin();
  const Task task = *at;
  queue_.erase(at);
  return task;
}

void CommunicationThread::note(const Task& task, const BucketCost& cost) {
  --outstanding_[static_cast<std::size_t>(task.bucket)];
  --outstanding_total_;
  waits_.push_back({cost.times.begin_ns, cost.times.peers_ready_ns, cost.times.last_to_begin});
  transfers_.push_back({task.bucket, cost.times.peers_ready_ns, cost.times.end_ns});
  communication_ns_ += cost.times.end_ns - cost.times.begin_ns;
  bytes_total_ = cost.bytes_sent_total;
  (task.period == period_ ? skipped_ : skipped_before_) += cost.skipped;
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
    queue_.push_back({bucket, step, period_});
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
  count_waits(begin, now_ns());
}

void CommunicationThread::count_waits(std::int64_t begin, std::int64_t end) {
  for (const Wait& wait : waits_) {
    const std::int64_t ns =
        std::max<std::int64_t>(0, std::min(end, wait.end) - std::max(begin, wait.begin));
    wait_ns_ += ns;
    if (ns > 0 && wait.rank >= 0) {
      const auto rank = static_cast<std::size_t>(wait.rank);
      waited_for_.resize(std::max(waited_for_.size(), rank + 1));
      waited_for_[rank] += ns;
    }
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
  if (const auto most = std::ranges::max_element(waited_for_);
      most != waited_for_.end() && *most > 0) {
    report.waited_for = static_cast<int>(most - waited_for_.begin());
    report.waited_for_s = seconds(*most);
  }
  std::ranges::fill(waited_for_, 0);
  report.communication_s = seconds(std::exchange(communication_ns_, 0));
  report.bytes_sent = bytes_total_ - std::exchange(bytes_reported_, bytes_total_);
  waits_.clear();
  report.skipped = std::exchange(skipped_before_, std::exchange(skipped_, 0));
  ++period_;
  report.transfers = std::exchange(transfers_, {});
  return report;
}

}  // namespace paceline
