// SPDX-License-Identifier: Apache-2.0
// A link over TCP. The data path is plain non-blocking sendmsg and recvmsg, straight from and into
// the user's memory; what is to be added goes through a buffer that fits into the L2 cache.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "common/base/buffer.h"
#include "common/comm/file_descriptor.h"
#include "common/comm/link.h"

namespace paceline {

/// Precedes every frame on the wire, little-endian. A message is one frame or, under the emulated
/// NIC, one frame per piece.
struct TcpFrame {
  static constexpr std::uint32_t kMagic = 0x6d66'6c70;  // "plfm"
  std::uint32_t magic = kMagic;
  std::uint32_t reserved = 0;
  std::uint64_t total = 0;     ///< bytes of the whole message
  std::uint64_t length = 0;    ///< bytes of this frame
  std::int64_t arrive_ns = 0;  ///< emulated arrival; 0: at once
};
static_assert(sizeof(TcpFrame) == 32);

class TcpLink final : public Link {
 public:
  /// `sockets` (at least one) are connected and non-blocking; message k travels on socket k mod
  /// their number, on both ends alike. `incoming_shaped`: the peer sends frames per piece.
  TcpLink(int self, int peer, std::vector<FileDescriptor> sockets, const Pacer& pacer,
          bool incoming_shaped);

  bool progress() override;
  void add_poll_descriptors(std::vector<pollfd>& descriptors) const override;

 private:
  struct OutFrame {
    TcpFrame header;
    const std::byte* data;
    std::size_t sent = 0;  ///< bytes of header and payload together
    bool last = false;     ///< of its message
  };

  struct Stream {
    FileDescriptor socket;
    std::deque<OutFrame> out;
    std::uint64_t filling = 0;   ///< message number (from 0) that becomes frames next
    std::uint64_t flushing = 0;  ///< message number whose frame is at the front of `out`

    std::uint64_t taking = 0;  ///< message number that is received now
    TcpFrame header;
    std::size_t header_got = 0;
    std::size_t payload_got = 0;  ///< of the current frame
    Buffer staging;               ///< made by the first message that is added
    std::size_t staged = 0;       ///< bytes at its start that wait for the rest of their element
  };

  bool fill(Stream& stream);
  bool flush(Stream& stream);
  void account_sent(Stream& stream, std::size_t bytes);
  bool complete_sends();

  bool receive(Stream& stream);
  std::ptrdiff_t read_some(Stream& stream, Recv& recv);
  void account_payload(Stream& stream, Recv& recv, std::size_t bytes);
  void check_header(const Stream& stream, const Recv& recv) const;
  void end_frame(Stream& stream, Recv& recv);
  [[noreturn]] void throw_lost(const char* doing, int error) const;

  std::vector<Stream> streams_;
  bool incoming_shaped_;
};

}  // namespace paceline
