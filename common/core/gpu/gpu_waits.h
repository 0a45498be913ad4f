// SPDX-License-Identifier: Apache-2.0
// How long the host waits for a GPU, and what it says when that was too long.
#pragma once

#include <atomic>
#include <functional>
#include <string_view>

#include "common/base/abort.h"
#include "common/base/time.h"
#include "common/core/cuda_module.h"

namespace paceline {

/// CUDA's own waits know no end, so the host asks again and again. Any thread, on the device whose
/// work it is.
class GpuWaits {
 public:
  static constexpr Nanoseconds kUsualTimeout = std::chrono::seconds(60);

  /// `index` is the GPU's, for messages. `abort` may be null. All outlive it.
  GpuWaits(const CudaModule& module, int index, Nanoseconds timeout, const AbortToken* abort)
      : module_(module), index_(index), timeout_(timeout), abort_(abort) {}

  using Query = std::function<int()>;  ///< cuda::kNotReady, or how it ended
  /// Until `query` says something else than kNotReady. Throws TimeoutError naming `what`, the
  /// AbortToken's reason, or Error in CUDA's words.
  void until(const Query& query, std::string_view what) const;

  /// For destructors: until `stream` is idle, for some seconds at most once the job is being
  /// aborted, and not at all after a wait that timed out. False where it may still be at work: what
  /// it works on must then stay.
  bool drain(void* stream) const noexcept;

  /// A wait timed out: the GPU is taken to be stuck. Calls that wait for the whole device, such as
  /// freeing its memory, might then not come back.
  [[nodiscard]] bool given_up() const noexcept { return given_up_.load(); }
  /// As if a wait had.
  void give_up() const noexcept { given_up_ = true; }

 private:
  /// kNotReady when `timeout` was over first. `heeds_abort`: throws its reason.
  [[nodiscard]] int poll(const Query& query, Nanoseconds timeout, bool heeds_abort) const;

  const CudaModule& module_;
  int index_;
  Nanoseconds timeout_;
  const AbortToken* abort_;
  mutable std::atomic<bool> given_up_{false};
};

}  // namespace paceline
