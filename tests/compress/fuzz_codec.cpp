// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes as a message of every codec: it decodes, or throws Error and leaves the sum.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/base/error.h"
#include "common/compress/codec.h"

namespace {

using namespace paceline;

void decode(const Codec& codec, std::span<const std::byte> message, std::size_t elements) {
  std::vector<float> sum(elements, 1.0F);
  Aggregate aggregate;
  try {
    codec.decode_add(message, {}, sum, aggregate);
    codec.finish(sum, aggregate);
  } catch (const Error&) {
    for (const float value : sum) {
      if (value != 1.0F) {
        std::abort();
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::size_t elements = data[0] + std::size_t{data[1]} * 8;
  std::vector<std::uint64_t> memory((size - 2) / 8 + 1);
  std::memcpy(memory.data(), data + 2, size - 2);
  const auto message = std::as_bytes(std::span(memory)).first(size - 2);
  for (const char* method :
       {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
    CompressConfig config;
    config.method = method;
    config.density = 0.1;
    for (const int levels : {5, 15}) {
      config.levels = levels;
      decode(*make_codec(config, "fp32"), message, elements);
    }
  }
  return 0;
}
