// SPDX-License-Identifier: Apache-2.0
#include "ring/gpu_updates.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "common/base/error.h"

namespace paceline {

GpuArenas::GpuArenas(Device& device, const BucketPlan& plan, std::span<const float> init) {
  if (init.size() != plan.elements()) {
    throw Error(fmt::format("{} initial weights for a plan of {}", init.size(), plan.elements()));
  }
  weights_ = device.allocate(plan.elements(), "the weights");
  gradients_ = device.allocate(plan.elements(), "the gradients");
  device.upload(init, weights_->values());
}

GpuUpdates::GpuUpdates(Gpu& gpu, GpuStream& stream, UpdateShares& shares, const BucketPlan& plan,
                       const OptimizerSpec& spec, const ReplicaView& arenas)
    : gpu_(gpu),
      stream_(stream),
      shares_(shares),
      plan_(plan),
      spec_(spec),
      arenas_(arenas),
      norm_known_(gpu) {
  OwnRanges own;
  TensorShares of_tensors{{}, shares.rank(), shares.ranks()};
  for (BucketId b = 0; b < plan.count(); ++b) {
    std::vector<Range>& ranges = own.emplace_back(shares.own(plan[b].size()));
    for (Range& range : ranges) {
      const bool counts = shares.counts_in_norm(range, plan[b].size());
      range = {plan[b].begin + range.begin, plan[b].begin + range.end};
      if (counts) {
        of_tensors.counted.push_back(range);
      }
    }
    updated_.push_back(std::make_unique<GpuEvent>(gpu));
  }
  optimizer_.emplace(gpu, stream, spec, plan, std::move(own), of_tensors);
  if (spec.clip_norm > 0.0F || spec.skip_nonfinite) {
    norm_.emplace(gpu, stream, std::move(of_tensors.counted));
  }
  if (spec.skip_nonfinite) {
    optimizer_->leave_out_unless_finite(norm_->squares());
    host_squares_ = Buffer(4096);
    pinned_.emplace(gpu, std::span(host_squares_.data(), host_squares_.size()));
  }
}

/// A copy to the host may be under way.
GpuUpdates::~GpuUpdates() {
  if (!stream_.drain()) {
    gpu_.keep(std::move(host_squares_));
  }
}

void GpuUpdates::warm_up() {
  if (norm_) {
    shares_.add_up(norm_->squares());
  }
  if (optimizer_->ratios() != nullptr) {
    shares_.gather(*optimizer_->ratios());
  }
}

MemoryUse GpuUpdates::memory() const noexcept {
  const GpuTrustRatios* const ratios = optimizer_->ratios();
  const std::size_t norms =
      (norm_ ? norm_->bytes() : 0) + (ratios != nullptr ? ratios->bytes() : 0);
  return {arenas_.weights.size_bytes(), arenas_.gradients.size_bytes(), optimizer_->state_bytes(),
          norms, 0};
}

void GpuUpdates::finish(BucketId b, const StepInfo& step) {
  const bool counts = step.global_samples > 0;
  const float scale = counts ? 1.0F / static_cast<float>(step.global_samples) : 0.0F;
  if (!spec_.whole_gradient()) {
    counts ? update(b, step.lr, scale) : stream_.record(*updated_[static_cast<std::size_t>(b)]);
    return;
  }
  summed_ = (summed_ + 1) % plan_.count();
  if (summed_ != 0) {
    return;
  }
  decide();
  if (counts) {
    if (norm_) {
      find_norm(scale);
    }
    update_all(step.lr, scale);
  }
}

void GpuUpdates::update(BucketId b, float lr, float scale) {
  optimizer_->update(b, arenas_.weights, arenas_.gradients, lr, scale);
  shares_.share(arenas_.weights.subspan(plan_[b].begin, plan_[b].size()));
  stream_.record(*updated_[static_cast<std::size_t>(b)]);
}

void GpuUpdates::update_all(float lr, float scale) {
  if (GpuTrustRatios* const ratios = optimizer_->ratios(); ratios != nullptr) {
    optimizer_->find_squares(arenas_.weights, arenas_.gradients, scale);
    shares_.gather(*ratios);
    ratios->find(scale);
  }
  for (BucketId b = 0; b < plan_.count(); ++b) {
    update(b, lr, scale);
  }
}

void GpuUpdates::find_norm(float scale) {
  norm_->compute(arenas_.gradients, scale);
  shares_.add_up(norm_->squares());
  if (spec_.skip_nonfinite) {
    gpu_.check(gpu_.api().copy_to_host(host_squares_.data(), norm_->squares(), sizeof(float),
                                       stream_.native()),
               "reading the gradient's norm");
    stream_.record(norm_known_);
    undecided_ = true;
  }
  if (spec_.clip_norm > 0.0F) {
    clip();
  }
}

void GpuUpdates::clip() {
  gpu_.each(static_cast<std::int64_t>(plan_.elements()),
            kernels::ClipByNorm{arenas_.gradients.data(), norm_->squares(), spec_.clip_norm},
            stream_, "clipping");
}

void GpuUpdates::decide() {
  if (!std::exchange(undecided_, false)) {
    return;
  }
  shares_.wait(norm_known_);
  if (!std::isfinite(host_squares_.as<float>().front())) {
    ++skipped_;
    optimizer_->was_left_out();
  }
}

}  // namespace paceline
