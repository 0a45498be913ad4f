// SPDX-License-Identifier: Apache-2.0
#include "ring/codec_reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/compress/error_feedback.h"
#include "common/compress/gradient_format.h"
#include "common/compress/power_sgd.h"
#include "ring/wire_overflow.h"

namespace paceline {

namespace {

constexpr std::size_t kAlignment = 8;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Without a branch, so that compilers vectorise it.
bool all_finite(std::span<const float> values) noexcept {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t bad = 0;
  for (const float value : values) {
    bad |= (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
  }
  return bad == 0;
}

class SummableReducer final : public GradientReducer {
 public:
  SummableReducer(const ReducerPlace& place, std::unique_ptr<Codec> codec)
      : format_(job_format(place.config)),
        rank_(place.transport.rank()),
        plan_(place.plan),
        sum_(place),
        codec_(std::move(codec)),
        type_(codec_->summable().value()),
        skips_nonfinite_(place.skips_nonfinite),
        feedback_(place.plan.elements(), format_.error_feedback()),
        staging_(place.transport.allocate(aligned(codec_->max_bytes(largest_bucket(place.plan))))) {
    for (BucketId b = 0; b < plan_.count(); ++b) {
      sum_.prepare(codec_->max_bytes(plan_[b].size()) / size_of(type_), type_);
    }
  }

  RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& step) override {
    CodecContext context = format_.context(static_cast<std::uint64_t>(step.step), plan_[b].begin,
                                           static_cast<std::uint64_t>(step.global_samples), rank_);
    const std::size_t bytes = feedback_.encode(*codec_, gradient, context, staging_->bytes());
    std::span<std::byte> message = staging_->bytes().first(bytes);
    const RunTimes times = sum_(message, type_);
    if (const Range summed = sum_.summed(gradient.size()); summed.size() < gradient.size()) {
      gradient = gradient.subspan(summed.begin, summed.size());
      message = message.subspan(codec_->max_bytes(summed.begin), codec_->max_bytes(summed.size()));
      context.begin += summed.begin;
    }
    std::ranges::fill(gradient, 0.0F);
    Aggregate aggregate;
    codec_->decode_add(message, context, gradient, aggregate);
    codec_->finish(gradient, aggregate);
    if (type_ == DataType::f16 && !skips_nonfinite_ && !all_finite(gradient)) {
      throw_wire_overflow(rank_, b);
    }
    return times;
  }

  [[nodiscard]] std::size_t staging_bytes() const noexcept override {
    return staging_->bytes().size();
  }
  [[nodiscard]] std::size_t residual_bytes() const noexcept override { return feedback_.bytes(); }

 private:
  GradientFormat format_;
  int rank_;
  const BucketPlan& plan_;
  ChunkedSum sum_;
  std::unique_ptr<Codec> codec_;
  DataType type_;
  bool skips_nonfinite_;
  ErrorFeedback feedback_;
  std::unique_ptr<CommBuffer> staging_;
};

class GatherReducer final : public GradientReducer {
 public:
  GatherReducer(const ReducerPlace& place, std::unique_ptr<Codec> codec)
      : format_(job_format(place.config)),
        rank_(place.transport.rank()),
        world_(place.transport.size()),
        plan_(place.plan),
        collective_(place.collective),
        codec_(std::move(codec)),
        feedback_(place.plan.elements(), format_.error_feedback()),
        mine_(aligned(codec_->max_bytes(largest_bucket(place.plan)))),
        gathered_(
            place.transport.allocate(mine_.size() * static_cast<std::size_t>(world_) + kAlignment)),
        lengths_(
            place.transport.allocate(static_cast<std::size_t>(world_) * sizeof(std::int64_t))) {}

  RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& step) override {
    const CodecContext context =
        format_.context(static_cast<std::uint64_t>(step.step), plan_[b].begin,
                        static_cast<std::uint64_t>(step.samples), rank_);
    const std::size_t bytes = feedback_.encode(*codec_, gradient, context, mine_.as<std::byte>());
    RunTimes times;
    const std::size_t slot = agree_on_slot(bytes, times);
    const std::span<std::byte> all =
        gathered_->bytes().first(slot * static_cast<std::size_t>(world_));
    std::memcpy(all.data() + slot * static_cast<std::size_t>(rank_), mine_.as<std::byte>().data(),
                bytes);
    const RunTimes gathering = collective_.allgather(all, DataType::i64, true);
    if (times.begin_ns == 0) {
      times = gathering;
    }
    times.end_ns = gathering.end_ns;
    decode(all, slot, context, gradient);
    return times;
  }

  [[nodiscard]] std::size_t staging_bytes() const noexcept override {
    return mine_.size() + gathered_->bytes().size() + lengths_->bytes().size();
  }
  [[nodiscard]] std::size_t residual_bytes() const noexcept override { return feedback_.bytes(); }

 private:
  std::span<std::int64_t> lengths() noexcept {
    return {reinterpret_cast<std::int64_t*>(lengths_->bytes().data()),
            static_cast<std::size_t>(world_)};
  }

  /// Bytes that each rank's message takes in the gathered buffer; afterwards lengths() holds their
  /// real lengths.
  std::size_t agree_on_slot(std::size_t bytes, RunTimes& times) {
    lengths()[static_cast<std::size_t>(rank_)] = static_cast<std::int64_t>(bytes);
    if (codec_->fixed_length()) {
      std::ranges::fill(lengths(), static_cast<std::int64_t>(bytes));
      return aligned(bytes);
    }
    times =
        collective_.allgather(lengths_->bytes().first(lengths().size_bytes()), DataType::i64, true);
    const std::int64_t longest = *std::ranges::max_element(lengths());
    const std::int64_t shortest = *std::ranges::min_element(lengths());
    if (shortest < 0 || static_cast<std::size_t>(longest) > mine_.size()) {
      throw Error(
          fmt::format("rank {}: a peer announced a compressed gradient of {} bytes, at most "
                      "{} can be",
                      rank_, shortest < 0 ? shortest : longest, mine_.size()));
    }
    return aligned(static_cast<std::size_t>(longest));
  }

  void decode(std::span<const std::byte> all, std::size_t slot, CodecContext context,
              std::span<float> gradient) {
    std::ranges::fill(gradient, 0.0F);
    Aggregate aggregate;
    for (int rank = 0; rank < world_; ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      context.rank = rank;
      const std::span<const std::byte> message =
          all.subspan(index * slot, static_cast<std::size_t>(lengths()[index]));
      try {
        codec_->decode_add(message, context, gradient, aggregate);
      } catch (const Error& error) {
        throw Error(fmt::format("rank {}: rank {} sent a bad compressed gradient: {}", rank_, rank,
                                error.what()));
      }
    }
    codec_->finish(gradient, aggregate);
  }

  GradientFormat format_;
  int rank_;
  int world_;
  const BucketPlan& plan_;
  Collective& collective_;
  std::unique_ptr<Codec> codec_;
  ErrorFeedback feedback_;
  Buffer mine_;
  std::unique_ptr<CommBuffer> gathered_;
  std::unique_ptr<CommBuffer> lengths_;
};

class PowerSgdReducer final : public GradientReducer {
 public:
  explicit PowerSgdReducer(const ReducerPlace& place)
      : collective_(place.collective),
        power_(place.plan, place.config.compress.rank, place.config.compress.error_feedback,
               place.config.seed) {}

  RunTimes reduce(BucketId b, std::span<float> gradient, const StepInfo& /*step*/) override {
    std::optional<RunTimes> times;
    power_.reduce(b, gradient, [&](std::span<float> values) {
      const RunTimes part =
          collective_.allreduce(std::as_writable_bytes(values), DataType::f32, !times);
      if (!times) {
        times = part;
      }
      times->end_ns = part.end_ns;
    });
    return times.value_or(RunTimes{});
  }

  [[nodiscard]] std::size_t staging_bytes() const noexcept override {
    return power_.staging_bytes();
  }
  [[nodiscard]] std::size_t residual_bytes() const noexcept override {
    return power_.residual_bytes();
  }

 private:
  Collective& collective_;
  PowerSgd power_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_codec_reducer(const ReducerPlace& place,
                                                    std::unique_ptr<Codec> codec) {
  if (codec->summable()) {
    return std::make_unique<SummableReducer>(place, std::move(codec));
  }
  return std::make_unique<GatherReducer>(place, std::move(codec));
}

std::unique_ptr<GradientReducer> make_power_sgd_reducer(const ReducerPlace& place) {
  return std::make_unique<PowerSgdReducer>(place);
}

}  // namespace paceline
