// SPDX-License-Identifier: Apache-2.0
// What the doubles of the CUDA module and of NCCL were asked to queue, in the order of the calls.
#pragma once

#include <cstddef>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace paceline::test {

struct HostCall {
  std::string_view what;  ///< "wait", "record", "update", "all_reduce", …
  const void* stream = nullptr;
  const void* object = nullptr;  ///< the event, or the first of the memory
  std::size_t count = 0;         ///< elements
};

/// Thread-safe; empty until start().
class HostLog {
 public:
  void start() {
    const std::lock_guard lock(mutex_);
    on_ = true;
    calls_.clear();
  }
  void add(const HostCall& call) {
    const std::lock_guard lock(mutex_);
    if (on_) {
      calls_.push_back(call);
    }
  }
  /// Ends it.
  [[nodiscard]] std::vector<HostCall> take() {
    const std::lock_guard lock(mutex_);
    on_ = false;
    return std::exchange(calls_, {});
  }

 private:
  std::mutex mutex_;
  bool on_ = false;
  std::vector<HostCall> calls_;
};

[[nodiscard]] inline HostLog& host_log() {
  static HostLog log;
  return log;
}

}  // namespace paceline::test
