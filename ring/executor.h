// SPDX-License-Identifier: Apache-2.0
// Runs a Schedule over a Transport.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/comm/transport.h"
#include "ring/schedule.h"

namespace paceline {

/// A Schedule with the indices that running it needs. Immutable; may be run any number of times.
class CompiledSchedule {
 public:
  /// The operations with one peer in one direction, in the order in which they are started.
  struct Channel {
    int peer = 0;
    bool is_send = false;
    Schedule::Index begin = 0;  ///< into channel_operations
    Schedule::Index end = 0;
  };

  explicit CompiledSchedule(Schedule schedule);

  [[nodiscard]] const Schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] std::span<const Channel> channels() const noexcept { return channels_; }
  [[nodiscard]] std::span<const Schedule::Index> channel_operations() const noexcept {
    return channel_operations_;
  }
  /// Number of dependencies of each operation.
  [[nodiscard]] std::span<const Schedule::Index> missing() const noexcept { return missing_; }
  /// Operations that wait for `operation`.
  [[nodiscard]] std::span<const Schedule::Index> enabled_by(
      Schedule::Index operation) const noexcept {
    return std::span(enabled_).subspan(first_enabled_[operation],
                                       first_enabled_[operation + 1] - first_enabled_[operation]);
  }

 private:
  Schedule schedule_;
  std::vector<Channel> channels_;
  std::vector<Schedule::Index> channel_operations_;
  std::vector<Schedule::Index> missing_;
  std::vector<Schedule::Index> enabled_;
  std::vector<Schedule::Index> first_enabled_;
};

/// Thrown by Executor::run when its stop flag is set.
class Stopped : public Error {
 public:
  Stopped() : Error("stopped") {}
};

/// now_ns() at three points of a run.
struct RunTimes {
  std::int64_t begin_ns = 0;
  std::int64_t peers_ready_ns = 0;  ///< all ranks had begun it (if announced)
  std::int64_t end_ns = 0;
  int last_to_begin = -1;  ///< the other rank whose announcement came last; -1: not announced
};

/// One per rank; used by one thread at a time. Allocates only when a schedule is longer than any
/// before.
class Executor {
 public:
  /// A run in which nothing moves for `timeout` throws. `stop` (may be null) ends a run within
  /// kAbortPollInterval when another thread sets it. Both references outlive this.
  Executor(Transport& transport, Nanoseconds timeout, const std::atomic<bool>* stop);

  /// Runs this rank's part; all ranks run theirs of the same collective, with the same `announce`.
  /// `buffer` holds schedule.count elements of `type`, `scratch` schedule.scratch. With `announce`
  /// each rank first sends an empty message to every other rank, whether or not it is a peer of the
  /// schedule: so waiting for a slower rank can be told from transferring, and a neighbour that
  /// only waits itself from the rank that it waits for. Throws TimeoutError naming the peer,
  /// PeerLost, the abort reason, or Stopped; the transport then still borrows the memory and can't
  /// be used again.
  RunTimes run(const CompiledSchedule& plan, std::byte* buffer, std::byte* scratch, DataType type,
               bool announce);

 private:
  using Index = Schedule::Index;
  struct Progress {
    Index done = 0;    ///< operations before this one are complete
    Index posted = 0;  ///< operations before this one are with the transport
  };

  [[nodiscard]] std::byte* at(std::size_t element) const noexcept;
  void start(bool announce);
  void announce();
  bool all_have_begun();
  bool advance();
  bool advance(const CompiledSchedule::Channel& channel, Progress& progress);
  void post(Index operation);
  void complete(Index operation);
  void finish(Index operation);
  void run_locals();
  void run_local(const Operation& operation);
  void idle();
  [[noreturn]] void throw_timeout() const;

  Transport& transport_;
  Nanoseconds timeout_;
  const std::atomic<bool>* stop_;

  const CompiledSchedule* plan_ = nullptr;
  std::byte* buffer_ = nullptr;
  std::byte* scratch_ = nullptr;
  DataType type_ = DataType::f32;
  std::size_t left_ = 0;
  std::int64_t stalled_since_ns_ = 0;  ///< 0: something moved since
  std::vector<Index> missing_;
  std::vector<Ticket> tickets_;     ///< of posted operations
  std::vector<Progress> progress_;  ///< by channel
  std::vector<Index> locals_;       ///< ready to run
  std::vector<Ticket> announced_;   ///< empty messages under way
  int last_to_begin_ = -1;
};

}  // namespace paceline
