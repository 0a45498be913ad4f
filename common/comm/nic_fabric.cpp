// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/comm/emulated_nic.h"
#include "common/comm/nic_clock.h"
#include "common/comm/segment.h"

namespace paceline {

namespace {

/// The clocks of one node. Traffic inside the node has a pair of its own: it does not occupy the
/// card that leads out.
struct NodeClocks {
  NicClock egress;
  NicClock ingress;
  NicClock intra_egress;
  NicClock intra_ingress;
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

class SharedNicFabric final : public NicFabric {
 public:
  SharedNicFabric(Segment memory, const LinkSpec& inter, const LinkSpec& intra)
      : memory_(std::move(memory)), inter_(inter), intra_(intra) {}

  [[nodiscard]] const LinkSpec& link(int src_node, int dst_node) const noexcept override {
    return src_node == dst_node ? intra_ : inter_;
  }

  [[nodiscard]] std::int64_t reserve_egress(int src_node, int dst_node, std::size_t bytes,
                                            std::int64_t ready_ns) noexcept override {
    const LinkSpec& spec = link(src_node, dst_node);
    if (!spec.shaped()) {
      return ready_ns;
    }
    NodeClocks& node = clocks(src_node);
    NicClock& clock = src_node == dst_node ? node.intra_egress : node.egress;
    return clock.reserve(ready_ns, wire_ns(bytes, spec.bytes_per_second));
  }

  [[nodiscard]] std::int64_t reserve_ingress(int src_node, int dst_node, std::size_t bytes,
                                             std::int64_t depart_ns) noexcept override {
    const LinkSpec& spec = link(src_node, dst_node);
    if (!spec.shaped()) {
      return depart_ns;
    }
    NodeClocks& node = clocks(dst_node);
    NicClock& clock = src_node == dst_node ? node.intra_ingress : node.ingress;
    const std::int64_t duration = wire_ns(bytes, spec.bytes_per_second);
    return clock.reserve(depart_ns + spec.latency.count(), duration) + duration;
  }

 private:
  [[nodiscard]] NodeClocks& clocks(int node) const noexcept {
    return reinterpret_cast<NodeClocks*>(memory_.data())[static_cast<std::size_t>(node)];
  }

  Segment memory_;
  LinkSpec inter_;
  LinkSpec intra_;
};

}  // namespace

std::unique_ptr<NicFabric> NicFabric::join(Communicator& members, int nodes, const LinkSpec& inter,
                                           const LinkSpec& intra) {
  const std::size_t bytes = static_cast<std::size_t>(nodes) * sizeof(NodeClocks);
  struct Place {
    pid_t pid;
    int fd;
  } place{};
  Segment memory;
  if (members.rank() == 0) {
    memory = Segment(bytes, true);
    place = {getpid(), memory.descriptor()};
  }
  std::string blob(sizeof(Place), '\0');
  std::memcpy(blob.data(), &place, sizeof(Place));
  blob = members.broadcast(0, std::move(blob));
  if (blob.size() != sizeof(Place)) {
    throw Error(fmt::format("member 0 announced the emulated NIC with {} bytes instead of {}",
                            blob.size(), sizeof(Place)));
  }
  if (members.rank() != 0) {
    std::memcpy(&place, blob.data(), sizeof(Place));
    memory = Segment::open(place.pid, place.fd, bytes);
  }
  members.barrier();
  memory.close_descriptor();
  return std::make_unique<SharedNicFabric>(std::move(memory), inter, intra);
}

}  // namespace paceline
