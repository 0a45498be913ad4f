// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_optimizer.h"

#include <fmt/format.h>

#include <utility>

#include "common/core/optimizer.h"

namespace paceline {

namespace {

std::size_t own_elements(const OwnRanges& own) {
  std::size_t elements = 0;
  for (const std::vector<Range>& ranges : own) {
    for (const Range& range : ranges) {
      elements += range.size();
    }
  }
  return elements;
}

std::int64_t norm_blocks(const Range& range) {
  return (static_cast<std::int64_t>(range.size()) + kernels::kNormBlock - 1) / kernels::kNormBlock;
}

std::string updates_name(std::size_t b) {
  return fmt::format("updates.{}", b);
}

}  // namespace

GpuOptimizer::GpuOptimizer(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec, OwnRanges own)
    : gpu_(gpu),
      stream_(stream),
      spec_(spec),
      own_(std::move(own)),
      elements_(own_elements(own_)),
      updates_(own_.size()) {
  const std::size_t floats = Optimizer(spec, 1).state_bytes() / sizeof(float) * elements_;
  if (floats > 0) {
    state_.arena = gpu.allocate(floats, "the optimizer's state");
  }
  std::size_t begin = 0;
  for (const std::vector<Range>& ranges : own_) {
    begins_.push_back(begin);
    for (const Range& range : ranges) {
      begin += range.size();
    }
  }
}

GpuOptimizer::GpuOptimizer(Gpu& gpu, GpuStream& stream, const OptimizerSpec& spec,
                           const BucketPlan& plan, OwnRanges own, const TensorShares& shares)
    : GpuOptimizer(gpu, stream, spec, std::move(own)) {
  if (spec.kind == OptimizerKind::lars || spec.kind == OptimizerKind::lamb) {
    ratios_.emplace(gpu, stream, spec, plan, own_, shares);
  }
}

void GpuOptimizer::queue(const UpdateInfo& info, kernels::UpdateOperands operands,
                         std::int64_t count) {
  operands.squares = squares_;
  gpu_.check(gpu_.api().update(&spec_, &info, &operands, count, stream_.native()),
             "updating weights");
}

void GpuOptimizer::find_squares(std::span<float> weights, std::span<float> gradients, float scale) {
  if (spec_.kind == OptimizerKind::lars) {
    ratios_->square_pieces(weights, gradients);
  } else {
    for (BucketId b = 0; b < static_cast<BucketId>(own_.size()); ++b) {
      queue({updates_[static_cast<std::size_t>(b)], 1.0F, scale},
            {weights.data(), gradients.data(), gradients.data(), moment(0, 0), moment(1, 0),
             ratios_->operands(b, false)},
            ratios_->pieces(b));
    }
  }
  ratios_->square_tensors();
}

void GpuOptimizer::update(BucketId b, std::span<float> weights, std::span<const float> gradients,
                          float lr, float scale) {
  const auto index = static_cast<std::size_t>(b);
  const UpdateInfo info{updates_.at(index)++, lr, scale};
  if (ratios_) {
    queue(info,
          {weights.data(), weights.data(), gradients.data(), moment(0, 0), moment(1, 0),
           ratios_->operands(b, true)},
          ratios_->pieces(b));
  } else {
    update_ranges(index, info, weights.data(), gradients.data());
  }
}

void GpuOptimizer::update_ranges(std::size_t b, const UpdateInfo& info, float* weights,
                                 const float* gradients) {
  std::size_t begin = begins_[b];
  for (const Range& range : own_[b]) {
    float* const w = weights + range.begin;
    queue(info, {w, w, gradients + range.begin, moment(0, begin), moment(1, begin)},
          static_cast<std::int64_t>(range.size()));
    begin += range.size();
  }
}

void GpuOptimizer::was_left_out() noexcept {
  for (std::int64_t& updates : updates_) {
    --updates;
  }
}

void GpuOptimizer::save(StateWriter& writer) const {
  Optimizer host(spec_, elements_);
  for (int i = 0; i * elements_ < state_.values().size(); ++i) {
    gpu_.download(state_.values().subspan(static_cast<std::size_t>(i) * elements_, elements_),
                  host.moment(i, 0, elements_));
  }
  host.save(writer);
  for (std::size_t b = 0; b < updates_.size(); ++b) {
    writer.put(updates_name(b), updates_[b]);
  }
}

void GpuOptimizer::load(StateReader& reader) {
  Optimizer host(spec_, elements_);
  host.load(reader);
  for (int i = 0; i * elements_ < state_.values().size(); ++i) {
    gpu_.upload(host.moment(i, 0, elements_),
                state_.values().subspan(static_cast<std::size_t>(i) * elements_, elements_));
  }
  for (std::size_t b = 0; b < updates_.size(); ++b) {
    updates_[b] = reader.get(updates_name(b));
  }
}

GpuNorm::GpuNorm(Gpu& gpu, GpuStream& stream, std::vector<Range> ranges)
    : gpu_(gpu), stream_(stream), ranges_(std::move(ranges)) {
  for (const Range& range : ranges_) {
    blocks_ += norm_blocks(range);
  }
  const auto blocks = static_cast<std::size_t>(blocks_);
  partial_ = GpuMemory(gpu, blocks * sizeof(double), "the gradient's norm");
  total_ = GpuMemory(gpu, sizeof(float), "the gradient's norm");
}

void GpuNorm::compute(std::span<const float> gradients, float scale) {
  auto* partial = partial_.as<double>();
  for (const Range& range : ranges_) {
    gpu_.rows(norm_blocks(range),
              kernels::SquaresOfBlocks{gradients.data() + range.begin,
                                       static_cast<std::int64_t>(range.size()), scale, partial},
              stream_, "the gradient's norm");
    partial += norm_blocks(range);
  }
  gpu_.rows(1, kernels::SumOfBlocks{partial_.as<double>(), blocks_, squares()}, stream_,
            "the gradient's norm");
}

}  // namespace paceline
