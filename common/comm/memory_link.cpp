// SPDX-License-Identifier: Apache-2.0
#include "common/comm/memory_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/error.h"
#include "common/comm/reduce.h"

namespace paceline {

namespace {
/// The staging area's number in FrameKind::segment frames; SegmentPool counts from 1.
constexpr std::uint32_t kStagingSegment = 0;
}  // namespace

MemoryLink::MemoryLink(int self, int peer, Ends ends, const Pacer& pacer)
    : Link(self, peer, pacer),
      ends_(std::move(ends)),
      in_(ends_.own->channel(peer)),
      out_(ends_.peer->channel(self)) {}

MemoryLink::~MemoryLink() {
  leave();
  in_.reader_left.store(1, std::memory_order_seq_cst);
  ends_.peer->ring();
}

void MemoryLink::leave() noexcept {
  out_.writer_left.store(1, std::memory_order_seq_cst);
  while (out_.reading.load(std::memory_order_seq_cst) != 0) {
    std::this_thread::yield();
  }
}

bool MemoryLink::progress() {
  bool moved = false;
  if (!recvs_.empty()) {
    moved |= pull();
    moved |= complete_receives();
  }
  if (!sends_.empty()) {
    moved |= push();
    moved |= reap();
  }
  return moved;
}

// --- receiving -----------------------------------------------------------------------------------

bool MemoryLink::pull() {
  bool moved = false;
  std::size_t budget = kMovedPerProgress;
  while (receiving_ < recvs_.size() && budget >= kCacheLine) {
    const Slot& slot = in_.slots[taken_ % kChannelSlots];
    if (slot.frame.turn.load(std::memory_order_seq_cst) != taken_ + 1) {
      if (in_.writer_left.load(std::memory_order_seq_cst) != 0 &&
          slot.frame.turn.load(std::memory_order_seq_cst) != taken_ + 1) {
        throw PeerLost(
            fmt::format("rank {} left while rank {} waited for its message", peer_, self_));
      }
      break;
    }
    moved = true;
    if (take_frame(slot, budget)) {
      ++taken_;
      frame_moved_ = 0;
      in_.consumed.store(taken_, std::memory_order_seq_cst);
    }
  }
  if (moved) {
    ends_.peer->ring();
  }
  return moved;
}

/// Moves at most `budget` bytes of the frame; true once all of it is moved.
bool MemoryLink::take_frame(const Slot& slot, std::size_t& budget) {
  const Frame& frame = slot.frame;
  if (frame.kind == FrameKind::retire) {
    peer_segments_.erase(frame.segment);
    return true;
  }
  Recv& recv = recvs_[receiving_];
  const std::size_t length = frame.length;
  if (frame.total != recv.bytes || length > recv.bytes - (recv.moved - frame_moved_)) {
    throw_length_mismatch(frame.total, recv.bytes);
  }
  // Whole cache lines except at the end, so that no element is cut.
  const std::size_t part = std::min(length - frame_moved_, budget / kCacheLine * kCacheLine);
  if (frame.kind == FrameKind::pointer) {
    move_pointed(recv, slot, part);
  } else {
    apply_arrival(recv.arrival, recv.data + recv.moved, payload_of(slot) + frame_moved_, part);
  }
  recv.moved += part;
  frame_moved_ += part;
  budget -= part;
  if (frame_moved_ < length) {
    return false;
  }
  recv.arrive_ns = frame.arrive_ns;
  if (recv.moved == recv.bytes) {
    ++receiving_;
  }
  return true;
}

/// From memory that is the peer's to free once it has left.
void MemoryLink::move_pointed(Recv& recv, const Slot& slot, std::size_t bytes) {
  const std::byte* from = payload_of(slot) + frame_moved_;
  in_.reading.store(1, std::memory_order_seq_cst);
  const bool left = in_.writer_left.load(std::memory_order_seq_cst) != 0;
  if (!left) {
    apply_arrival(recv.arrival, recv.data + recv.moved, from, bytes);
  }
  in_.reading.store(0, std::memory_order_seq_cst);
  if (left) {
    throw PeerLost(fmt::format("rank {} left while rank {} read its message", peer_, self_));
  }
}

const std::byte* MemoryLink::payload_of(const Slot& slot) {
  const Frame& frame = slot.frame;
  const bool one_process = ends_.pool == nullptr;
  if (frame.kind == FrameKind::inline_bytes && frame.length <= kInlineBytes) {
    return slot.payload.data();
  }
  if (frame.kind == FrameKind::pointer && one_process) {
    return reinterpret_cast<const std::byte*>(frame.address);
  }
  if (frame.kind == FrameKind::segment && !one_process) {
    auto found = peer_segments_.find(frame.segment);
    if (found == peer_segments_.end()) {
      try {
        found =
            peer_segments_.emplace(frame.segment, Segment::open(ends_.peer_pid, frame.fd, 0)).first;
      } catch (const Error& error) {  // its descriptors went with it
        throw PeerLost(fmt::format("rank {}: lost rank {}: {}", self_, peer_, error.what()));
      }
    }
    const std::size_t size = found->second.size();
    if (frame.length <= size && frame.address <= size - frame.length) {
      return found->second.data() + frame.address;
    }
  }
  throw Error(fmt::format("rank {}: a broken frame from rank {}", self_, peer_));
}

// --- sending -------------------------------------------------------------------------------------

bool MemoryLink::push() {
  bool moved = push_retired();
  while (sending_ < sends_.size() && has_room()) {
    Send& send = sends_[sending_];
    if (!push_piece(send)) {
      break;
    }
    moved = true;
    if (send.moved == send.bytes) {
      ++sending_;
    }
  }
  if (moved) {
    ends_.peer->ring();
  }
  return moved;
}

bool MemoryLink::push_piece(Send& send) {
  Frame frame{};
  frame.total = send.bytes;
  const std::byte* from = send.data + send.moved;
  const std::size_t left = send.bytes - send.moved;
  if (pacer_.shaped() || send.bytes <= kEagerBytes) {
    frame.kind = FrameKind::inline_bytes;
    frame.length = std::min(left, kInlineBytes);
    if (pacer_.shaped()) {
      const std::optional<std::int64_t> arrive = pacer_.depart(frame.length, send.posted_ns);
      if (!arrive) {
        return false;
      }
      frame.arrive_ns = *arrive;
    }
    publish(frame, from);
  } else if (ends_.pool == nullptr) {
    frame.kind = FrameKind::pointer;
    frame.length = left;
    frame.address = reinterpret_cast<std::uintptr_t>(from);
    publish(frame, nullptr);
    send.complete_at = published_;
  } else if (const auto place = ends_.pool->find(send.data, send.bytes)) {
    frame.kind = FrameKind::segment;
    frame.length = left;
    frame.address = place->offset;
    frame.segment = place->segment;
    frame.fd = place->fd;
    publish(frame, nullptr);
    send.complete_at = published_;
  } else {
    return push_staged(send);
  }
  send.moved += frame.length;
  return true;
}

bool MemoryLink::push_staged(Send& send) {
  if (staging_.data() == nullptr) {
    staging_ = Segment(kStagePiece * kStagePieces, true);
  }
  if (staged_by_[next_piece_] > acknowledged_) {
    acknowledged_ = out_.consumed.load(std::memory_order_seq_cst);
    if (staged_by_[next_piece_] > acknowledged_) {
      return false;
    }
  }
  Frame frame{};
  frame.kind = FrameKind::segment;
  frame.total = send.bytes;
  frame.length = std::min(send.bytes - send.moved, kStagePiece);
  frame.address = next_piece_ * kStagePiece;
  frame.segment = kStagingSegment;
  frame.fd = staging_.descriptor();
  std::memcpy(staging_.data() + frame.address, send.data + send.moved, frame.length);
  publish(frame, nullptr);
  staged_by_[next_piece_] = published_;
  next_piece_ = (next_piece_ + 1) % kStagePieces;
  send.moved += frame.length;
  return true;
}

bool MemoryLink::push_retired() {
  if (ends_.pool == nullptr) {
    return false;
  }
  const std::vector<std::uint32_t>& retired = ends_.pool->retired();
  bool moved = false;
  for (; retired_told_ < retired.size() && has_room(); ++retired_told_) {
    Frame frame{};
    frame.kind = FrameKind::retire;
    frame.segment = retired[retired_told_];
    publish(frame, nullptr);
    moved = true;
  }
  return moved;
}

void MemoryLink::publish(const Frame& frame, const std::byte* inline_payload) {
  Slot& slot = out_.slots[published_ % kChannelSlots];
  slot.frame.total = frame.total;
  slot.frame.length = frame.length;
  slot.frame.address = frame.address;
  slot.frame.arrive_ns = frame.arrive_ns;
  slot.frame.segment = frame.segment;
  slot.frame.fd = frame.fd;
  slot.frame.kind = frame.kind;
  if (inline_payload != nullptr && frame.length > 0) {
    std::memcpy(slot.payload.data(), inline_payload, frame.length);
  }
  ++published_;
  slot.frame.turn.store(published_, std::memory_order_seq_cst);
  bytes_sent_ += frame.length + sizeof(Frame);
}

bool MemoryLink::reap() {
  bool moved = false;
  while (sending_ > 0) {
    const std::uint64_t mark = sends_.front().complete_at;
    if (mark > acknowledged_) {
      acknowledged_ = out_.consumed.load(std::memory_order_seq_cst);
      if (mark > acknowledged_) {
        break;
      }
    }
    sends_.pop_front();
    --sending_;
    moved = true;
  }
  if (!sends_.empty() && out_.reader_left.load(std::memory_order_seq_cst) != 0 &&
      out_.consumed.load(std::memory_order_seq_cst) == acknowledged_) {
    throw PeerLost(fmt::format("rank {} left while rank {} sent to it", peer_, self_));
  }
  return moved;
}

bool MemoryLink::has_room() {
  if (published_ - acknowledged_ == kChannelSlots) {
    acknowledged_ = out_.consumed.load(std::memory_order_seq_cst);
  }
  return published_ - acknowledged_ < kChannelSlots;
}

}  // namespace paceline
