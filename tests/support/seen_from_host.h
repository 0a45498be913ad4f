// SPDX-License-Identifier: Apache-2.0
// A Synchronizer whose replica is on a GPU (or its double), seen as one whose replica is on the
// host, so that what drives backends with gradients of its own can drive it too.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/gpu/gpu.h"
#include "common/sync/synchronizer.h"

namespace paceline::test {

/// Plays the model on the GPU: downloads weights when they are needed, uploads gradients and hands
/// them over by an event on the compute stream.
class SeenFromHost final : public Synchronizer {
 public:
  SeenFromHost(const CudaModule& module, int index, std::unique_ptr<Synchronizer> inner)
      : gpu_(module, {.index = index}), inner_(std::move(inner)) {}
  /// Copies may be under way after an exception.
  ~SeenFromHost() override {
    inner_.reset();
    if (!gpu_.stream().drain()) {
      gpu_.keep(std::move(weights_));
      gpu_.keep(std::move(gradients_));
    }
  }

  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }
  [[nodiscard]] MemoryUse memory() const noexcept override { return inner_->memory(); }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    plan_ = plan;
    device_ = inner_->bind(plan, gpu_, optimizer, init);
    weights_ = Buffer(plan.elements() * sizeof(float));
    gradients_ = Buffer(plan.elements() * sizeof(float));
    for (BucketId b = 0; b < plan.count(); ++b) {
      done_.push_back(gpu_.make_event());
    }
    gpu_.download(device_.weights, weights_.as<float>());
    return {weights_.as<float>(), gradients_.as<float>()};
  }

  void begin_step(const StepInfo& info) override { inner_->begin_step(info); }

  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    inner_->parameters_needed(b, gpu_.stream());
    gpu_.download(part(device_.weights, b), part(weights_.as<float>(), b));
  }

  void gradient_ready(BucketId b, const Event& /*done*/) override {
    const std::span<float> from = part(gradients_.as<float>(), b);
    if (!from.empty()) {
      gpu_.check(gpu_.api().copy_to_device(part(device_.gradients, b).data(), from.data(),
                                           from.size_bytes(), gpu_.stream().native()),
                 "copying a gradient to the device");
    }
    Event& done = *done_[static_cast<std::size_t>(b)];
    gpu_.stream().record(done);
    inner_->gradient_ready(b, done);
  }

  /// The host may write its gradients afterwards.
  StepReport commit() override {
    const StepReport report = inner_->commit();
    gpu_.stream().synchronize();
    return report;
  }

  void quiesce() override {
    inner_->quiesce();
    gpu_.download(device_.weights, weights_.as<float>());
  }

  void save(StateWriter& writer) const override { inner_->save(writer); }
  void load(StateReader& reader) override { inner_->load(reader); }

 private:
  [[nodiscard]] std::span<float> part(std::span<float> arena, BucketId b) const {
    return arena.subspan(plan_[b].begin, plan_[b].size());
  }

  Gpu gpu_;
  BucketPlan plan_;
  std::unique_ptr<Synchronizer> inner_;
  ReplicaView device_;
  Buffer weights_;
  Buffer gradients_;
  std::vector<std::unique_ptr<Event>> done_;
};

}  // namespace paceline::test
