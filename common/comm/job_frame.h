// SPDX-License-Identifier: Apache-2.0
// The wire format between a job's hub and its members: length-prefixed little-endian frames, every
// length checked before memory is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

inline constexpr std::size_t kFrameHeaderBytes = 12;
inline constexpr std::size_t kMaxHelloBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMaxReasonBytes = std::size_t{4} << 10;
inline constexpr std::size_t kMaxBlobBytes = std::size_t{64} << 20;     ///< of one member
inline constexpr std::size_t kMaxResultBytes = std::size_t{512} << 20;  ///< of all members together

enum class FrameType : std::uint8_t {
  hello = 1,  ///< member → hub, the first frame
  heartbeat,  ///< both ways, empty
  gather,     ///< member → hub: its part of a collective
  goodbye,    ///< member → hub, empty: a close that follows is no loss
  failed,     ///< member → hub: why it fails
  welcome,    ///< hub → member, empty: all have joined
  result,     ///< hub → member: all parts of a collective
  job_over,   ///< hub → member: why the job ends, or why the member is refused
};

struct Frame {
  FrameType type;
  std::string payload;
};

struct Hello {
  std::uint64_t nonce = 0;
  std::uint32_t member = 0;
  std::uint32_t world = 0;
  std::uint32_t servers = 0;
  std::string digest;
};

enum class JobGroup : std::uint8_t { workers, everyone };
inline constexpr std::size_t kJobGroups = 2;

struct Gather {
  JobGroup group = JobGroup::workers;
  std::uint64_t sequence = 0;
  std::string blob;
};

struct GatherResult {
  JobGroup group = JobGroup::workers;
  std::uint64_t sequence = 0;
  std::vector<std::string> blobs;
};

/// Which exception the members' waits throw.
enum class EndKind : std::uint8_t { error, peer_lost, timeout, config, other_job };

struct JobEnd {
  EndKind kind = EndKind::error;
  std::string reason;
};
[[nodiscard]] std::exception_ptr to_exception(const JobEnd& end);
[[nodiscard]] JobEnd to_job_end(const std::exception& error);

/// Whole frames, header included. Reasons are cut to kMaxReasonBytes; blobs and digests that are
/// too long throw Error.
[[nodiscard]] std::string encode(const Hello& hello);
[[nodiscard]] std::string encode(const Gather& gather);
[[nodiscard]] std::string encode(const GatherResult& result);
/// `type` is failed or job_over.
[[nodiscard]] std::string encode(FrameType type, const JobEnd& end);
[[nodiscard]] std::string encode_empty(FrameType type);

/// Payloads. Throw Error for anything that encode() cannot have made.
[[nodiscard]] Hello decode_hello(std::string_view payload);
[[nodiscard]] Gather decode_gather(std::string_view payload);
[[nodiscard]] GatherResult decode_result(std::string_view payload);
[[nodiscard]] JobEnd decode_end(std::string_view payload);

/// Cuts a stream of untrusted bytes into frames. What it may hold grows with what its owner allows:
/// at first only a hello.
class FrameReader {
 public:
  enum class From : std::uint8_t { stranger, member, hub };
  explicit FrameReader(From from) : from_(from) {}

  /// The sender has been identified; applies from the next header on.
  void set_sender(From from) noexcept { from_ = from; }
  /// Takes `bytes` up to the end of one frame and drops them from the span's front. True when
  /// `frame` got one. Throws Error (wrong magic, version, type or length); the stream is then lost.
  [[nodiscard]] bool take(std::span<const char>& bytes, Frame& frame);

 private:
  void read_header();

  From from_;
  std::string header_;
  std::string payload_;
  std::size_t length_ = 0;
};

}  // namespace paceline
