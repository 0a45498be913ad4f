// SPDX-License-Identifier: Apache-2.0
// Small control collectives between the members of a job: barriers, addresses, metrics. Not for
// gradients (comm/transport.h, ps/).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

class AbortToken;

/// One per member and group; one thread at a time. Every call is collective over the group and in
/// the same order on every member. All throw PeerLost naming who, TimeoutError naming who is
/// missing, or the AbortToken's reason.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// This member's index in the group, 0 <= rank() < size().
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;

  /// Returns every member's `blob` (arbitrary bytes), indexed by rank.
  [[nodiscard]] virtual std::vector<std::string> allgather(std::string blob) = 0;

  void barrier() { static_cast<void>(allgather({})); }
  /// The root's blob, on every member.
  [[nodiscard]] std::string broadcast(int root, std::string blob);
  /// Element-wise sum, added in rank order (the same bits on every member).
  [[nodiscard]] std::vector<double> sum(std::span<const double> values);
  [[nodiscard]] std::vector<double> max(std::span<const double> values);
};

/// Communicators for `size` threads of this process as members. Each may be moved to its thread;
/// the shared state lives as long as the last of them. A member that dies (its Communicator is
/// destroyed while others wait) ends their waits with PeerLost; `timeout_ns` bounds every wait.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_thread_communicators(
    int size, std::int64_t timeout_ns, AbortToken& abort);

}  // namespace paceline
