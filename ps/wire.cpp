// SPDX-License-Identifier: Apache-2.0
#include "ps/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "ps/bytes.h"

namespace paceline {

namespace {

constexpr std::uint32_t kMagic = 0x53504350;  // "PCPS"
constexpr std::uint16_t kWireVersion = 2;
constexpr std::uint16_t kKnownFlags =
    kFlagStamped | kFlagRejected | kFlagPulled | kFlagEncoded | kFlagSkipped;

// Offsets. Bytes from kEnd on are reserved and zero.
constexpr std::size_t kAtMagic = 0;
constexpr std::size_t kAtVersion = 4;
constexpr std::size_t kAtKind = 6;
constexpr std::size_t kAtType = 7;
constexpr std::size_t kAtFlags = 8;
constexpr std::size_t kAtWorker = 12;
constexpr std::size_t kAtServer = 16;
constexpr std::size_t kAtKey = 20;
constexpr std::size_t kAtNonce = 24;
constexpr std::size_t kAtPayload = 32;
constexpr std::size_t kAtSequence = 40;
constexpr std::size_t kAtClock = 48;
constexpr std::size_t kAtBased = 56;
constexpr std::size_t kAtStaleness = 64;
constexpr std::size_t kAtSamples = 72;
constexpr std::size_t kAtRate = 80;
constexpr std::size_t kAtHeld = 88;
constexpr std::size_t kAtArrive = 96;
constexpr std::size_t kAtStep = 104;
constexpr std::size_t kEnd = 112;

bool has_payload(MessageKind kind) noexcept {
  switch (kind) {
    case MessageKind::hello:
    case MessageKind::init:
    case MessageKind::push:
    case MessageKind::weights:
    case MessageKind::state:
    case MessageKind::state_put:
    case MessageKind::norms:
    case MessageKind::apply:
    case MessageKind::error:
      return true;
    default:
      return false;
  }
}

bool is_array(MessageKind kind) noexcept {
  return kind == MessageKind::init || kind == MessageKind::push || kind == MessageKind::weights;
}

void check_payload(const Header& header, std::uint64_t actual) {
  if (header.payload_bytes != actual) {
    throw WireError(fmt::format("{} announces {} payload bytes, {} came", to_string(header.kind),
                                header.payload_bytes, actual));
  }
  if (actual > kMaxPayloadBytes) {
    throw WireError(fmt::format("{} of {} payload bytes is over the limit of {}",
                                to_string(header.kind), actual, kMaxPayloadBytes));
  }
  if (!has_payload(header.kind) && actual != 0) {
    throw WireError(
        fmt::format("{} carries no payload, {} bytes came", to_string(header.kind), actual));
  }
  const bool encoded = (header.flags & kFlagEncoded) != 0;
  if (is_array(header.kind) && !encoded && actual % size_of(header.dtype) != 0) {
    throw WireError(fmt::format("{} of {} bytes is no whole number of elements",
                                to_string(header.kind), actual));
  }
}

}  // namespace

std::string_view to_string(MessageKind kind) noexcept {
  constexpr std::array<std::string_view, kMessageKinds + 1> kNames{
      "nothing", "hello",     "welcome", "init",  "pull",  "push",  "weights", "drain", "state_get",
      "state",   "state_put", "ack",     "norms", "apply", "stamp", "goodbye", "error"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

void encode(const Header& header, std::span<std::byte, kHeaderBytes> out) noexcept {
  std::fill(out.begin(), out.end(), std::byte{0});
  std::byte* at = out.data();
  store_le(at + kAtMagic, kMagic);
  store_le(at + kAtVersion, kWireVersion);
  store_le(at + kAtKind, static_cast<std::uint8_t>(header.kind));
  store_le(at + kAtType, static_cast<std::uint8_t>(header.dtype));
  store_le(at + kAtFlags, header.flags);
  store_le(at + kAtWorker, header.worker);
  store_le(at + kAtServer, header.server);
  store_le(at + kAtKey, header.key);
  store_le(at + kAtNonce, header.nonce);
  store_le(at + kAtPayload, header.payload_bytes);
  store_le(at + kAtSequence, header.sequence);
  store_le(at + kAtClock, header.clock);
  store_le(at + kAtBased, header.version);
  store_le(at + kAtStaleness, header.staleness);
  store_le(at + kAtSamples, header.samples);
  store_le(at + kAtRate, std::bit_cast<std::uint32_t>(header.lr));
  store_le(at + kAtHeld, header.held_ns);
  store_le(at + kAtArrive, static_cast<std::uint64_t>(header.arrive_ns));
  store_le(at + kAtStep, header.step);
}

Header decode(std::span<const std::byte> frame, std::uint64_t payload_bytes) {
  if (frame.size() != kHeaderBytes) {
    throw WireError(fmt::format("header of {} bytes, want {}", frame.size(), kHeaderBytes));
  }
  const std::byte* at = frame.data();
  if (load_le<std::uint32_t>(at + kAtMagic) != kMagic) {
    throw WireError("not a message of Paceline's parameter server (wrong magic)");
  }
  if (const auto version = load_le<std::uint16_t>(at + kAtVersion); version != kWireVersion) {
    throw WireError(fmt::format("wire version {}, this side has {}", version, kWireVersion));
  }
  Header header;
  const auto kind = load_le<std::uint8_t>(at + kAtKind);
  if (kind == 0 || kind > kMessageKinds) {
    throw WireError(fmt::format("unknown message kind {}", kind));
  }
  header.kind = static_cast<MessageKind>(kind);
  const auto type = load_le<std::uint8_t>(at + kAtType);
  if (type > static_cast<std::uint8_t>(DataType::bf16)) {
    throw WireError(fmt::format("unknown element type {}", type));
  }
  header.dtype = static_cast<DataType>(type);
  header.flags = load_le<std::uint16_t>(at + kAtFlags);
  const auto zero = [](std::byte b) { return b == std::byte{0}; };
  if ((header.flags & ~kKnownFlags) != 0 || !zero(at[10]) || !zero(at[11]) ||
      !std::all_of(at + kAtRate + 4, at + kAtHeld, zero) ||
      !std::all_of(at + kEnd, at + kHeaderBytes, zero)) {
    throw WireError("unknown flags or reserved bytes are set");
  }
  header.worker = load_le<std::uint32_t>(at + kAtWorker);
  header.server = load_le<std::uint32_t>(at + kAtServer);
  header.key = load_le<std::uint32_t>(at + kAtKey);
  header.nonce = load_le<std::uint64_t>(at + kAtNonce);
  header.payload_bytes = load_le<std::uint64_t>(at + kAtPayload);
  header.sequence = load_le<std::uint64_t>(at + kAtSequence);
  header.clock = load_le<std::uint64_t>(at + kAtClock);
  header.version = load_le<std::uint64_t>(at + kAtBased);
  header.staleness = load_le<std::uint64_t>(at + kAtStaleness);
  header.samples = load_le<std::uint64_t>(at + kAtSamples);
  header.lr = std::bit_cast<float>(load_le<std::uint32_t>(at + kAtRate));
  header.held_ns = load_le<std::uint64_t>(at + kAtHeld);
  header.arrive_ns = static_cast<std::int64_t>(load_le<std::uint64_t>(at + kAtArrive));
  header.step = load_le<std::uint64_t>(at + kAtStep);
  if (!std::isfinite(header.lr)) {
    throw WireError("learning rate is not finite");
  }
  check_payload(header, payload_bytes);
  return header;
}

}  // namespace paceline
