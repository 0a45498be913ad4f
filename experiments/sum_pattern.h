// SPDX-License-Identifier: Apache-2.0
// What ranks sum to see that a sum is right: known in closed form, exact in every format and order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/core/precision.h"

namespace paceline {

/// Element j of rank r is (j + 3r) mod a period that is odd and so short that every partial sum
/// over ranks is an integer the format has: a part that is missing, twice there, or shifted shows.
class SumPattern {
 public:
  /// `world` is at most 1024; in 16 bits 64, beyond which the period is too short to say much.
  SumPattern(Precision format, int world);

  [[nodiscard]] std::size_t element_bytes() const noexcept { return element_bytes_; }
  /// What `rank` gives, `count` elements.
  [[nodiscard]] std::vector<std::byte> part(int rank, std::size_t count) const;
  /// How many elements of `found` are not the sum of all ranks' parts, to the bit.
  [[nodiscard]] std::int64_t wrong(std::span<const std::byte> found) const;

 private:
  [[nodiscard]] std::size_t value(std::size_t j, std::size_t rank) const {
    return (j + 3 * rank) % period_;
  }
  /// Elements value(j), whose period is ours.
  [[nodiscard]] std::vector<std::byte> repeat(
      std::size_t count, const std::function<std::size_t(std::size_t)>& value) const;
  void store(std::byte* to, float value) const;

  Precision format_;
  std::size_t world_;
  std::size_t element_bytes_;
  std::size_t period_;
};

}  // namespace paceline
