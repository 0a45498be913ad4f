// SPDX-License-Identifier: Apache-2.0
// Messages that no encoder made are refused, and the sum is left as it was.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/compress/codec_cases.h"

namespace paceline {
namespace {

using testing::codec_of;
using testing::gaussian;
using testing::Message;
using testing::method;

constexpr std::size_t kElements = 1000;

/// Expects an Error that names the codec, the rank and `what`.
void expect_refused(const Codec& codec, std::span<const std::byte> message,
                    const std::string& what) {
  std::vector<float> sum(kElements, 3.0F);
  Aggregate aggregate;
  try {
    codec.decode_add(message, {.rank = 6}, sum, aggregate);
    FAIL() << codec.name() << " took it: " << what;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::string(codec.name()) + ": rank 6"), std::string::npos) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  }
  EXPECT_EQ(sum, std::vector<float>(kElements, 3.0F));
  EXPECT_EQ(aggregate.magnitude, 0.0);
}

TEST(BadMessage, WrongLength) {
  for (const char* name :
       {"fp16", "bf16", "topk", "randomk", "threshold", "onebit", "sign", "qsgd"}) {
    const auto codec = codec_of(name);
    Message message(*codec, gaussian(kElements, 1), {});
    const auto bytes = message.bytes();
    expect_refused(*codec, bytes.first(bytes.size() - 1), "bytes, want");
    expect_refused(*codec, bytes.first(0), "bytes");
    Message longer(bytes.size() + 8);
    std::copy(bytes.begin(), bytes.end(), longer.bytes().begin());
    expect_refused(*codec, longer.bytes(), "bytes, want");
  }
}

TEST(BadMessage, Indices) {
  const auto codec = codec_of("topk");
  Message message(*codec, gaussian(kElements, 1), {});
  auto* indices = message.at<std::uint32_t>(0);
  indices[9] = kElements;
  expect_refused(*codec, message.bytes(), "index 1000");
  indices[9] = indices[8];
  expect_refused(*codec, message.bytes(), "indices ascend");
  indices[9] = 0xFFFFFFFF;
  expect_refused(*codec, message.bytes(), "index 4294967295");
}

TEST(BadMessage, Counts) {
  const auto codec = codec_of("threshold");
  Message message(*codec, gaussian(kElements, 1), {});
  auto* head = message.at<std::uint32_t>(0);
  const std::uint32_t count = head[0];
  head[0] = count - 1;
  expect_refused(*codec, message.bytes(), "bytes, want");
  head[0] = 0xFFFFFFFF;
  expect_refused(*codec, message.bytes(), "announces 4294967295 of 1000");
  head[0] = count;
  head[1] = 1;
  expect_refused(*codec, message.bytes(), "reserved");
  head[1] = 0;
  head[2] = 999;
  expect_refused(*codec, message.bytes(), "indices ascend");
}

TEST(BadMessage, BitsAndLevels) {
  for (const char* name : {"onebit", "sign"}) {
    const auto codec = codec_of(name);
    Message message(*codec, gaussian(kElements, 1), {});
    *message.at<std::uint64_t>(8 + 8 * 15) |= std::uint64_t{1} << 40U;  // bit of element 1000
    expect_refused(*codec, message.bytes(), "beyond its last element");
  }
  Message sign(*codec_of("sign"), gaussian(kElements, 1), {});
  sign.at<std::uint32_t>(0)[1] = 1;
  expect_refused(*codec_of("sign"), sign.bytes(), "reserved");

  CompressConfig config = method("qsgd");
  config.levels = 5;
  const auto qsgd = make_codec(config, "fp32");
  Message message(*qsgd, gaussian(kElements, 1), {});
  *message.at<std::byte>(8 + 7) |= std::byte{0x0E};  // level of element 14: 7
  expect_refused(*qsgd, message.bytes(), "level");
}

}  // namespace
}  // namespace paceline
