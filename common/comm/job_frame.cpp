// SPDX-License-Identifier: Apache-2.0
#include "common/comm/job_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>

#include "common/base/error.h"
#include "common/comm/job.h"

namespace paceline {

namespace {

constexpr std::uint32_t kMagic = 0x4a4c4350;  // "PCLJ"
constexpr std::uint8_t kVersion = 1;

template <std::unsigned_integral T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

/// Reads a payload front to back; throws Error where it is too short.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view payload) : left_(payload) {}

  template <std::unsigned_integral T>
  [[nodiscard]] T get() {
    const std::string_view bytes = take(sizeof(T));
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(
          value | static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i)));
    }
    return value;
  }
  [[nodiscard]] std::string_view take(std::size_t bytes) {
    if (bytes > left_.size()) {
      throw Error(fmt::format("job frame ends {} bytes early", bytes - left_.size()));
    }
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }
  [[nodiscard]] std::string_view rest() { return take(left_.size()); }
  void expect_end() const {
    if (!left_.empty()) {
      throw Error(fmt::format("job frame has {} bytes too many", left_.size()));
    }
  }

 private:
  std::string_view left_;
};

std::string with_header(FrameType type, std::string_view payload) {
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  put(frame, kMagic);
  put(frame, kVersion);
  put(frame, static_cast<std::uint8_t>(type));
  put(frame, std::uint16_t{0});
  put(frame, static_cast<std::uint32_t>(payload.size()));
  frame.append(payload);
  return frame;
}

std::string_view cut(std::string_view reason) {
  return reason.substr(0, kMaxReasonBytes);
}

JobGroup decode_group(std::uint8_t value) {
  if (value >= kJobGroups) {
    throw Error(fmt::format("job frame names group {}, there are {}", value, kJobGroups));
  }
  return static_cast<JobGroup>(value);
}

/// Longest payload of a frame type from a sender; nothing for a type it must not send.
struct Allowed {
  bool type = false;
  std::size_t bytes = 0;
};
Allowed allowed(FrameReader::From from, FrameType type) {
  constexpr std::size_t kPrefix = 64;
  using From = FrameReader::From;
  switch (type) {
    case FrameType::hello:
      return {from == From::stranger, kMaxHelloBytes};
    case FrameType::heartbeat:
      return {from != From::stranger, 0};
    case FrameType::gather:
      return {from == From::member, kMaxBlobBytes + kPrefix};
    case FrameType::goodbye:
      return {from == From::member, 0};
    case FrameType::failed:
      return {from == From::member, kMaxReasonBytes + kPrefix};
    case FrameType::welcome:
      return {from == From::hub, 0};
    case FrameType::result:
      return {from == From::hub, kMaxResultBytes};
    case FrameType::job_over:
      return {from == From::hub, kMaxReasonBytes + kPrefix};
  }
  return {};
}

}  // namespace

std::exception_ptr to_exception(const JobEnd& end) {
  switch (end.kind) {
    case EndKind::peer_lost:
      return std::make_exception_ptr(PeerLost(end.reason));
    case EndKind::timeout:
      return std::make_exception_ptr(TimeoutError(end.reason));
    case EndKind::config:
      return std::make_exception_ptr(ConfigError(end.reason));
    case EndKind::other_job:
      return std::make_exception_ptr(HubLost(end.reason));
    case EndKind::error:
      break;
  }
  return std::make_exception_ptr(Error(end.reason));
}

JobEnd to_job_end(const std::exception& error) {
  EndKind kind = EndKind::error;
  if (dynamic_cast<const PeerLost*>(&error) != nullptr) {
    kind = EndKind::peer_lost;
  } else if (dynamic_cast<const TimeoutError*>(&error) != nullptr) {
    kind = EndKind::timeout;
  } else if (dynamic_cast<const ConfigError*>(&error) != nullptr) {
    kind = EndKind::config;
  }
  return {kind, error.what()};
}

std::string encode(const Hello& hello) {
  constexpr std::size_t kFixed = 64;
  if (hello.digest.size() > kMaxHelloBytes - kFixed) {
    throw Error(fmt::format("configuration digest of {} bytes is too long", hello.digest.size()));
  }
  std::string payload;
  put(payload, hello.nonce);
  put(payload, hello.member);
  put(payload, hello.world);
  put(payload, hello.servers);
  payload.append(hello.digest);
  return with_header(FrameType::hello, payload);
}

std::string encode(const Gather& gather) {
  if (gather.blob.size() > kMaxBlobBytes) {
    throw Error(fmt::format("a member's part of a collective is {} bytes, at most {} are allowed",
                            gather.blob.size(), kMaxBlobBytes));
  }
  std::string payload;
  payload.reserve(gather.blob.size() + sizeof(std::uint64_t) + 1);
  put(payload, static_cast<std::uint8_t>(gather.group));
  put(payload, gather.sequence);
  payload.append(gather.blob);
  return with_header(FrameType::gather, payload);
}

std::string encode(const GatherResult& result) {
  std::size_t bytes = sizeof(std::uint64_t) + sizeof(std::uint32_t) + 1;
  for (const std::string& blob : result.blobs) {
    bytes += blob.size() + sizeof(std::uint32_t);
  }
  if (bytes > kMaxResultBytes) {
    throw Error(
        fmt::format("a collective of {} bytes, at most {} are allowed", bytes, kMaxResultBytes));
  }
  std::string payload;
  payload.reserve(bytes);
  put(payload, static_cast<std::uint8_t>(result.group));
  put(payload, result.sequence);
  put(payload, static_cast<std::uint32_t>(result.blobs.size()));
  for (const std::string& blob : result.blobs) {
    put(payload, static_cast<std::uint32_t>(blob.size()));
  }
  for (const std::string& blob : result.blobs) {
    payload.append(blob);
  }
  return with_header(FrameType::result, payload);
}

std::string encode(FrameType type, const JobEnd& end) {
  std::string payload;
  put(payload, static_cast<std::uint8_t>(end.kind));
  payload.append(cut(end.reason));
  return with_header(type, payload);
}

std::string encode_empty(FrameType type) {
  return with_header(type, {});
}

Hello decode_hello(std::string_view payload) {
  PayloadReader reader(payload);
  Hello hello;
  hello.nonce = reader.get<std::uint64_t>();
  hello.member = reader.get<std::uint32_t>();
  hello.world = reader.get<std::uint32_t>();
  hello.servers = reader.get<std::uint32_t>();
  hello.digest = reader.rest();
  return hello;
}

Gather decode_gather(std::string_view payload) {
  PayloadReader reader(payload);
  Gather gather;
  gather.group = decode_group(reader.get<std::uint8_t>());
  gather.sequence = reader.get<std::uint64_t>();
  gather.blob = reader.rest();
  return gather;
}

GatherResult decode_result(std::string_view payload) {
  PayloadReader reader(payload);
  GatherResult result;
  result.group = decode_group(reader.get<std::uint8_t>());
  result.sequence = reader.get<std::uint64_t>();
  const std::size_t count = reader.get<std::uint32_t>();
  PayloadReader lengths(reader.take(count * sizeof(std::uint32_t)));
  result.blobs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    result.blobs.emplace_back(reader.take(lengths.get<std::uint32_t>()));
  }
  reader.expect_end();
  return result;
}

JobEnd decode_end(std::string_view payload) {
  PayloadReader reader(payload);
  JobEnd end;
  const auto kind = reader.get<std::uint8_t>();
  if (kind > static_cast<std::uint8_t>(EndKind::other_job)) {
    throw Error(fmt::format("job frame gives an end of unknown kind {}", kind));
  }
  end.kind = static_cast<EndKind>(kind);
  end.reason = reader.rest();
  return end;
}

bool FrameReader::take(std::span<const char>& bytes, Frame& frame) {
  const auto move_to = [&bytes](std::string& target, std::size_t whole) {
    const std::size_t count = std::min(whole - target.size(), bytes.size());
    target.append(bytes.data(), count);
    bytes = bytes.subspan(count);
    return target.size() == whole;
  };
  if (header_.size() < kFrameHeaderBytes) {
    if (!move_to(header_, kFrameHeaderBytes)) {
      return false;
    }
    read_header();
  }
  if (!move_to(payload_, length_)) {
    return false;
  }
  frame.type = static_cast<FrameType>(header_[5]);
  frame.payload = std::move(payload_);
  payload_.clear();
  header_.clear();
  return true;
}

void FrameReader::read_header() {
  PayloadReader reader(header_);
  if (const auto magic = reader.get<std::uint32_t>(); magic != kMagic) {
    throw Error(fmt::format("job frame starts with {:#010x} instead of {:#010x}", magic, kMagic));
  }
  if (const auto version = reader.get<std::uint8_t>(); version != kVersion) {
    throw Error(fmt::format("job frame of version {}, this program speaks {}", version, kVersion));
  }
  const auto type = reader.get<std::uint8_t>();
  const auto reserved = reader.get<std::uint16_t>();
  length_ = reader.get<std::uint32_t>();
  const Allowed limit = allowed(from_, static_cast<FrameType>(type));
  if (!limit.type || reserved != 0) {
    throw Error(fmt::format("unexpected job frame of type {}", type));
  }
  if (length_ > limit.bytes) {
    throw Error(fmt::format("job frame of type {} announces {} bytes, at most {} are allowed", type,
                            length_, limit.bytes));
  }
}

}  // namespace paceline
