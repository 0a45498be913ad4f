// SPDX-License-Identifier: Apache-2.0
#include "ps/partition.h"

#include <algorithm>

namespace paceline {

namespace {

constexpr std::size_t kAlignment = 16;  // elements: cuts fall on cache lines

/// Where part i of n elements in `parts` parts begins.
std::size_t cut(std::size_t n, std::size_t parts, std::size_t i) {
  if (i >= parts) {
    return n;
  }
  return std::min(n, (n / parts * i + n % parts * i / parts) / kAlignment * kAlignment);
}

}  // namespace

Partition::Partition(const BucketPlan& plan, int servers)
    : of_bucket_(static_cast<std::size_t>(plan.count())),
      load_(static_cast<std::size_t>(servers), 0) {
  const auto parts = static_cast<std::size_t>(servers);
  for (BucketId b = 0; b < plan.count(); ++b) {
    const Range whole = plan[b];
    const std::size_t n = whole.size();
    if (n * sizeof(float) <= kWholeBucketBytes) {
      const auto least = std::min_element(load_.begin(), load_.end());
      add(b, whole, whole, static_cast<int>(least - load_.begin()));
      continue;
    }
    for (std::size_t i = 0; i < parts; ++i) {
      add(b, whole, {whole.begin + cut(n, parts, i), whole.begin + cut(n, parts, i + 1)},
          static_cast<int>(i));
    }
  }
}

void Partition::add(BucketId bucket, const Range& whole, Range part, int server) {
  const std::size_t bytes = part.size() * sizeof(float);
  if (bytes == 0) {
    return;
  }
  load_[static_cast<std::size_t>(server)] += bytes;
  const std::size_t pieces = (bytes + kMaxKeyBytes - 1) / kMaxKeyBytes;
  for (std::size_t i = 0; i < pieces; ++i) {
    KeyRange key;
    key.bucket = bucket;
    key.server = server;
    key.arena = {part.begin + cut(part.size(), pieces, i),
                 part.begin + cut(part.size(), pieces, i + 1)};
    key.bucket_offset = key.arena.begin - whole.begin;
    key.bucket_elements = whole.size();
    of_bucket_[static_cast<std::size_t>(bucket)].push_back(keys_.size());
    keys_.push_back(key);
  }
}

}  // namespace paceline
