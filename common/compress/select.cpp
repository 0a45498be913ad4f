// SPDX-License-Identifier: Apache-2.0
#include "common/compress/select.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <vector>

namespace paceline::compress {

namespace {

constexpr std::uint32_t kShift = 21;  // of 31 bits: the exponent's 8 and 2 of the fraction remain
constexpr std::size_t kBins = std::size_t{1} << (31 - kShift);
using Histogram = std::array<std::uint32_t, kBins>;

/// Four tables, so that neighbours of like magnitude do not wait for each other's count.
Histogram histogram_of(std::span<const float> values) {
  std::array<Histogram, 4> parts{};
  const std::size_t whole = values.size() / 4 * 4;
  for (std::size_t i = 0; i < whole; i += 4) {
    ++parts[0][magnitude_bits(values[i]) >> kShift];
    ++parts[1][magnitude_bits(values[i + 1]) >> kShift];
    ++parts[2][magnitude_bits(values[i + 2]) >> kShift];
    ++parts[3][magnitude_bits(values[i + 3]) >> kShift];
  }
  for (std::size_t i = whole; i < values.size(); ++i) {
    ++parts[0][magnitude_bits(values[i]) >> kShift];
  }
  for (std::size_t bin = 0; bin < kBins; ++bin) {
    parts[0][bin] += parts[1][bin] + parts[2][bin] + parts[3][bin];
  }
  return parts[0];
}

}  // namespace

void select_largest(std::span<const float> values, std::span<std::uint32_t> out) {
  const std::size_t k = out.size();
  if (k == values.size() || k == 0) {
    std::iota(out.begin(), out.end(), 0U);
    return;
  }
  const Histogram histogram = histogram_of(values);
  std::size_t bin = kBins - 1;
  std::size_t reached = histogram[bin];
  while (reached < k) {
    reached += histogram[--bin];
  }
  const std::size_t above = reached - histogram[bin];  // elements in higher bins
  const auto least = static_cast<std::uint32_t>(bin << kShift);
  std::vector<std::uint32_t> candidates;
  std::vector<std::uint32_t> in_bin;
  candidates.reserve(reached);
  in_bin.reserve(histogram[bin]);
  for_each_at_least(values, least, [&](std::uint32_t index) {
    candidates.push_back(index);
    const std::uint32_t bits = magnitude_bits(values[index]);
    if ((bits >> kShift) == bin) {
      in_bin.push_back(bits);
    }
  });
  const std::size_t wanted = k - above;  // of the bin; at least one
  const auto last = in_bin.begin() + static_cast<std::ptrdiff_t>(wanted) - 1;
  std::nth_element(in_bin.begin(), last, in_bin.end(), std::greater<>());
  const std::uint32_t cut = *last;
  const auto larger =
      std::count_if(in_bin.begin(), last, [cut](std::uint32_t bits) { return bits > cut; });
  std::size_t ties = wanted - static_cast<std::size_t>(larger);
  std::size_t filled = 0;
  for (const std::uint32_t index : candidates) {
    const std::uint32_t bits = magnitude_bits(values[index]);
    if (bits > cut || (bits == cut && ties > 0)) {
      ties -= bits == cut ? 1U : 0U;
      out[filled++] = index;
    }
  }
}

void select_random(std::size_t elements, std::uint64_t key, std::span<std::uint32_t> out) {
  const std::size_t k = out.size();
  if (k == elements) {
    std::iota(out.begin(), out.end(), 0U);
    return;
  }
  constexpr std::size_t kBits = 64;
  std::vector<std::uint64_t> chosen((elements + kBits - 1) / kBits);
  for (std::size_t j = elements - k; j < elements; ++j) {
    // Lemire's multiply-shift; the bias of at most j / 2^32 is below what any run can see.
    std::size_t index = ((mix(key + j) >> 32U) * (j + 1)) >> 32U;
    if (((chosen[index / kBits] >> (index % kBits)) & 1U) != 0) {
      index = j;
    }
    chosen[index / kBits] |= std::uint64_t{1} << (index % kBits);
  }
  std::size_t filled = 0;
  for (std::size_t word = 0; word < chosen.size(); ++word) {
    for (std::uint64_t bits = chosen[word]; bits != 0; bits &= bits - 1) {
      out[filled++] = static_cast<std::uint32_t>(word * kBits +
                                                 static_cast<std::size_t>(std::countr_zero(bits)));
    }
  }
}

}  // namespace paceline::compress
