// SPDX-License-Identifier: Apache-2.0
// A backend whose weights are on a GPU, run on the host's double of one and fed with gradients of
// the host, so that the conformance suite can drive it.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/core/gpu/gpu.h"
#include "common/sync/backend.h"
#include "ring/nccl_synchronizer.h"
#include "tests/support/host_module.h"

namespace paceline::testing {

inline const CudaModule& double_module() {
  static const CudaModule module(test::host_module());
  return module;
}

/// Copies a bucket's gradient to the device before it hands it over, and its weights to the host
/// once they may be read. Rank r has the double's device r.
class OnDouble final : public Synchronizer {
 public:
  OnDouble(const WorkerContext& context, std::unique_ptr<Synchronizer> inner)
      : gpu_(double_module(), {.index = context.rank}), inner_(std::move(inner)) {}

  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }
  [[nodiscard]] MemoryUse memory() const noexcept override { return inner_->memory(); }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    plan_ = plan;
    device_ = inner_->bind(plan, gpu_, optimizer, init);
    weights_.resize(plan.elements());
    gradients_.resize(plan.elements());
    gpu_.download(device_.weights, weights_);
    for (BucketId b = 0; b < plan.count(); ++b) {
      ready_.push_back(gpu_.make_event());
    }
    return {weights_, gradients_};
  }
  void begin_step(const StepInfo& info) override { inner_->begin_step(info); }
  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    inner_->parameters_needed(b, gpu_.stream());
    gpu_.download(part(device_.weights, b), part(weights_, b));
  }
  void gradient_ready(BucketId b, const Event& /*done*/) override {
    gpu_.upload(part(gradients_, b), part(device_.gradients, b));
    Event& ready = *ready_[static_cast<std::size_t>(b)];
    gpu_.stream().record(ready);
    inner_->gradient_ready(b, ready);
  }
  StepReport commit() override { return inner_->commit(); }
  void quiesce() override {
    inner_->quiesce();
    gpu_.download(device_.weights, weights_);
  }
  void save(StateWriter& writer) const override { inner_->save(writer); }
  void load(StateReader& reader) override { inner_->load(reader); }

  [[nodiscard]] Gpu& gpu() noexcept { return gpu_; }

 private:
  [[nodiscard]] std::span<float> part(std::span<float> arena, BucketId b) const {
    return arena.subspan(plan_[b].begin, plan_[b].size());
  }

  Gpu gpu_;
  BucketPlan plan_;
  ReplicaView device_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::vector<std::unique_ptr<Event>> ready_;
  std::unique_ptr<Synchronizer> inner_;  ///< last: ends before its device
};

/// sync=nccl on the doubles of the CUDA module and of NCCL.
inline Backend nccl_on_double() {
  Backend row;
  row.name = "nccl";
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.make = [](const WorkerContext& context) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<OnDouble>(context, make_nccl_synchronizer(context));
  };
  return row;
}

}  // namespace paceline::testing
