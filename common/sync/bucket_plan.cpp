// SPDX-License-Identifier: Apache-2.0
#include "common/sync/bucket_plan.h"

#include <algorithm>
#include <stdexcept>

namespace paceline {

BucketPlan::BucketPlan(std::span<const std::size_t> counts) {
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    buckets_.push_back({begin, begin + count});
    begin += count;
  }
}

BucketPlan BucketPlan::group(std::span<const std::size_t> tensor_counts, std::size_t bytes,
                             std::size_t first_bytes) {
  std::vector<std::size_t> counts;
  std::size_t current = 0;
  bool open = false;
  for (const std::size_t count : tensor_counts) {
    const std::size_t limit = (counts.empty() ? first_bytes : bytes) / sizeof(float);
    if (open && current + count > limit) {
      counts.push_back(current);
      current = 0;
    }
    current += count;
    open = true;
  }
  if (open) {
    counts.push_back(current);
  }
  return BucketPlan(counts);
}

BucketId BucketPlan::bucket_of(std::size_t index) const {
  const auto after =
      std::upper_bound(buckets_.begin(), buckets_.end(), index,
                       [](std::size_t value, const Range& range) { return value < range.end; });
  if (after == buckets_.end()) {
    throw std::out_of_range("element index beyond the bucket plan");
  }
  return static_cast<BucketId>(after - buckets_.begin());
}

}  // namespace paceline
