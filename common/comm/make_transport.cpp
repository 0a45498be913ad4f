// SPDX-License-Identifier: Apache-2.0
// Builds a MeshTransport: every rank announces how it can be reached, each pair picks its link.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/comm/machine_identity.h"
#include "common/comm/memory_link.h"
#include "common/comm/mesh_transport.h"
#include "common/comm/tcp_connect.h"
#include "common/comm/tcp_link.h"
#include "common/comm/transport.h"

namespace paceline {

namespace {

enum class Reach : std::uint8_t { inproc, shm, tcp };

/// What a rank announces. Exchanged byte for byte: all ranks run the same program.
struct Card {
  std::array<char, 96> machine{};  ///< equal for processes that see each other in /proc
  pid_t pid = 0;
  int memory_fd = -1;
  int bell_fd = -1;
  std::array<char, 256> host{};
  std::uint64_t tcp_secret = 0;
  std::uint16_t tcp_port = 0;
  std::uintptr_t inbox = 0;  ///< of a std::shared_ptr<Inbox>, for threads of this process
};

std::vector<Card> exchange(Communicator& workers, const Card& mine) {
  std::string blob(sizeof(Card), '\0');
  std::memcpy(blob.data(), &mine, sizeof(Card));
  const std::vector<std::string> blobs = workers.allgather(std::move(blob));
  std::vector<Card> cards(blobs.size());
  for (std::size_t rank = 0; rank < blobs.size(); ++rank) {
    if (blobs[rank].size() != sizeof(Card)) {
      throw Error(fmt::format("rank {} announced {} bytes instead of {}", rank, blobs[rank].size(),
                              sizeof(Card)));
    }
    std::memcpy(&cards[rank], blobs[rank].data(), sizeof(Card));
  }
  return cards;
}

bool same_machine(const Card& a, const Card& b) noexcept {
  return a.machine == b.machine;
}
bool same_process(const Card& a, const Card& b) noexcept {
  return same_machine(a, b) && a.pid == b.pid;
}

/// How rank `a` reaches rank `b` under `kind`; symmetric, so that both ends agree.
Reach choose(const std::string& kind, const Topology& topology, const std::vector<Card>& cards,
             int a, int b) {
  const Card& card_a = cards[static_cast<std::size_t>(a)];
  const Card& card_b = cards[static_cast<std::size_t>(b)];
  if (kind == "inproc") {
    if (!same_process(card_a, card_b)) {
      throw ConfigError(fmt::format(
          "comm.transport=inproc: ranks {} and {} are no threads of one process; allowed here: "
          "auto, shm, tcp",
          a, b));
    }
    return Reach::inproc;
  }
  if (kind == "shm") {
    if (!same_machine(card_a, card_b)) {
      throw ConfigError(fmt::format(
          "comm.transport=shm: ranks {} and {} are on different machines; allowed here: auto, tcp",
          a, b));
    }
    return Reach::shm;
  }
  if (kind == "tcp") {
    return Reach::tcp;
  }
  if (kind != "auto") {
    throw ConfigError(
        fmt::format("comm.transport={}: allowed are auto, inproc, shm and tcp", kind));
  }
  if (same_process(card_a, card_b)) {
    return Reach::inproc;
  }
  return topology.same_node(a, b) && same_machine(card_a, card_b) ? Reach::shm : Reach::tcp;
}

/// Throws on every rank alike if any pair cannot be linked, before anybody uses a card.
void check_kind(const std::string& kind, const Topology& topology, const std::vector<Card>& cards) {
  const int size = static_cast<int>(cards.size());
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      static_cast<void>(choose(kind, topology, cards, a, b));
    }
  }
}

std::string join_names(const std::array<bool, 3>& used) {
  std::string name;
  for (const auto& [reach, text] : {std::pair{Reach::inproc, "inproc"},
                                    std::pair{Reach::shm, "shm"}, std::pair{Reach::tcp, "tcp"}}) {
    if (used[static_cast<std::size_t>(reach)]) {
      name += name.empty() ? text : fmt::format("+{}", text);
    }
  }
  return name.empty() ? "none" : name;
}

/// Set-up state of one rank.
class Builder {
 public:
  Builder(const TransportOptions& options, Communicator& workers, const Topology& topology,
          NicFabric* fabric, AbortToken& abort)
      : options_(options),
        workers_(workers),
        topology_(topology),
        fabric_(fabric),
        abort_(abort),
        self_(workers.rank()),
        size_(workers.size()),
        inbox_(std::make_shared<Inbox>(size_)),
        connector_(self_, options.host) {
    if (options.tcp_connections < 1 || options.tcp_connections > 64) {
      throw ConfigError(
          fmt::format("comm.tcp_connections={}: allowed are 1 to 64", options.tcp_connections));
    }
  }

  std::unique_ptr<Transport> build() {
    cards_ = exchange(workers_, own_card());
    check_kind(options_.kind, topology_, cards_);
    parts_.rank = self_;
    parts_.links.resize(static_cast<std::size_t>(size_));
    std::vector<int> tcp_peers;
    std::array<bool, 3> used{};
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == self_) {
        continue;
      }
      const Reach reach = choose(options_.kind, topology_, cards_, self_, peer);
      used[static_cast<std::size_t>(reach)] = true;
      if (reach == Reach::tcp) {
        tcp_peers.push_back(peer);
      } else {
        add_memory_link(peer, reach);
      }
    }
    add_tcp_links(tcp_peers);
    // Nobody leaves before all have taken what the others announced.
    workers_.barrier();
    inbox_->close_memory_descriptor();
    if (tcp_peers.size() + 1 < static_cast<std::size_t>(size_)) {
      parts_.inbox = std::move(inbox_);
    }
    parts_.name = join_names(used);
    return std::make_unique<MeshTransport>(std::move(parts_), abort_);
  }

 private:
  [[nodiscard]] Card own_card() {
    Card card;
    machine_identity().copy(card.machine.data(), card.machine.size() - 1);
    card.pid = getpid();
    card.memory_fd = inbox_->memory_descriptor();
    card.bell_fd = inbox_->bell_descriptor();
    const TcpEndpoint& endpoint = connector_.own_endpoint();
    endpoint.host.copy(card.host.data(), card.host.size() - 1);
    card.tcp_port = endpoint.port;
    card.tcp_secret = endpoint.secret;
    card.inbox = reinterpret_cast<std::uintptr_t>(&inbox_);
    return card;
  }

  [[nodiscard]] Pacer pacer_to(int peer) const {
    return {fabric_, topology_.node_of_rank(self_), topology_.node_of_rank(peer)};
  }

  void add_memory_link(int peer, Reach reach) {
    const Card& card = cards_[static_cast<std::size_t>(peer)];
    MemoryLink::Ends ends;
    ends.own = inbox_;
    ends.peer_pid = card.pid;
    if (reach == Reach::inproc) {
      ends.peer = *reinterpret_cast<std::shared_ptr<Inbox>*>(card.inbox);
    } else {
      ends.peer = std::make_shared<Inbox>(size_, card.pid, card.memory_fd, card.bell_fd);
      if (parts_.pool == nullptr) {
        parts_.pool = std::make_shared<SegmentPool>();
      }
      ends.pool = parts_.pool;
    }
    parts_.links[static_cast<std::size_t>(peer)] =
        std::make_unique<MemoryLink>(self_, peer, std::move(ends), pacer_to(peer));
  }

  void add_tcp_links(const std::vector<int>& peers) {
    std::vector<TcpEndpoint> endpoints;
    for (const Card& card : cards_) {
      endpoints.push_back({card.host.data(), card.tcp_port, card.tcp_secret});
    }
    auto sockets =
        connector_.connect(peers, endpoints, options_.tcp_connections, options_.timeout, abort_);
    for (const int peer : peers) {
      const bool shaped =
          Pacer(fabric_, topology_.node_of_rank(peer), topology_.node_of_rank(self_)).shaped();
      std::vector<FileDescriptor>& own = sockets[static_cast<std::size_t>(peer)];
      if (shaped) {
        own.resize(1);  // Pieces of one flow are paced one by one.
      }
      parts_.links[static_cast<std::size_t>(peer)] =
          std::make_unique<TcpLink>(self_, peer, std::move(own), pacer_to(peer), shaped);
    }
  }

  const TransportOptions& options_;
  Communicator& workers_;
  const Topology& topology_;
  NicFabric* fabric_;
  AbortToken& abort_;
  int self_;
  int size_;
  std::shared_ptr<Inbox> inbox_;
  TcpConnector connector_;
  std::vector<Card> cards_;
  MeshTransport::Parts parts_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const TransportOptions& options, Communicator& workers,
                                          const Topology& topology, NicFabric* fabric,
                                          AbortToken& abort) {
  return Builder(options, workers, topology, fabric, abort).build();
}

}  // namespace paceline
