// SPDX-License-Identifier: Apache-2.0
// The Transport of every kind: one Link per peer and one way to wait for all of them.
#pragma once

#include <poll.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/comm/inbox.h"
#include "common/comm/link.h"
#include "common/comm/segment_pool.h"
#include "common/comm/transport.h"

namespace paceline {

class MeshTransport final : public Transport {
 public:
  struct Parts {
    int rank = 0;
    std::vector<std::unique_ptr<Link>> links;  ///< by peer; null at `rank`
    std::shared_ptr<Inbox> inbox;              ///< null if no link uses memory
    std::shared_ptr<SegmentPool> pool;         ///< null if no peer maps this rank's memory
    std::string name;
  };

  /// `abort` outlives this.
  MeshTransport(Parts parts, AbortToken& abort);
  ~MeshTransport() override = default;

  [[nodiscard]] int rank() const noexcept override { return parts_.rank; }
  [[nodiscard]] int size() const noexcept override { return static_cast<int>(parts_.links.size()); }
  [[nodiscard]] std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override;
  [[nodiscard]] Ticket isend(int peer, std::span<const std::byte> data) override;
  [[nodiscard]] Ticket irecv(int peer, std::span<std::byte> data, Arrival arrival) override;
  bool progress() override;
  [[nodiscard]] bool done(const Ticket& ticket) const noexcept override;
  void idle(const Deadline& deadline) override;
  void leave() noexcept override;
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept override;
  [[nodiscard]] std::string name() const override { return parts_.name; }

 private:
  [[nodiscard]] Link& link(int peer) const;
  void note_loss();
  void check_loss() const;
  void block(std::int64_t until_ns);

  Parts parts_;
  AbortToken& abort_;
  bool crowded_;  ///< more ranks than processors: leave the processor early

  int idle_calls_ = 0;  ///< since progress() last moved something
  std::int64_t idle_since_ns_ = 0;
  std::vector<pollfd> poll_;

  std::exception_ptr loss_;  ///< the first peer lost, thrown when the grace period is over
  std::int64_t loss_ns_ = 0;
};

}  // namespace paceline
