// SPDX-License-Identifier: Apache-2.0
// The one summation order of Paceline. A bucket of n elements is cut into N chunks; the sum over
// ranks of chunk c starts at rank c+1 and goes around the ring, ending at rank c:
//     ((g[c+1] + g[c+2]) + ...) + g[c]        (indices modulo N)
// The ring's reduce-scatter has this order by construction and the BSP server follows it, so both
// give the same bits.
#pragma once

#include <cstddef>

#include "common/sync/bucket_plan.h"

namespace paceline {

/// Chunk c of a bucket of n elements over N ranks, relative to the bucket: sizes differ by at most
/// one and the first n mod N chunks are the larger ones. 0 <= c < N.
[[nodiscard]] constexpr Range ring_chunk(std::size_t n, int world, int c) noexcept {
  const auto parts = static_cast<std::size_t>(world);
  const auto index = static_cast<std::size_t>(c);
  const std::size_t base = n / parts;
  const std::size_t extra = n % parts;
  const std::size_t begin = index * base + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

/// The rank whose contribution to chunk c is the k-th summand, 0 <= k < N.
[[nodiscard]] constexpr int ring_summand(int world, int c, int k) noexcept {
  return (c + 1 + k) % world;
}

}  // namespace paceline
