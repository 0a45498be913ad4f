// SPDX-License-Identifier: Apache-2.0
#include "common/comm/mesh_transport.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/base/buffer.h"
#include "common/base/cores.h"
#include "common/base/error.h"

namespace paceline {

namespace {

// How long a wait keeps the processor: first spinning, then yielding, then it blocks.
constexpr std::int64_t kSpinNs = 20'000;
constexpr std::int64_t kYieldNs = 80'000;
constexpr int kIdleCallsPerClock = 8;

/// A rank that fails takes its links down, which its peers see as a loss of their own. The control
/// plane knows who was first; it gets this long to say so.
constexpr std::int64_t kLossGraceNs = 500'000'000;

void pause_processor() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class PrivateBuffer final : public CommBuffer {
 public:
  explicit PrivateBuffer(std::size_t bytes) : buffer_(bytes) {}
  [[nodiscard]] std::span<std::byte> bytes() noexcept override {
    return {buffer_.data(), buffer_.size()};
  }

 private:
  Buffer buffer_;
};

class SharedBuffer final : public CommBuffer {
 public:
  SharedBuffer(std::size_t bytes, std::shared_ptr<SegmentPool> pool)
      : segment_(bytes, true),
        pool_(std::move(pool)),
        number_(pool_->add({segment_.data(), segment_.size()}, segment_.descriptor())) {}
  ~SharedBuffer() override { pool_->remove(number_); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept override {
    return {segment_.data(), segment_.size()};
  }

 private:
  Segment segment_;
  std::shared_ptr<SegmentPool> pool_;
  std::uint32_t number_;
};

}  // namespace

MeshTransport::MeshTransport(Parts parts, AbortToken& abort)
    : parts_(std::move(parts)),
      abort_(abort),
      crowded_(static_cast<int>(parts_.links.size()) > usable_cores()) {}

Link& MeshTransport::link(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank()) {
    throw Error(fmt::format("rank {} has no peer {} in a world of {}", rank(), peer, size()));
  }
  return *parts_.links[static_cast<std::size_t>(peer)];
}

std::unique_ptr<CommBuffer> MeshTransport::allocate(std::size_t bytes) {
  if (parts_.pool == nullptr || bytes == 0) {
    return std::make_unique<PrivateBuffer>(bytes);
  }
  return std::make_unique<SharedBuffer>(bytes, parts_.pool);
}

Ticket MeshTransport::isend(int peer, std::span<const std::byte> data) {
  return {peer, true, link(peer).post_send(data)};
}

Ticket MeshTransport::irecv(int peer, std::span<std::byte> data, Arrival arrival) {
  return {peer, false, link(peer).post_recv(data, arrival)};
}

bool MeshTransport::done(const Ticket& ticket) const noexcept {
  const Link& link = *parts_.links[static_cast<std::size_t>(ticket.peer)];
  return ticket.is_send ? link.send_done(ticket.sequence) : link.recv_done(ticket.sequence);
}

void MeshTransport::leave() noexcept {
  for (const auto& link : parts_.links) {
    if (link != nullptr) {
      link->leave();
    }
  }
}

std::uint64_t MeshTransport::bytes_sent() const noexcept {
  std::uint64_t bytes = 0;
  for (const auto& link : parts_.links) {
    bytes += link != nullptr ? link->bytes_sent() : 0;
  }
  return bytes;
}

bool MeshTransport::progress() {
  abort_.check();
  check_loss();
  bool moved = false;
  for (const auto& link : parts_.links) {
    if (link == nullptr || !link->pending()) {
      continue;
    }
    try {
      moved |= link->progress();
    } catch (const PeerLost&) {
      note_loss();
    }
  }
  if (moved) {
    idle_calls_ = 0;
  }
  return moved;
}

void MeshTransport::note_loss() {
  if (!loss_) {
    loss_ = std::current_exception();
    loss_ns_ = now_ns();
  }
}

void MeshTransport::check_loss() const {
  if (loss_ && now_ns() >= loss_ns_ + kLossGraceNs) {
    std::rethrow_exception(loss_);
  }
}

void MeshTransport::idle(const Deadline& deadline) {
  if (idle_calls_++ == 0) {
    idle_since_ns_ = now_ns();
  }
  if (loss_) {
    sleep_until_ns(std::min(deadline.ns(), now_ns() + 1'000'000));
    return;
  }
  if (!crowded_) {
    pause_processor();
    if (idle_calls_ % kIdleCallsPerClock != 0) {
      return;
    }
  }
  const std::int64_t waited = now_ns() - idle_since_ns_;
  if (!crowded_ && waited < kSpinNs) {
    return;
  }
  if (waited < kYieldNs) {
    sched_yield();
    return;
  }
  block(std::min(deadline.ns(), now_ns() + Nanoseconds(kAbortPollInterval).count()));
}

/// Sleeps until a peer rings, a socket is ready, the emulated NIC is due, or `until_ns`.
void MeshTransport::block(std::int64_t until_ns) {
  poll_.clear();
  if (parts_.inbox != nullptr) {
    poll_.push_back({parts_.inbox->wake_descriptor(), POLLIN, 0});
    parts_.inbox->begin_sleep();
  }
  // Whatever a peer stored before begin_sleep() is found here; what comes later rings.
  if (!progress()) {
    for (const auto& link : parts_.links) {
      if (link != nullptr && link->pending()) {
        link->add_poll_descriptors(poll_);
        until_ns = std::min(until_ns, link->next_event_ns());
      }
    }
    const std::int64_t left = std::max<std::int64_t>(0, until_ns - now_ns());
    const timespec timeout{static_cast<time_t>(left / 1'000'000'000),
                           static_cast<long>(left % 1'000'000'000)};
    ppoll(poll_.data(), poll_.size(), &timeout, nullptr);
  }
  if (parts_.inbox != nullptr) {
    parts_.inbox->end_sleep();
  }
}

}  // namespace paceline
