// SPDX-License-Identifier: Apache-2.0
// Builds a MeshTransport: every rank announces how it can be reached, each pair picks its link.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <string>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/comm/memory_link.h"
#include "common/comm/mesh_transport.h"
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
  std::uintptr_t inbox = 0;  ///< of a std::shared_ptr<Inbox>, for threads of this process
};

std::array<char, 96> machine_identity() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::array<char, 48> pid_namespace{};
  if (readlink("/proc/self/ns/pid", pid_namespace.data(), pid_namespace.size() - 1) > 0) {
    text += pid_namespace.data();
  }
  std::array<char, 96> identity{};
  std::memcpy(identity.data(), text.data(), std::min(text.size(), identity.size()));
  return identity;
}

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

}  // namespace

std::unique_ptr<Transport> make_transport(const TransportOptions& options, Communicator& workers,
                                          const Topology& topology, NicFabric* fabric,
                                          AbortToken& abort) {
  const int self = workers.rank();
  const int size = workers.size();
  auto inbox = std::make_shared<Inbox>(size);
  Card mine{.machine = machine_identity(),
            .pid = getpid(),
            .memory_fd = inbox->memory_descriptor(),
            .bell_fd = inbox->bell_descriptor(),
            .inbox = reinterpret_cast<std::uintptr_t>(&inbox)};
  const std::vector<Card> cards = exchange(workers, mine);
  check_kind(options.kind, topology, cards);

  MeshTransport::Parts parts;
  parts.rank = self;
  parts.links.resize(static_cast<std::size_t>(size));
  std::array<bool, 3> used{};
  for (int peer = 0; peer < size; ++peer) {
    if (peer == self) {
      continue;
    }
    const Card& card = cards[static_cast<std::size_t>(peer)];
    const Reach reach = choose(options.kind, topology, cards, self, peer);
    used[static_cast<std::size_t>(reach)] = true;
    const Pacer pacer(fabric, topology.node_of_rank(self), topology.node_of_rank(peer));
    MemoryLink::Ends ends;
    ends.own = inbox;
    ends.peer_pid = card.pid;
    switch (reach) {
      case Reach::inproc:
        ends.peer = *reinterpret_cast<std::shared_ptr<Inbox>*>(card.inbox);
        break;
      case Reach::shm:
        ends.peer = std::make_shared<Inbox>(size, card.pid, card.memory_fd, card.bell_fd);
        if (parts.pool == nullptr) {
          parts.pool = std::make_shared<SegmentPool>();
        }
        ends.pool = parts.pool;
        break;
      case Reach::tcp:
        throw ConfigError("tcp");
    }
    parts.links[static_cast<std::size_t>(peer)] =
        std::make_unique<MemoryLink>(self, peer, std::move(ends), pacer);
  }
  parts.name = join_names(used);
  // Nobody leaves before all have taken what the others announced.
  workers.barrier();
  inbox->close_memory_descriptor();
  if (used[static_cast<std::size_t>(Reach::inproc)] || used[static_cast<std::size_t>(Reach::shm)]) {
    parts.inbox = std::move(inbox);
  }
  return std::make_unique<MeshTransport>(std::move(parts), abort);
}

}  // namespace paceline
