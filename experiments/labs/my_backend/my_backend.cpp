// SPDX-License-Identifier: Apache-2.0
// A backend of your own in one file: every rank sends its whole gradient to all the others through
// the control plane, and adds them up in rank order. Correct, simple, slow: a place to start.
#include "experiments/labs/my_backend/my_backend.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/core/arena_optimizer.h"

namespace paceline {
namespace {

class MyBackend final : public Synchronizer {
 public:
  explicit MyBackend(const WorkerContext& context) : workers_(context.workers) {}

  Traits traits() const noexcept override { return {}; }  // synchronous, updates on the workers

  MemoryUse memory() const noexcept override {
    const std::size_t arena = weights_.size() * sizeof(float);
    return {arena, arena, optimizer_->state_bytes(), 0};
  }
  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    weights_.assign(init.begin(), init.end());
    gradients_.assign(plan.elements(), 0.0F);
    optimizer_ = std::make_unique<ArenaOptimizer>(spec, plan);
    return {weights_, gradients_};
  }

  void begin_step(const StepInfo& info) override { info_ = info; }
  void parameters_needed(BucketId /*b*/, Stream& /*stream*/) override {}
  void gradient_ready(BucketId /*b*/, const Event& done) override { done.synchronize(); }

  StepReport commit() override {
    std::string mine(gradients_.size() * sizeof(float), '\0');
    std::memcpy(mine.data(), gradients_.data(), mine.size());
    StepReport report;
    report.bytes_sent = mine.size();
    std::vector<float> other(gradients_.size());
    std::vector<float> sum(gradients_.size(), 0.0F);
    for (const std::string& blob : workers_.allgather(std::move(mine))) {
      std::memcpy(other.data(), blob.data(), other.size() * sizeof(float));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
    }
    const float scale = 1.0F / static_cast<float>(info_.global_samples);
    report.skipped = optimizer_->apply(weights_, sum, info_.lr, scale) ? 0 : 1;
    return report;
  }

  void quiesce() override {}  // commit leaves nothing in flight
  void save(StateWriter& writer) const override { optimizer_->save(writer); }
  void load(StateReader& reader) override { optimizer_->load(reader); }

 private:
  Communicator& workers_;
  std::vector<float> weights_;
  std::vector<float> gradients_;
  std::unique_ptr<ArenaOptimizer> optimizer_;
  StepInfo info_;
};

}  // namespace

Backend my_backend() {
  Backend backend;
  backend.name = "my_backend";
  backend.summary = "the worked example of experiments/labs: everyone sends everything to everyone";
  backend.make = [](const WorkerContext& context) -> std::unique_ptr<Synchronizer> {
    return std::make_unique<MyBackend>(context);
  };
  return backend;
}

}  // namespace paceline
