// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes as a stream from a stranger, a member or the hub (the first byte says
// which): the reader cuts frames or throws Error, and a payload that decodes encodes to a frame
// that the reader takes again.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "common/base/error.h"
#include "common/comm/job_frame.h"

namespace {

using namespace paceline;

std::string again(const Frame& frame) {
  switch (frame.type) {
    case FrameType::hello:
      return encode(decode_hello(frame.payload));
    case FrameType::gather:
      return encode(decode_gather(frame.payload));
    case FrameType::result:
      return encode(decode_result(frame.payload));
    case FrameType::failed:
    case FrameType::job_over:
      return encode(frame.type, decode_end(frame.payload));
    default:
      return encode_empty(frame.type);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto from = static_cast<FrameReader::From>(data[0] % 3);
  std::span<const char> bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  FrameReader reader(from);
  try {
    Frame frame;
    while (reader.take(bytes, frame)) {
      const std::string text = again(frame);
      std::span<const char> stream(text);
      FrameReader second(from);
      Frame copy;
      if (!second.take(stream, copy) || copy.type != frame.type || !stream.empty()) {
        std::abort();
      }
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
