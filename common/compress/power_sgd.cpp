// SPDX-License-Identifier: Apache-2.0
#include "common/compress/power_sgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/compress/message.h"
#include "common/compress/orthonormal.h"

namespace paceline {

namespace {

std::size_t columns_of(const TensorRange& tensor) {
  return tensor.range.size() / static_cast<std::size_t>(tensor.rows);
}

bool is_compressed(const TensorRange& tensor, std::size_t rank) {
  const auto rows = static_cast<std::size_t>(tensor.rows);
  const std::size_t columns = columns_of(tensor);
  return tensor.dimensions >= 2 && rank * (rows + columns) < rows * columns;
}

}  // namespace

void check_power_sgd_rank(const BucketPlan& plan, int rank) {
  std::size_t most = 0;
  for (const TensorRange& tensor : plan.tensors()) {
    if (tensor.dimensions >= 2) {
      most = std::max(most, std::min(static_cast<std::size_t>(tensor.rows), columns_of(tensor)));
    }
  }
  if (rank < 1 || static_cast<std::size_t>(rank) > most) {
    throw ConfigError(
        fmt::format("compress.rank={}: the model's matrices have at most rank {}{}", rank, most,
                    most == 0 ? "; compress.method=powersgd needs one of two dimensions"
                              : fmt::format("; allowed: 1 to {}", most)));
  }
}

PowerSgd::PowerSgd(const BucketPlan& plan, int rank, bool error_feedback, std::uint64_t seed)
    : rank_(static_cast<std::size_t>(rank)), seed_(seed) {
  check_power_sgd_rank(plan, rank);
  std::size_t first = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    add_bucket(plan, b);
    first = std::max(first, buckets_.back().first_floats);
  }
  const std::size_t q_floats =
      buckets_.empty() ? 0 : buckets_.back().q_begin + buckets_.back().q_floats;
  q_ = Buffer(q_floats * sizeof(float));
  first_ = Buffer(first * sizeof(float));
  residual_ = Buffer(error_feedback ? plan.elements() * sizeof(float) : 0);
}

void PowerSgd::add_bucket(const BucketPlan& plan, BucketId b) {
  Bucket bucket;
  bucket.range = plan[b];
  bucket.q_begin = buckets_.empty() ? 0 : buckets_.back().q_begin + buckets_.back().q_floats;
  for (const TensorRange& tensor : plan.tensors_of(b)) {
    const std::size_t begin = tensor.range.begin - bucket.range.begin;
    if (!is_compressed(tensor, rank_)) {
      bucket.whole.push_back({begin, begin + tensor.range.size()});
      bucket.first_floats += tensor.range.size();
      continue;
    }
    const auto rows = static_cast<std::size_t>(tensor.rows);
    bucket.matrices.push_back({begin, rows, columns_of(tensor), bucket.p_floats, bucket.q_floats});
    bucket.p_floats += rank_ * rows;
    bucket.q_floats += rank_ * columns_of(tensor);
  }
  bucket.first_floats += bucket.p_floats;
  buckets_.push_back(std::move(bucket));
}

std::size_t PowerSgd::travelling(BucketId b) const {
  const Bucket& bucket = buckets_.at(static_cast<std::size_t>(b));
  return bucket.first_floats + bucket.q_floats;
}

/// Columns of Q that lead nowhere (zero at first, after a zero gradient, or not finite) start anew
/// from random directions.
void PowerSgd::refill_q(const Matrix& matrix, std::span<float> q) {
  for (std::size_t k = 0; k < rank_; ++k) {
    const std::span<float> column = q.subspan(k * matrix.columns, matrix.columns);
    double square = 0.0;
    for (const float value : column) {
      square += static_cast<double>(value) * static_cast<double>(value);
    }
    if (std::isfinite(square) && square > 0.0) {
      continue;
    }
    const std::uint64_t key = compress::random_key(seed_, static_cast<std::int64_t>(refills_++), 0);
    for (std::size_t j = 0; j < column.size(); ++j) {
      // Uniform in [-1, 1).
      column[j] = static_cast<float>(compress::mix(key + j) >> 40U) * 0x1.0p-23F - 1.0F;
    }
  }
}

/// What is not compressed, between the bucket and its place behind all P.
void PowerSgd::copy_whole(const Bucket& bucket, std::span<float> gradient, bool out) {
  float* at = first_.as<float>().data() + bucket.p_floats;
  for (const Range& range : bucket.whole) {
    float* tensor = gradient.data() + range.begin;
    std::copy_n(out ? tensor : at, range.size(), out ? at : tensor);
    at += range.size();
  }
}

void PowerSgd::reduce(BucketId b, std::span<float> gradient, const AllReduce& allreduce) {
  const Bucket& bucket = buckets_.at(static_cast<std::size_t>(b));
  const std::span<float> q = q_of(bucket);
  const std::span<float> first = first_.as<float>().first(bucket.first_floats);
  const bool remembers = residual_.size() != 0;
  const auto parts = [&](const Matrix& matrix) {
    struct Parts {
      std::span<float> m, p, q, residual;
    };
    const std::size_t n = matrix.rows * matrix.columns;
    return Parts{gradient.subspan(matrix.begin, n),
                 first.subspan(matrix.p_begin, rank_ * matrix.rows),
                 q.subspan(matrix.q_begin, rank_ * matrix.columns),
                 remembers ? residual_.as<float>().subspan(bucket.range.begin + matrix.begin, n)
                           : std::span<float>()};
  };
  for (const Matrix& matrix : bucket.matrices) {
    const auto at = parts(matrix);
    refill_q(matrix, at.q);
    for (std::size_t i = 0; i < at.residual.size(); ++i) {
      at.m[i] += at.residual[i];
    }
    compress::times(at.m, matrix.columns, at.q, at.p);
  }
  copy_whole(bucket, gradient, true);
  if (!first.empty()) {
    allreduce(first);
  }
  copy_whole(bucket, gradient, false);
  for (const Matrix& matrix : bucket.matrices) {
    const auto at = parts(matrix);
    compress::orthonormalise(at.p, matrix.rows);
    compress::transposed_times(at.m, matrix.columns, at.p, at.q);
    if (remembers) {
      compress::add_outer(at.p, at.q, matrix.columns, -1.0F, at.m);
      std::ranges::transform(at.m, at.residual.begin(), compress::finite_or_zero);
    }
  }
  if (!q.empty()) {
    allreduce(q);
  }
  for (const Matrix& matrix : bucket.matrices) {
    const auto at = parts(matrix);
    std::ranges::fill(at.m, 0.0F);
    compress::add_outer(at.p, at.q, matrix.columns, 1.0F, at.m);
  }
}

}  // namespace paceline
