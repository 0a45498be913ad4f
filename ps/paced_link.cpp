// SPDX-License-Identifier: Apache-2.0
#include "ps/paced_link.h"

#include <fmt/format.h>

#include <algorithm>

namespace paceline {

PacedSender::PacedSender(NicFabric* fabric, int node, std::vector<int> peer_nodes)
    : fabric_(fabric), node_(node), peers_(peer_nodes.size()) {
  for (std::size_t p = 0; p < peers_.size(); ++p) {
    peers_[p].node = peer_nodes[p];
  }
}

void PacedSender::enqueue(Outgoing message) {
  Peer& peer = peers_.at(static_cast<std::size_t>(message.peer));
  message.header.sequence = ++peer.sequence;
  const std::size_t bytes = kHeaderBytes + message.payload.size();
  bytes_ += bytes;
  if (fabric_ != nullptr && !message.payload.empty() && fabric_->link(node_, peer.node).shaped()) {
    message.header.flags |= kFlagStamped;
    peer.flows.push_back({message.header, bytes, message.priority, now_ns(), 0});
  }
  peer.ready.push_back(std::move(message));
}

std::int64_t PacedSender::pump(std::int64_t now_ns,
                               const std::function<bool(const Outgoing&)>& transmit) {
  constexpr std::int64_t kRetryNs = 1'000'000;
  std::int64_t again = kNoTime;
  while (piece_ || begin_piece()) {
    const std::int64_t due = piece_->depart_ns - kNicLookahead.count();
    if (now_ns < due) {
      again = due;
      break;
    }
    finish_piece();
  }
  for (Peer& peer : peers_) {
    while (!peer.ready.empty()) {
      if (!transmit(peer.ready.front())) {
        again = std::min(again, now_ns + kRetryNs);
        break;
      }
      peer.ready.pop_front();
    }
  }
  return again;
}

bool PacedSender::begin_piece() {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const std::size_t p = (turn_ + i) % peers_.size();
    auto& flows = peers_[p].flows;
    if (flows.empty()) {
      continue;
    }
    turn_ = p + 1;
    const auto first =
        std::max_element(flows.begin(), flows.end(),
                         [](const Flow& a, const Flow& b) { return a.priority < b.priority; });
    const std::size_t bytes = std::min(first->left, kNicPieceBytes);
    piece_ = Piece{p, static_cast<std::size_t>(first - flows.begin()), bytes,
                   fabric_->reserve_egress(node_, peers_[p].node, bytes, first->queued_ns)};
    return true;
  }
  return false;
}

void PacedSender::finish_piece() {
  Peer& peer = peers_[piece_->peer];
  Flow& flow = peer.flows[piece_->flow];
  flow.arrive_ns = fabric_->reserve_ingress(node_, peer.node, piece_->bytes, piece_->depart_ns);
  flow.left -= piece_->bytes;
  if (flow.left == 0) {
    Outgoing stamp;
    stamp.peer = static_cast<int>(piece_->peer);
    stamp.header = flow.header;
    stamp.header.kind = MessageKind::stamp;
    stamp.header.flags = 0;
    stamp.header.payload_bytes = 0;
    stamp.header.arrive_ns = flow.arrive_ns;
    peer.ready.push_back(std::move(stamp));
    peer.flows.erase(peer.flows.begin() + static_cast<std::ptrdiff_t>(piece_->flow));
  }
  piece_.reset();
}

bool PacedSender::idle() const noexcept {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.ready.empty() && peer.flows.empty(); });
}

void ArrivalQueue::put(Message message) {
  constexpr std::size_t kMaxHeld = 65536;
  const std::pair name(message.peer, message.header.sequence);
  if (message.header.kind == MessageKind::stamp) {
    auto node = unstamped_.extract(name);
    if (node.empty()) {
      throw WireError(fmt::format("a stamp for message {}, which did not come", name.second));
    }
    arriving_.emplace(message.header.arrive_ns, std::move(node.mapped()));
  } else if ((message.header.flags & kFlagStamped) != 0) {
    if (unstamped_.size() >= kMaxHeld) {
      throw WireError("too many messages without their stamp");
    }
    message.header.flags &= static_cast<std::uint16_t>(~kFlagStamped);
    unstamped_.emplace(name, std::move(message));
  } else {
    now_.push_back(std::move(message));
  }
}

std::optional<ArrivalQueue::Message> ArrivalQueue::next(std::int64_t now_ns) {
  std::optional<Message> message;
  if (!arriving_.empty() && arriving_.begin()->first <= now_ns) {
    message = std::move(arriving_.begin()->second);
    arriving_.erase(arriving_.begin());
  } else if (!now_.empty()) {
    message = std::move(now_.front());
    now_.pop_front();
  }
  return message;
}

std::int64_t ArrivalQueue::next_arrival() const noexcept {
  return arriving_.empty() ? kNoTime : arriving_.begin()->first;
}

}  // namespace paceline
