// SPDX-License-Identifier: Apache-2.0
// The thread that sums and applies buckets behind the training thread's back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/sync/synchronizer.h"
#include "ring/executor.h"
#include "ring/launch_order.h"

namespace paceline {

/// What a finished bucket cost.
struct BucketCost {
  RunTimes times;
  std::uint64_t bytes_sent_total = 0;  ///< of the transport so far
  int skipped = 0;                     ///< updates that were left out
};

/// Works on one bucket after the other: in the order of submit(), or in the one that `order` agrees
/// on. All methods are called by the training thread.
class CommunicationThread {
 public:
  /// `work(bucket, step)` runs on the thread; it must leave by exception soon after `stop()` turns
  /// true. A PeerLost or TimeoutError that it throws gets step and bucket. `abort` outlives this.
  using Work = std::function<BucketCost(BucketId, const StepInfo&)>;
  /// `order` may be null; it and `stop` outlive this.
  CommunicationThread(int buckets, Work work, LaunchOrder* order, std::atomic<bool>& stop,
                      AbortToken& abort);
  /// Stops the thread without waiting for peers.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  /// Never blocks on work. Throws a stored error of the thread.
  void submit(BucketId bucket, const StepInfo& step);
  /// Returns when no work on `bucket` is outstanding. Throws a stored error of the thread, or the
  /// abort reason.
  void wait(BucketId bucket);
  void wait_all();
  /// What happened since the last call. Updates that were left out count at the call after the one
  /// that follows their submit(), whenever that was found, so that what a step's report says of
  /// them does not hang on the thread's pace. Throws a stored error of the thread.
  StepReport report();

 private:
  struct Task {
    BucketId bucket;
    StepInfo step;
    std::int64_t period;  ///< calls of report() before it came
  };
  struct Wait {
    std::int64_t begin;
    std::int64_t end;
    int rank;  ///< that was waited for; -1: not known
  };

  void loop();
  std::optional<Task> next_task(std::unique_lock<std::mutex>& lock);
  BucketCost run(const Task& task);
  bool wait_for_work(std::unique_lock<std::mutex>& lock, std::optional<BucketId> bucket);
  Task take(std::optional<BucketId> bucket);
  void note(const Task& task, const BucketCost& cost);
  template <typename Done>
  void block_until(Done done);
  void check_error() const;
  void count_waits(std::int64_t begin, std::int64_t end);

  Work work_;
  LaunchOrder* order_;
  std::atomic<bool>& stop_;
  AbortToken& abort_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable work_arrived_;
  std::condition_variable work_done_;
  std::deque<Task> queue_;
  std::vector<int> outstanding_;  ///< tasks per bucket that are not finished
  int outstanding_total_ = 0;
  std::exception_ptr error_;
  std::vector<Wait> waits_;  ///< for slower ranks, since the last report
  std::vector<Transfer> transfers_;
  std::int64_t period_ = 0;
  int skipped_ = 0;         ///< of this period's tasks
  int skipped_before_ = 0;  ///< of earlier ones', not reported yet
  std::int64_t communication_ns_ = 0;
  std::uint64_t bytes_total_ = 0;

  std::int64_t wait_ns_ = 0;              ///< training thread only
  std::vector<std::int64_t> waited_for_;  ///< likewise; the part of wait_ns_ for each rank
  std::uint64_t bytes_reported_ = 0;

  std::thread thread_;
};

}  // namespace paceline
