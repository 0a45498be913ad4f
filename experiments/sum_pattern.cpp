// SPDX-License-Identifier: Apache-2.0
#include "experiments/sum_pattern.h"

#include <algorithm>
#include <cstring>

#include "common/base/half.h"

namespace paceline {

SumPattern::SumPattern(Precision format, int world)
    : format_(format),
      world_(static_cast<std::size_t>(world)),
      element_bytes_(format == Precision::fp32 ? sizeof(float) : sizeof(std::uint16_t)) {
  constexpr std::size_t kLongPeriod = 16'381;
  constexpr std::size_t kLargestInBfloat = 256;  // up to which it has every integer
  period_ = format == Precision::fp32 ? kLongPeriod : kLargestInBfloat / world_ / 2 * 2 + 1;
}

std::vector<std::byte> SumPattern::part(int rank, std::size_t count) const {
  return repeat(count, [&](std::size_t j) { return value(j, static_cast<std::size_t>(rank)); });
}

std::int64_t SumPattern::wrong(std::span<const std::byte> found) const {
  const std::vector<std::byte> expected = repeat(found.size() / element_bytes_, [&](std::size_t j) {
    std::size_t sum = 0;
    for (std::size_t rank = 0; rank < world_; ++rank) {
      sum += value(j, rank);
    }
    return sum;
  });
  std::int64_t count = 0;
  for (std::size_t at = 0; at < found.size(); at += element_bytes_) {
    count += std::memcmp(&found[at], &expected[at], element_bytes_) == 0 ? 0 : 1;
  }
  return count;
}

std::vector<std::byte> SumPattern::repeat(
    std::size_t count, const std::function<std::size_t(std::size_t)>& value) const {
  std::vector<std::byte> bytes(count * element_bytes_);
  for (std::size_t j = 0; j < std::min(count, period_); ++j) {
    store(&bytes[j * element_bytes_], static_cast<float>(value(j)));
  }
  const std::size_t cycle = period_ * element_bytes_;
  for (std::size_t at = cycle; at < bytes.size(); ++at) {
    bytes[at] = bytes[at - cycle];
  }
  return bytes;
}

void SumPattern::store(std::byte* to, float value) const {
  if (format_ == Precision::fp32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = format_ == Precision::fp16 ? to_half(value) : to_bfloat(value);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace paceline
