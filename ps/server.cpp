// SPDX-License-Identifier: Apache-2.0
#include "ps/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace paceline {

Server::Server(ServerMailbox& mailbox, const ServerSetup& setup, AbortToken& abort)
    : mailbox_(mailbox),
      identity_(setup.identity),
      abort_(abort),
      state_(identity_, make_policy(identity_.rule), setup.make_shard),
      sender_(setup.place.fabric, setup.place.node, setup.place.worker_nodes),
      routes_(static_cast<std::size_t>(identity_.world)) {}

void Server::run() {
  const auto transmit = [this](const Outgoing& message) {
    return mailbox_.send(routes_[static_cast<std::size_t>(message.peer)], message.header,
                         message.payload) != ServerMailbox::Sent::full;
  };
  const std::array<int, 2> fds{mailbox_.fd(), wakeup_.fd()};
  while (!(state_.finished() && sender_.idle()) && !stop_.load(std::memory_order_acquire)) {
    abort_.check();
    const bool received = receive();
    const bool handled = handle_arrived();
    const std::int64_t now = now_ns();
    const std::int64_t again = sender_.pump(now, transmit);
    if (!received && !handled) {
      wait_readable(fds, std::min(again, arrivals_.next_arrival()));
    }
  }
  mailbox_.set_linger(std::chrono::seconds(1));
}

void Server::stop() noexcept {
  stop_.store(true, std::memory_order_release);
  wakeup_.signal();
}

bool Server::receive() {
  // A few at a time, so that answers leave between a burst of pushes.
  constexpr int kBurst = 4;
  int count = 0;
  while (count < kBurst) {
    auto incoming = mailbox_.receive();
    if (!incoming) {
      break;
    }
    ++count;
    accept(std::move(*incoming));
  }
  return count > 0;
}

void Server::accept(Incoming incoming) {
  if (!incoming.problem.empty()) {
    return refuse(incoming, incoming.problem);
  }
  if (incoming.header.nonce != identity_.nonce || incoming.header.worker >= routes_.size()) {
    return refuse(incoming, "the message belongs to another job");
  }
  std::string& route = routes_[incoming.header.worker];
  if (incoming.header.kind == MessageKind::hello && route.empty()) {
    route = incoming.route;
  }
  if (route != incoming.route) {
    return refuse(incoming, fmt::format("rank {} speaks from another connection (two with the same "
                                        "number?)",
                                        incoming.header.worker));
  }
  try {
    const auto peer = static_cast<int>(incoming.header.worker);
    arrivals_.put({peer, incoming.header, std::move(incoming.payload)});
  } catch (const WireError& error) {
    refuse(incoming, error.what());
  }
}

void Server::refuse(const Incoming& incoming, const std::string& reason) {
  Header header;
  header.kind = MessageKind::error;
  header.worker = incoming.header.worker;
  header.server = static_cast<std::uint32_t>(identity_.server);
  header.nonce = incoming.header.nonce;
  header.payload_bytes = reason.size();
  // Whoever floods the server with nonsense does without an answer.
  static_cast<void>(mailbox_.send(incoming.route, header, Payload::copy_of(reason)));
}

bool Server::handle_arrived() {
  bool any = false;
  while (auto message = arrivals_.next(now_ns())) {
    any = true;
    state_.on_message(message->header, std::move(message->payload), now_ns(), answers_);
    for (Outgoing& answer : answers_) {
      sender_.enqueue(std::move(answer));
    }
    answers_.clear();
  }
  if (any) {
    note_memory();
  }
  return any;
}

void Server::note_memory() {
  const MemoryUse use = state_.memory();
  weight_bytes_.store(use.weights, std::memory_order_relaxed);
  gradient_bytes_.store(use.gradients, std::memory_order_relaxed);
  optimizer_bytes_.store(use.optimizer, std::memory_order_relaxed);
  staging_bytes_.store(std::max(use.staging, staging_bytes_.load(std::memory_order_relaxed)),
                       std::memory_order_relaxed);
}

MemoryUse Server::memory() const noexcept {
  MemoryUse use;
  use.weights = weight_bytes_.load(std::memory_order_relaxed);
  use.gradients = gradient_bytes_.load(std::memory_order_relaxed);
  use.optimizer = optimizer_bytes_.load(std::memory_order_relaxed);
  use.staging = staging_bytes_.load(std::memory_order_relaxed);
  return use;
}

}  // namespace paceline
