// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/result_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "common/base/error.h"

namespace paceline {

namespace {

using kernels::LossSum;

constexpr std::int64_t kMostParts = 256;
constexpr std::int64_t kPlacesOfPart = 1024;
constexpr auto kSlots = static_cast<std::size_t>(Model::kOpenResults);

std::string loss_of(std::int64_t step) {
  return step == ResultQueue::kNoStep
             ? "the loss of a batch outside of steps (stream of computing)"
             : fmt::format("the loss of step {} (stream of computing)", step);
}

}  // namespace

ResultQueue::ResultQueue(std::shared_ptr<GpuContext> context)
    : context_(std::move(context)),
      host_(kSlots * sizeof(LossSum)),
      pinned_(
          std::make_unique<PinnedRange>(context_->gpu(), std::span(host_.data(), host_.size()))),
      sums_(context_->gpu(), (kMostParts + kSlots) * sizeof(LossSum), "sums of losses") {
  for (auto& event : copied_) {
    event = std::make_unique<GpuEvent>(context_->gpu());
  }
}

ResultQueue::~ResultQueue() {
  if (!context_->gpu().stream().drain()) {
    context_->gpu().keep(std::move(host_));
  }
}

void ResultQueue::check_room() const {
  if (open() == kSlots) {
    throw Error(fmt::format("the results of {} batches were not taken", kSlots));
  }
}

void ResultQueue::put(const float* loss, const std::uint8_t* correct, std::int64_t places,
                      double share, std::int64_t step) {
  check_room();
  Gpu& gpu = context_->gpu();
  const std::size_t slot = put_ % kSlots;
  const std::int64_t parts =
      std::clamp<std::int64_t>((places + kPlacesOfPart - 1) / kPlacesOfPart, 1, kMostParts);
  auto* const of_parts = sums_.as<LossSum>();
  LossSum* const total = of_parts + kMostParts + slot;
  gpu.rows(parts, kernels::LossParts{loss, correct, of_parts, places, parts}, "summing losses");
  gpu.rows(1, kernels::LossTotal{of_parts, total, parts, share}, "summing losses");
  gpu.check(gpu.api().copy_to_host(&host_.as<LossSum>()[slot], total, sizeof(LossSum),
                                   gpu.stream().native()),
            "reading a loss");
  gpu.stream().record(*copied_[slot]);
  steps_[slot] = step;
  ++put_;
}

BatchResult ResultQueue::take() {
  if (open() == 0) {
    throw Error("there is no batch whose result was not taken");
  }
  const std::size_t slot = taken_ % kSlots;
  copied_[slot]->synchronize(loss_of(steps_[slot]));
  ++taken_;
  const LossSum& sum = host_.as<LossSum>()[slot];
  return {sum.loss, sum.correct};
}

}  // namespace paceline
