// SPDX-License-Identifier: Apache-2.0
#include "ring/gradient_reducer.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/sync/exact_sum.h"
#include "common/sync/reduction_order.h"
#include "ring/codec_reducer.h"

namespace paceline {

namespace {

class PlainReducer final : public GradientReducer {
 public:
  explicit PlainReducer(const ReducerPlace& place) : sum_(place) {
    for (BucketId b = 0; b < place.plan.count(); ++b) {
      sum_.prepare(place.plan[b].size(), DataType::f32);
    }
  }

  RunTimes reduce(BucketId /*b*/, std::span<float> gradient, const StepInfo& /*step*/) override {
    return sum_(std::as_writable_bytes(gradient), DataType::f32);
  }

 private:
  ChunkedSum sum_;
};

class ExactReducer final : public GradientReducer {
 public:
  explicit ExactReducer(const ReducerPlace& place)
      : rank_(place.transport.rank()),
        world_(place.transport.size()),
        sum_(place),
        staging_(place.transport.allocate(largest_bucket(place.plan) * sizeof(std::int64_t))) {
    for (BucketId b = 0; b < place.plan.count(); ++b) {
      sum_.prepare(place.plan[b].size(), DataType::i64);
    }
  }

  RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& /*step*/) override {
    const std::span<std::byte> bytes =
        staging_->bytes().first(gradient.size() * sizeof(std::int64_t));
    const std::span<std::int64_t> sums{reinterpret_cast<std::int64_t*>(bytes.data()),
                                       gradient.size()};
    if (!to_fixed(gradient, sums, world_)) {
      throw fixed_range_error(rank_, b, world_);
    }
    const RunTimes times = sum_(bytes, DataType::i64);
    const Range summed = sum_.summed(gradient.size());
    from_fixed(sums.subspan(summed.begin, summed.size()),
               gradient.subspan(summed.begin, summed.size()));
    return times;
  }

  [[nodiscard]] std::size_t staging_bytes() const noexcept override {
    return staging_->bytes().size();
  }

 private:
  int rank_;
  int world_;
  ChunkedSum sum_;
  std::unique_ptr<CommBuffer> staging_;
};

}  // namespace

void ChunkedSum::prepare(std::size_t elements, DataType type) {
  collective_.prepare(own_chunk_only_ ? CollectiveKind::reduce_scatter : CollectiveKind::allreduce,
                      elements, type);
}

RunTimes ChunkedSum::operator()(std::span<std::byte> data, DataType type) {
  return own_chunk_only_ ? collective_.reduce_scatter(data, type, true)
                         : collective_.allreduce(data, type, true);
}

Range ChunkedSum::summed(std::size_t elements) const noexcept {
  return own_chunk_only_ ? ring_chunk(elements, world_, rank_) : Range{0, elements};
}

std::size_t largest_bucket(const BucketPlan& plan) noexcept {
  std::size_t largest = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    largest = std::max(largest, plan[b].size());
  }
  return largest;
}

std::unique_ptr<GradientReducer> make_gradient_reducer(const ReducerPlace& place) {
  const Config& config = place.config;
  if (config.compress.method == "powersgd") {
    return make_power_sgd_reducer(place);
  }
  if (auto codec = make_codec(config.compress, config.sync_options.wire)) {
    return make_codec_reducer(place, std::move(codec));
  }
  if (config.sync_options.exact) {
    return std::make_unique<ExactReducer>(place);
  }
  return std::make_unique<PlainReducer>(place);
}

}  // namespace paceline
