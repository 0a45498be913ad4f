// SPDX-License-Identifier: Apache-2.0
#include "ps/fold.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/sync/exact_sum.h"
#include "common/sync/reduction_order.h"

namespace paceline {

namespace {

/// Sums out.size() elements from `begin` on, all of chunk c.
void sum_in_order(int c, std::span<const Contribution> workers, std::size_t begin,
                  std::span<float> out) {
  const auto world = static_cast<int>(workers.size());
  bool first = true;
  for (int k = 0; k < world; ++k) {
    const Contribution from = workers[static_cast<std::size_t>(ring_summand(world, c, k))];
    if (from == nullptr) {
      continue;
    }
    const float* in = from + begin;
    if (first) {
      std::copy_n(in, out.size(), out.data());
      first = false;
      continue;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] += in[i];
    }
  }
}

}  // namespace

void ring_order_sum(const KeyRange& key, std::span<const Contribution> workers, std::size_t begin,
                    std::span<float> out) {
  const auto world = static_cast<int>(workers.size());
  const std::size_t from = key.bucket_offset + begin;
  const std::size_t to = from + out.size();
  for (int c = 0; c < world; ++c) {
    const Range chunk = ring_chunk(key.bucket_elements, world, c);
    const std::size_t low = std::max(chunk.begin, from);
    const std::size_t high = std::min(chunk.end, to);
    if (low < high) {
      sum_in_order(c, workers, low - key.bucket_offset, out.subspan(low - from, high - low));
    }
  }
}

void exact_sum(const KeyRange& key, std::span<const Contribution> workers, std::size_t begin,
               std::span<float> out) {
  constexpr std::size_t kBlock = 512;
  std::array<std::int64_t, kBlock> sum{};
  const auto world = static_cast<int>(workers.size());
  for (std::size_t at = 0; at < out.size(); at += kBlock) {
    const std::span block = out.subspan(at, std::min(kBlock, out.size() - at));
    const std::span fixed = std::span(sum).first(block.size());
    std::fill(fixed.begin(), fixed.end(), 0);
    for (int w = 0; w < world; ++w) {
      const Contribution worker = workers[static_cast<std::size_t>(w)];
      if (worker != nullptr && !add_fixed({worker + begin + at, block.size()}, fixed, world)) {
        throw fixed_range_error(w, key.bucket, world);
      }
    }
    from_fixed(fixed, block);
  }
}

}  // namespace paceline
