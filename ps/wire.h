// SPDX-License-Identifier: Apache-2.0
// The parameter server's messages: a fixed little-endian header and an optional payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/error.h"
#include "common/comm/transport.h"

namespace paceline {

/// A message that does not follow the wire format, or not the protocol. Answered, never fatal to
/// the server.
class WireError : public Error {
 public:
  using Error::Error;
};

enum class MessageKind : std::uint8_t {
  hello = 1,  ///< worker: here I am; payload: a JobDescription
  welcome,    ///< server: accepted
  init,       ///< worker: first weights of a key (payload)
  pull,       ///< worker: send me the key's weights, once they are set
  push,       ///< worker: a gradient (payload, encoded with kFlagEncoded); answered by `weights`
  weights,    ///< server: a key's weights (payload) at `version`
  drain,      ///< worker: nothing of mine is in flight; answered when all workers have said so
  state_get,  ///< worker: send me a key's state
  state,      ///< server: a key's weights, version and optimizer state (payload)
  state_put,  ///< worker: replace a key's state (payload)
  ack,        ///< server: init, drain or state_put is done
  norms,      ///< server: all pushes of a key are here; payload: their norms (whole_gradient.h)
  apply,      ///< worker: update the key; payload: by which factors; answered by `weights`
  stamp,      ///< either: message `sequence` arrives at `arrive_ns` (emulated NIC only)
  goodbye,    ///< worker: I need nothing more; my clock is infinite
  error,      ///< server: your message was refused; payload: why, as text
};
inline constexpr std::uint8_t kMessageKinds = static_cast<std::uint8_t>(MessageKind::error);

[[nodiscard]] std::string_view to_string(MessageKind kind) noexcept;

/// Set where a `stamp` for this message follows.
inline constexpr std::uint16_t kFlagStamped = 1;
/// Set on `weights` where the push was refused by the ApplyPolicy and not applied.
inline constexpr std::uint16_t kFlagRejected = 2;
/// Set on `weights` that answer a pull.
inline constexpr std::uint16_t kFlagPulled = 4;
/// Set on `push` whose payload is a message of the job's codec (common/compress); dtype is f32.
inline constexpr std::uint16_t kFlagEncoded = 8;

/// Set on `apply` where the gradient is not finite and the update is left out.
inline constexpr std::uint16_t kFlagSkipped = 16;

struct Header {
  MessageKind kind = MessageKind::hello;
  DataType dtype = DataType::f32;
  std::uint16_t flags = 0;
  std::uint32_t worker = 0;         ///< rank that sends, or that the server answers
  std::uint32_t server = 0;         ///< server that answers, or is addressed
  std::uint32_t key = 0;            ///< index into the Partition's keys
  std::uint64_t nonce = 0;          ///< of the job
  std::uint64_t payload_bytes = 0;  ///< length of the payload frame
  std::uint64_t sequence = 0;       ///< counts a sender's messages to one peer, for `stamp`
  std::uint64_t clock = 0;      ///< pushes of this worker to this key before this one; echoed back
  std::uint64_t version = 0;    ///< push: version it is based on; weights, state: their version
  std::uint64_t staleness = 0;  ///< weights: updates between this worker's pull and its push's turn
  std::uint64_t samples = 0;    ///< push, norms: samples summed in the gradient
  float lr = 0.0F;              ///< push: learning rate
  std::uint64_t held_ns = 0;    ///< weights: time the server held the push for slower workers
  std::uint64_t step = 0;       ///< push: the worker's step; codecs choose by it
  std::int64_t arrive_ns = 0;   ///< stamp: CLOCK_MONOTONIC at which message `sequence` arrives

  bool operator==(const Header&) const = default;
};

inline constexpr std::size_t kHeaderBytes = 128;
/// No payload is longer: four 4 MiB arrays (weights, Adam's moments and a mean square of one key)
/// and their names.
inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{17} << 20;

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept;

/// Checks every field that can be checked without knowing the job: length, magic, version, kind,
/// dtype, flags, reserved bytes, finite lr, and that `payload_bytes` is the length of the payload
/// that came along. Throws WireError.
[[nodiscard]] Header decode(std::span<const std::byte> frame, std::uint64_t payload_bytes);

}  // namespace paceline
