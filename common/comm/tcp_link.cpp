// SPDX-License-Identifier: Apache-2.0
#include "common/comm/tcp_link.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/error.h"
#include "common/comm/reduce.h"

namespace paceline {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

namespace {

constexpr std::size_t kBytesPerCall = 256 * 1024;  // stays in the L2 cache between two copies
constexpr std::size_t kBytesPerProgress = 1024 * 1024;
constexpr std::size_t kOpenFrames = 8;
constexpr std::size_t kStagingBytes = 256 * 1024;

iovec part(const void* data, std::size_t bytes) noexcept {
  return {const_cast<void*>(data), bytes};
}

bool would_block(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

TcpLink::TcpLink(int self, int peer, std::vector<FileDescriptor> sockets, const Pacer& pacer,
                 bool incoming_shaped)
    : Link(self, peer, pacer), incoming_shaped_(incoming_shaped) {
  for (FileDescriptor& socket : sockets) {
    Stream stream;
    stream.socket = std::move(socket);
    stream.filling = stream.flushing = stream.taking = streams_.size();
    streams_.push_back(std::move(stream));
  }
}

bool TcpLink::progress() {
  bool moved = false;
  for (Stream& stream : streams_) {
    if (!sends_.empty()) {
      moved |= fill(stream);
      moved |= flush(stream);
    }
    if (!recvs_.empty()) {
      moved |= receive(stream);
    }
  }
  moved |= complete_sends();
  moved |= complete_receives();
  return moved;
}

void TcpLink::add_poll_descriptors(std::vector<pollfd>& descriptors) const {
  for (const Stream& stream : streams_) {
    const bool takes = stream.taking < first_recv() + recvs_.size();
    const int events = (takes ? POLLIN : 0) | (stream.out.empty() ? 0 : POLLOUT);
    if (events != 0) {
      descriptors.push_back({stream.socket.get(), static_cast<short>(events), 0});
    }
  }
}

void TcpLink::throw_lost(const char* doing, int error) const {
  throw PeerLost(fmt::format("rank {}: lost rank {} while {}: {}", self_, peer_, doing,
                             error == 0 ? "it closed its connection" : std::strerror(error)));
}

// --- sending -------------------------------------------------------------------------------------

bool TcpLink::fill(Stream& stream) {
  bool moved = false;
  while (stream.out.size() < kOpenFrames && stream.filling < first_send() + sends_.size()) {
    Send& send = sends_[stream.filling - first_send()];
    OutFrame frame{.header = {}, .data = send.data + send.moved};
    frame.header.total = send.bytes;
    frame.header.length = send.bytes - send.moved;
    if (pacer_.shaped()) {
      frame.header.length = std::min<std::uint64_t>(frame.header.length, kNicPieceBytes);
      const std::optional<std::int64_t> arrive = pacer_.depart(frame.header.length, send.posted_ns);
      if (!arrive) {
        break;
      }
      frame.header.arrive_ns = *arrive;
    }
    send.moved += frame.header.length;
    frame.last = send.moved == send.bytes;
    stream.filling += frame.last ? streams_.size() : 0;
    stream.out.push_back(frame);
    moved = true;
  }
  return moved;
}

bool TcpLink::flush(Stream& stream) {
  bool moved = false;
  std::size_t budget = kBytesPerProgress;
  while (!stream.out.empty() && budget > 0) {
    std::array<iovec, 2 * kOpenFrames> parts;
    std::size_t count = 0;
    std::size_t wanted = 0;
    for (const OutFrame& frame : stream.out) {
      if (wanted >= kBytesPerCall) {
        break;
      }
      const std::size_t header_sent = std::min(frame.sent, sizeof(TcpFrame));
      const std::size_t payload_sent = frame.sent - header_sent;
      if (header_sent < sizeof(TcpFrame)) {
        parts[count++] = part(reinterpret_cast<const std::byte*>(&frame.header) + header_sent,
                              sizeof(TcpFrame) - header_sent);
        wanted += sizeof(TcpFrame) - header_sent;
      }
      const std::size_t payload =
          std::min<std::size_t>(frame.header.length - payload_sent, kBytesPerCall);
      if (payload > 0) {
        parts[count++] = part(frame.data + payload_sent, payload);
        wanted += payload;
      }
      if (payload_sent + payload < frame.header.length) {
        break;  // What follows must not overtake the rest.
      }
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(stream.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (would_block(errno)) {
        break;
      }
      throw_lost("sending to it", errno);
    }
    moved = true;
    account_sent(stream, static_cast<std::size_t>(sent));
    budget -= std::min(budget, static_cast<std::size_t>(sent));
    if (static_cast<std::size_t>(sent) < wanted) {
      break;
    }
  }
  return moved;
}

void TcpLink::account_sent(Stream& stream, std::size_t bytes) {
  bytes_sent_ += bytes;
  while (!stream.out.empty()) {
    OutFrame& frame = stream.out.front();
    const std::size_t size = sizeof(TcpFrame) + frame.header.length;
    const std::size_t now = std::min(bytes, size - frame.sent);
    frame.sent += now;
    bytes -= now;
    if (frame.sent < size) {
      break;
    }
    if (frame.last) {
      sends_[stream.flushing - first_send()].complete_at = 1;
      stream.flushing += streams_.size();
    }
    stream.out.pop_front();
  }
}

bool TcpLink::complete_sends() {
  bool moved = false;
  while (!sends_.empty() && sends_.front().complete_at != 0) {
    sends_.pop_front();
    moved = true;
  }
  return moved;
}

// --- receiving -----------------------------------------------------------------------------------

bool TcpLink::receive(Stream& stream) {
  bool moved = false;
  std::size_t budget = kBytesPerProgress;
  while (budget > 0 && stream.taking < first_recv() + recvs_.size()) {
    Recv& recv = recvs_[stream.taking - first_recv()];
    const std::ptrdiff_t got = read_some(stream, recv);
    if (got < 0) {
      break;
    }
    moved = true;
    auto bytes = static_cast<std::size_t>(got);
    budget -= std::min(budget, bytes);
    if (stream.header_got < sizeof(TcpFrame)) {
      const std::size_t of_header = std::min(bytes, sizeof(TcpFrame) - stream.header_got);
      stream.header_got += of_header;
      bytes -= of_header;
      if (stream.header_got == sizeof(TcpFrame)) {
        check_header(stream, recv);
      }
    }
    account_payload(stream, recv, bytes);
    if (stream.header_got == sizeof(TcpFrame) && stream.payload_got == stream.header.length) {
      end_frame(stream, recv);
    }
  }
  return moved;
}

/// Reads the rest of the header and, where its length is known beforehand or by now, payload of the
/// current frame. Returns the bytes read, -1 if there are none.
std::ptrdiff_t TcpLink::read_some(Stream& stream, Recv& recv) {
  std::array<iovec, 2> parts;
  std::size_t count = 0;
  const bool header_missing = stream.header_got < sizeof(TcpFrame);
  if (header_missing) {
    parts[count++] = part(reinterpret_cast<std::byte*>(&stream.header) + stream.header_got,
                          sizeof(TcpFrame) - stream.header_got);
  }
  if (!header_missing || !incoming_shaped_) {
    const std::size_t left =
        (header_missing ? recv.bytes : stream.header.length) - stream.payload_got;
    if (recv.arrival.add && left > 0) {
      if (stream.staging.size() == 0) {
        stream.staging = Buffer(kStagingBytes);
      }
      parts[count++] = part(stream.staging.data() + stream.staged,
                            std::min(left, kStagingBytes - stream.staged));
    } else if (left > 0) {
      parts[count++] = part(recv.data + recv.moved, std::min(left, kBytesPerCall));
    }
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const ssize_t got = ::recvmsg(stream.socket.get(), &message, MSG_DONTWAIT);
  if (got < 0 && would_block(errno)) {
    return -1;
  }
  if (got <= 0) {
    throw_lost("receiving from it", got == 0 ? 0 : errno);
  }
  return got;
}

void TcpLink::check_header(const Stream& stream, const Recv& recv) const {
  const TcpFrame& header = stream.header;
  if (header.magic != TcpFrame::kMagic) {
    throw Error(fmt::format("rank {}: rank {} sent bytes that are no frame", self_, peer_));
  }
  if (header.total != recv.bytes) {
    throw_length_mismatch(header.total, recv.bytes);
  }
  const std::size_t left = recv.bytes - recv.moved;
  const bool right = incoming_shaped_
                         ? header.length <= left && (header.length > 0 || recv.bytes == 0) &&
                               (header.length == left || header.length % sizeof(std::uint64_t) == 0)
                         : header.length == recv.bytes;
  if (!right) {
    throw Error(
        fmt::format("rank {}: rank {} sent a frame of {} bytes where {} are left of a "
                    "message",
                    self_, peer_, header.length, left));
  }
}

void TcpLink::account_payload(Stream& stream, Recv& recv, std::size_t bytes) {
  stream.payload_got += bytes;
  if (!recv.arrival.add) {
    recv.moved += bytes;
    return;
  }
  if (bytes == 0) {
    return;
  }
  stream.staged += bytes;
  const std::size_t element = size_of(recv.arrival.type);
  const std::size_t whole = stream.staged / element * element;
  add_elements(recv.data + recv.moved, stream.staging.data(), whole, recv.arrival.type);
  recv.moved += whole;
  stream.staged -= whole;
  std::memmove(stream.staging.data(), stream.staging.data() + whole, stream.staged);
}

void TcpLink::end_frame(Stream& stream, Recv& recv) {
  recv.arrive_ns = std::max(recv.arrive_ns, stream.header.arrive_ns);
  stream.header_got = 0;
  stream.payload_got = 0;
  if (recv.moved < recv.bytes) {
    return;
  }
  recv.all_moved = true;
  stream.taking += streams_.size();
  while (receiving_ < recvs_.size() && recvs_[receiving_].all_moved) {
    ++receiving_;
  }
}

}  // namespace paceline
