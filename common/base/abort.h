// SPDX-License-Identifier: Apache-2.0
// The one way to stop a worker from outside: every blocking wait in Paceline looks at an AbortToken
// at least every kAbortPollInterval and leaves by exception once it is set.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>

namespace paceline {

inline constexpr std::chrono::milliseconds kAbortPollInterval{20};

/// Thread-safe. The first reason wins; later ones are dropped.
class AbortToken {
 public:
  /// Stores `reason` (what every wait will throw) and sets the flag.
  void request(std::exception_ptr reason) {
    const std::scoped_lock lock(mutex_);
    if (!reason_) {
      reason_ = std::move(reason);
      requested_.store(true, std::memory_order_release);
    }
  }
  [[nodiscard]] bool requested() const noexcept {
    return requested_.load(std::memory_order_acquire);
  }
  /// Throws the stored reason if the flag is set.
  void check() const {
    if (requested()) {
      const std::scoped_lock lock(mutex_);
      std::rethrow_exception(reason_);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::exception_ptr reason_;
  std::atomic<bool> requested_{false};
};

}  // namespace paceline
