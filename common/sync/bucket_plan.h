// SPDX-License-Identifier: Apache-2.0
// How the flat arenas are cut into buckets, the unit of communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace paceline {

using BucketId = int;

/// A half-open range of elements of a flat arena.
struct Range {
  std::size_t begin = 0;
  std::size_t end = 0;
  [[nodiscard]] std::size_t size() const noexcept { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// A parameter tensor in the arena, as the matrix [rows, range.size() / rows].
struct TensorRange {
  Range range;
  std::int64_t rows = 1;        ///< its first extent; 1 for tensors of one dimension
  std::int64_t dimensions = 1;  ///< biases and norms' tensors have one
};

/// Buckets are disjoint, contiguous and cover the arena. Bucket 0 lies first and is ready first in
/// backward (the arena is laid out in backward order), so it is needed last in forward.
/// The same plan, bit for bit, on every rank and server of a job.
class BucketPlan {
 public:
  BucketPlan() = default;
  /// `counts[b]` elements in bucket b; zero is allowed.
  explicit BucketPlan(std::span<const std::size_t> counts);

  static constexpr std::size_t kLeastPieceBytes = std::size_t{64} << 10;

  /// Groups tensors, given in arena order, into buckets of at most `bytes` bytes of fp32 (the first
  /// of at most `first_bytes`). A larger tensor is a bucket alone, or, with `cut`, several of
  /// the same size but for the last, at most `bytes` or kLeastPieceBytes if that is more, so that
  /// others can go between (Peng et al. 2019).
  static BucketPlan group(std::span<const std::size_t> tensor_counts, std::size_t bytes,
                          std::size_t first_bytes, bool cut = false);

  [[nodiscard]] int count() const noexcept { return static_cast<int>(buckets_.size()); }
  [[nodiscard]] const Range& operator[](BucketId b) const {
    return buckets_.at(static_cast<std::size_t>(b));
  }
  /// Elements in the whole arena.
  [[nodiscard]] std::size_t elements() const noexcept {
    return buckets_.empty() ? 0 : buckets_.back().end;
  }
  /// In arena order; together they cover the arena and none crosses a bucket's end. Throws Error
  /// otherwise.
  void set_tensors(std::vector<TensorRange> tensors);
  /// Empty where nobody set them.
  [[nodiscard]] std::span<const TensorRange> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::span<const TensorRange> tensors_of(BucketId b) const;

  /// One bucket, or none for an empty plan, holds element `index`.
  [[nodiscard]] BucketId bucket_of(std::size_t index) const;

 private:
  std::vector<Range> buckets_;
  std::vector<TensorRange> tensors_;
};

}  // namespace paceline
