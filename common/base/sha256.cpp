// SPDX-License-Identifier: Apache-2.0
#include "common/base/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace paceline {

namespace {

// The fractional parts of the cube roots of the first 64 primes.
constexpr std::array<std::uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t big_endian(const std::byte* bytes) noexcept {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < sizeof(word); ++i) {
    word = (word << 8) | static_cast<std::uint32_t>(bytes[i]);
  }
  return word;
}

}  // namespace

void Sha256::compress(const std::byte* block) noexcept {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) {
    w[i] = big_endian(block + 4 * i);
  }
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> sum{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < sum.size(); ++i) {
    state_[i] += sum[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) noexcept {
  total_bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (pending_bytes_ == 0 && bytes.size() >= kBlock) {
      compress(bytes.data());
      bytes = bytes.subspan(kBlock);
      continue;
    }
    const std::size_t count = std::min(kBlock - pending_bytes_, bytes.size());
    std::memcpy(pending_.data() + pending_bytes_, bytes.data(), count);
    pending_bytes_ += count;
    bytes = bytes.subspan(count);
    if (pending_bytes_ == kBlock) {
      compress(pending_.data());
      pending_bytes_ = 0;
    }
  }
}

std::string Sha256::hex() noexcept {
  const std::uint64_t bits = total_bytes_ * 8;
  constexpr std::array<std::byte, kBlock> kPadding{std::byte{0x80}};
  const std::size_t used = (pending_bytes_ + sizeof(bits)) % kBlock;
  update(std::span(kPadding).first(kBlock - used));
  std::array<std::byte, sizeof(bits)> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>(bits >> (8 * (length.size() - 1 - i)));
  }
  update(length);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) {
      text.push_back(kDigits[(word >> shift) & 0xf]);
    }
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

}  // namespace paceline
