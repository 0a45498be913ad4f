// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_updates.h"

#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "common/core/arena_optimizer.h"

namespace paceline {

namespace {

constexpr std::chrono::microseconds kNcclHostPoll{50};

}  // namespace

void wait_on_host(const GpuEvent& event, NcclCommunicators& comms) {
  while (!event.reached()) {
    comms.check();
    std::this_thread::sleep_for(kNcclHostPoll);
  }
  comms.check();
}

NcclUpdates::NcclUpdates(Gpu& gpu, GpuStream& stream, NcclCommunicators& comms, NcclSum& sum,
                         const BucketPlan& plan, const OptimizerSpec& spec,
                         const ReplicaView& arenas)
    : gpu_(gpu),
      stream_(stream),
      comms_(comms),
      sum_(sum),
      plan_(plan),
      spec_(spec),
      arenas_(arenas),
      norm_known_(gpu) {
  OwnRanges own;
  TensorShares shares;
  for (BucketId b = 0; b < plan.count(); ++b) {
    std::vector<Range>& ranges = own.emplace_back(sum.own(plan[b].size()));
    for (Range& range : ranges) {
      const bool counts = sum.counts_in_norm(range, plan[b].size());
      range = {plan[b].begin + range.begin, plan[b].begin + range.end};
      if (counts) {
        shares.counted.push_back(range);
      }
    }
    updated_.push_back(std::make_unique<GpuEvent>(gpu));
  }
  if (sum.sharded()) {
    shares.rank = comms.rank();
    shares.ranks = comms.size();
  }
  optimizer_.emplace(gpu, stream, spec, plan, std::move(own), shares);
  if (spec.clip_norm > 0.0F || spec.skip_nonfinite) {
    norm_.emplace(gpu, stream, std::move(shares.counted));
    host_squares_ = Buffer(4096);
    pinned_.emplace(gpu, std::span(host_squares_.data(), host_squares_.size()));
  }
}

/// A copy to the host may be under way.
NcclUpdates::~NcclUpdates() {
  if (!stream_.drain()) {
    gpu_.keep(std::move(host_squares_));
  }
}

void NcclUpdates::warm_up() {
  if (norm_) {
    sum_norm();
  }
  if (optimizer_->ratios() != nullptr) {
    share_squares();
  }
}

std::size_t NcclUpdates::bytes() const noexcept {
  const GpuTrustRatios* const ratios = optimizer_->ratios();
  return (norm_ ? norm_->bytes() : 0) + (ratios != nullptr ? ratios->bytes() : 0);
}

void NcclUpdates::finish(BucketId b, const StepInfo& step) {
  const bool counts = step.global_samples > 0;
  const float scale = counts ? 1.0F / static_cast<float>(step.global_samples) : 0.0F;
  if (!spec_.whole_gradient()) {
    counts ? update(b, step.lr, scale) : stream_.record(*updated_[static_cast<std::size_t>(b)]);
    return;
  }
  summed_ = (summed_ + 1) % plan_.count();
  if (summed_ != 0 || !counts) {
    return;
  }
  if (norm_) {
    find_norm(step, scale);
  }
  if (!spec_.skip_nonfinite) {
    if (norm_) {
      clip();
    }
    update_all(step.lr, scale);
  }
}

void NcclUpdates::update(BucketId b, float lr, float scale) {
  optimizer_->update(b, arenas_.weights, arenas_.gradients, lr, scale);
  sum_.share(arenas_.weights.subspan(plan_[b].begin, plan_[b].size()));
  stream_.record(*updated_[static_cast<std::size_t>(b)]);
}

void NcclUpdates::update_all(float lr, float scale) {
  if (GpuTrustRatios* const ratios = optimizer_->ratios(); ratios != nullptr) {
    optimizer_->find_squares(arenas_.weights, arenas_.gradients, scale);
    share_squares();
    ratios->find(scale);
  }
  for (BucketId b = 0; b < plan_.count(); ++b) {
    update(b, lr, scale);
  }
}

/// The ranks' squares of tensors, as they are: whoever adds them does so in double, in one order.
void NcclUpdates::share_squares() {
  if (sum_.sharded()) {
    constexpr std::size_t kFloats = sizeof(kernels::TensorSquares) / sizeof(float);
    GpuTrustRatios& ratios = *optimizer_->ratios();
    comms_.all_gather(NcclCommunicators::kWorld, comms_.rank(), ratios.squares(),
                      ratios.tensors() * kFloats, Precision::fp32, stream_);
  }
}

void NcclUpdates::find_norm(const StepInfo& step, float scale) {
  norm_->compute(arenas_.gradients, scale);
  sum_norm();
  if (spec_.skip_nonfinite) {
    gpu_.check(gpu_.api().copy_to_host(host_squares_.data(), norm_->squares(), sizeof(float),
                                       stream_.native()),
               "reading the gradient's norm");
    stream_.record(norm_known_);
    undecided_ = Update{step.lr, scale};
  }
}

/// Of the ranks' shards.
void NcclUpdates::sum_norm() {
  if (sum_.sharded()) {
    comms_.all_reduce(NcclCommunicators::kWorld, norm_->squares(), 1, Precision::fp32, stream_);
  }
}

void NcclUpdates::clip() {
  gpu_.each(static_cast<std::int64_t>(plan_.elements()),
            kernels::ClipByNorm{arenas_.gradients.data(), norm_->squares(), spec_.clip_norm},
            stream_, "clipping");
}

void NcclUpdates::decide() {
  if (!undecided_) {
    return;
  }
  const Update left = *std::exchange(undecided_, std::nullopt);
  wait_on_host(norm_known_, comms_);
  const double norm = std::sqrt(static_cast<double>(host_squares_.as<float>().front()));
  if (!std::isfinite(norm)) {
    ++skipped_;
    return;
  }
  update_all(left.lr, left.scale * clip_factor(norm, spec_.clip_norm));
}

}  // namespace paceline
