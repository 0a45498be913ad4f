// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as events of a program instead of its end.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <thread>

#include "common/base/abort.h"
#include "common/comm/file_descriptor.h"

namespace paceline {

/// Blocks SIGINT and SIGTERM for the calling thread, and for threads it starts while this lives,
/// and makes them readable instead. Make it before other threads start; destroy it on the thread
/// that made it. The previous mask comes back with the destructor.
class BlockedSignals {
 public:
  /// Throws Error when the system has no descriptor left.
  BlockedSignals();
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  /// Readable when a signal has come.
  [[nodiscard]] int descriptor() const noexcept { return signals_.get(); }
  /// A signal that has come, none without one. Does not block.
  [[nodiscard]] std::optional<int> take() const noexcept;

 private:
  sigset_t before_{};
  FileDescriptor signals_;
};

/// While it lives, SIGINT and SIGTERM set `abort` to Interrupted (the first one, others have no
/// effect). Same rules as BlockedSignals; `abort` outlives it.
class SignalWatcher {
 public:
  explicit SignalWatcher(AbortToken& abort);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  void watch(AbortToken& abort) const;

  BlockedSignals signals_;
  FileDescriptor stop_;
  std::thread thread_;
};

/// "SIGKILL"; "signal 34" for one without a name.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace paceline
