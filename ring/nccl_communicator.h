// SPDX-License-Identifier: Apache-2.0
// NCCL's communicators of one rank: made together with the other ranks, watched, and ended in every
// case without waiting for a peer that is gone.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/abort.h"
#include "common/base/time.h"
#include "common/comm/communicator.h"
#include "common/config/config.h"
#include "common/core/gpu/gpu.h"
#include "ring/nccl_abort.h"

namespace paceline {

/// Opens NCCL (once per process) and returns its version as in "2.28.9". Throws Error naming the
/// folders that were searched when it is missing, and the version when it is older than 2.18.
std::string open_nccl(const CudaModule& module);

/// Who asked for NCCL, and what does without it: for errors.
struct NcclUser {
  std::string setting;  ///< "sync = sharded"
  std::string instead;  ///< "cuda.collectives = host"
};

/// As open_nccl(), with a ConfigError that says both.
void open_nccl_for(const NcclUser& user, const CudaModule& module);

/// Throws ConfigError where two ranks have the same GPU, which NCCL refuses. Collective.
void check_own_gpu(const NcclUser& user, const Gpu& gpu, Communicator& workers);

struct NcclOptions {
  cuda::NcclOptions limits;
  Nanoseconds timeout;
};

/// Communicators are non-blocking: a collective is queued on a stream and the host goes on. The
/// training thread makes and uses them; watch(), fail() and check() are for any thread. After the
/// first failure every call throws it, and all communicators are aborted, which ends what is on
/// their streams; nobody waits for that but the destructor, for some seconds at most.
class NcclCommunicators {
 public:
  using Id = std::size_t;
  static constexpr Id kWorld = 0;  ///< of all workers, by rank

  /// Collective: makes kWorld, the unique id from rank 0 over `workers`. Throws TimeoutError when
  /// not all ranks join in time, PeerLost, Error in NCCL's words, or the AbortToken's reason.
  NcclCommunicators(Gpu& gpu, Communicator& workers, const NcclOptions& options, AbortToken& abort);
  /// Gives NCCL's orderly end a second, then aborts; aborts at once after a failure. The Gpu is
  /// taken to be stuck where an abort does not come to its end.
  ~NcclCommunicators();
  NcclCommunicators(const NcclCommunicators&) = delete;
  NcclCommunicators& operator=(const NcclCommunicators&) = delete;

  /// Collective over kWorld: a communicator of the ranks of equal `color`, ordered by `key`.
  [[nodiscard]] Id split(int color, int key);

  /// Queue collectives on device memory, in place. Every rank of the communicator calls the same
  /// ones with the same counts in the same order; sums are NCCL's.
  void all_reduce(Id comm, void* memory, std::size_t count, Precision format, GpuStream& stream) {
    all_reduce(comm, memory, memory, count, format, stream);
  }
  /// Not in place, unless `from` is `to`.
  void all_reduce(Id comm, const void* from, void* to, std::size_t count, Precision format,
                  GpuStream& stream);
  /// `memory` holds count · ranks elements; block `rank` of them becomes the sum.
  void reduce_scatter(Id comm, int rank, void* memory, std::size_t count, Precision format,
                      GpuStream& stream);
  void all_gather(Id comm, int rank, void* memory, std::size_t count, Precision format,
                  GpuStream& stream);
  void sum_doubles(Id comm, std::span<double> values, GpuStream& stream);
  void broadcast(Id comm, int root, void* memory, std::size_t count, Precision format,
                 GpuStream& stream);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Looks at the AbortToken and at NCCL's asynchronous errors; `what` is going on.
  void watch(std::string_view what = "summing gradients");
  /// Stores `why`, unless there is a failure already, and begins to abort.
  void fail(std::exception_ptr why);
  /// Throws the failure.
  void check();
  [[nodiscard]] bool failed();
  /// From here on the destructor aborts at once: what is queued is not waited for.
  void give_up() noexcept { orderly_ = false; }

 private:
  template <typename Call>
  void issue(Id comm, std::string_view what, Call call);
  void settle(Id comm, std::string_view what);
  [[nodiscard]] int state_of(void* comm) const;
  [[nodiscard]] std::exception_ptr failure(int status, void* comm, std::string_view what) const;
  void fail_locked(std::exception_ptr why);
  void abort_all();
  [[nodiscard]] bool finalized() noexcept;

  Gpu& gpu_;
  const cuda::NcclApi& api_;
  int version_;
  NcclOptions options_;
  AbortToken& abort_;
  int rank_;
  int size_;
  bool orderly_ = true;
  std::deque<void*> splits_;  ///< where NCCL writes their communicators

  std::mutex mutex_;  ///< of all NCCL calls, and of what follows
  std::vector<void*> comms_;
  std::exception_ptr failure_;
  std::deque<NcclAbort> aborts_;
};

}  // namespace paceline
