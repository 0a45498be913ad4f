// SPDX-License-Identifier: Apache-2.0
#include "common/sync/bucket_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/base/error.h"

namespace paceline {

BucketPlan::BucketPlan(std::span<const std::size_t> counts) {
  std::size_t begin = 0;
  for (const std::size_t count : counts) {
    buckets_.push_back({begin, begin + count});
    begin += count;
  }
}

namespace {

/// `count` elements in the fewest pieces of at most `limit`.
void append_pieces(std::vector<std::size_t>& counts, std::size_t count, std::size_t limit) {
  const std::size_t pieces = (count + limit - 1) / limit;
  const std::size_t size = (count + pieces - 1) / pieces;
  for (std::size_t begin = 0; begin < count; begin += size) {
    counts.push_back(std::min(size, count - begin));
  }
}

}  // namespace

BucketPlan BucketPlan::group(std::span<const std::size_t> tensor_counts, std::size_t bytes,
                             std::size_t first_bytes, bool cut) {
  std::vector<std::size_t> counts;
  std::size_t current = 0;
  bool open = false;
  for (const std::size_t count : tensor_counts) {
    const std::size_t limit = (counts.empty() ? first_bytes : bytes) / sizeof(float);
    if (open && current + count > limit) {
      counts.push_back(std::exchange(current, 0));
      open = false;
    }
    const std::size_t piece = std::max(bytes, kLeastPieceBytes) / sizeof(float);
    if (cut && count > piece) {
      append_pieces(counts, count, piece);
      continue;
    }
    current += count;
    open = true;
  }
  if (open) {
    counts.push_back(current);
  }
  return BucketPlan(counts);
}

void BucketPlan::set_tensors(std::vector<TensorRange> tensors) {
  std::size_t at = 0;
  std::size_t bucket = 0;
  for (const TensorRange& tensor : tensors) {
    while (bucket + 1 < buckets_.size() && buckets_[bucket].end <= at) {
      ++bucket;
    }
    const bool fits = tensor.range.begin == at && tensor.range.end >= at &&
                      (tensor.range.size() == 0 ||
                       (bucket < buckets_.size() && tensor.range.end <= buckets_[bucket].end));
    if (!fits || tensor.rows < 1 ||
        tensor.range.size() % static_cast<std::size_t>(tensor.rows) != 0) {
      throw Error("the tensors of a bucket plan do not fit its buckets");
    }
    at = tensor.range.end;
  }
  if (at != elements()) {
    throw Error("the tensors of a bucket plan do not cover it");
  }
  tensors_ = std::move(tensors);
}

std::span<const TensorRange> BucketPlan::tensors_of(BucketId b) const {
  const Range range = (*this)[b];
  const auto begin_of = [](const TensorRange& tensor) { return tensor.range.begin; };
  const auto first = std::ranges::lower_bound(tensors_, range.begin, {}, begin_of);
  const auto last = std::ranges::lower_bound(tensors_, range.end, {}, begin_of);
  return {first, last};
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
