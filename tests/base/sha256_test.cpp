// SPDX-License-Identifier: Apache-2.0
#include "common/base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace paceline {
namespace {

// Vectors of FIPS 180-4's examples and of NIST's SHA256ShortMsg.
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, LengthsAroundABlock) {
  // Digests of n times 'x' made with coreutils' sha256sum.
  EXPECT_EQ(sha256_hex(std::string(55, 'x')),
            "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  EXPECT_EQ(sha256_hex(std::string(56, 'x')),
            "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  EXPECT_EQ(sha256_hex(std::string(63, 'x')),
            "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  EXPECT_EQ(sha256_hex(std::string(64, 'x')),
            "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  EXPECT_EQ(sha256_hex(std::string(65, 'x')),
            "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
  EXPECT_EQ(sha256_hex(std::string(119, 'x')),
            "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
}

TEST(Sha256, PartsGiveTheDigestOfTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text.push_back(static_cast<char>(i * 7));
  }
  const std::string whole = sha256_hex(text);
  for (std::size_t first = 0; first <= text.size(); first += 13) {
    for (std::size_t second = first; second <= text.size(); second += 31) {
      Sha256 hash;
      hash.update(std::string_view(text).substr(0, first));
      hash.update(std::string_view(text).substr(first, second - first));
      hash.update(std::string_view(text).substr(second));
      ASSERT_EQ(hash.hex(), whole) << first << ' ' << second;
    }
  }
}

}  // namespace
}  // namespace paceline
