// SPDX-License-Identifier: Apache-2.0
// Which server owns which part of the weights: buckets are cut into keys, the parameter server's
// unit of push and pull.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/sync/bucket_plan.h"

namespace paceline {

/// One contiguous part of one bucket, owned by one server.
struct KeyRange {
  BucketId bucket = 0;
  int server = 0;
  Range arena;                      ///< elements of the flat arena
  std::size_t bucket_offset = 0;    ///< of arena.begin within the bucket
  std::size_t bucket_elements = 0;  ///< of the whole bucket (the summation order depends on it)
  [[nodiscard]] std::size_t elements() const noexcept { return arena.size(); }
};

/// No key is larger, so that a server can answer the first part of a large bucket while the rest
/// still arrives.
inline constexpr std::size_t kMaxKeyBytes = std::size_t{1} << 20;
/// Buckets up to this size go to one server whole: cutting them would cost more messages than it
/// saves time.
inline constexpr std::size_t kWholeBucketBytes = std::size_t{32} << 10;

/// Deterministic: the same on every worker and server. Larger buckets are split evenly over the
/// servers, smaller ones go to whoever owns the fewest bytes so far.
class Partition {
 public:
  Partition() = default;
  Partition(const BucketPlan& plan, int servers);

  [[nodiscard]] std::span<const KeyRange> keys() const noexcept { return keys_; }
  [[nodiscard]] std::size_t count() const noexcept { return keys_.size(); }
  /// Indices into keys() of bucket b, ascending in arena order; none for an empty bucket.
  [[nodiscard]] std::span<const std::size_t> keys_of(BucketId b) const {
    return of_bucket_.at(static_cast<std::size_t>(b));
  }
  /// Bytes of weights that each server owns.
  [[nodiscard]] std::span<const std::size_t> bytes_per_server() const noexcept { return load_; }

 private:
  void add(BucketId bucket, const Range& whole, Range part, int server);

  std::vector<KeyRange> keys_;
  std::vector<std::vector<std::size_t>> of_bucket_;
  std::vector<std::size_t> load_;
};

}  // namespace paceline
