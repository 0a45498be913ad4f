// SPDX-License-Identifier: Apache-2.0
#include "ring/gpu_single.h"

#include <optional>

#include "ring/gpu_updates.h"

namespace paceline {

namespace {

class GpuSingleSynchronizer final : public Synchronizer {
 public:
  explicit GpuSingleSynchronizer(const AbortToken& abort) : abort_(abort) {}

  /// Nothing may run on memory that is freed.
  ~GpuSingleSynchronizer() override {
    if (gpu_ != nullptr) {
      gpu_->stream().drain();
    }
  }

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::synchronous, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override { return updates_->memory(); }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    gpu_ = &as_gpu(device);
    plan_ = plan;
    arenas_.emplace(device, plan, init);
    updates_.emplace(*gpu_, gpu_->stream(), shares_, plan_, spec, arenas_->view());
    return arenas_->view();
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    step_ = info;
  }

  void parameters_needed(BucketId /*b*/, Stream& /*stream*/) override {}
  /// The compute stream, which made the gradient, is past `done`.
  void gradient_ready(BucketId b, const Event& /*done*/) override { updates_->finish(b, step_); }

  StepReport commit() override {
    StepReport report;
    report.skipped = updates_->take_skipped();
    return report;
  }

  void quiesce() override {
    updates_->decide();
    gpu_->stream().synchronize();
  }

  void save(StateWriter& writer) const override { updates_->optimizer().save(writer); }
  void load(StateReader& reader) override { updates_->optimizer().load(reader); }

 private:
  const AbortToken& abort_;
  Gpu* gpu_ = nullptr;
  BucketPlan plan_;
  StepInfo step_;
  UpdateShares shares_;
  std::optional<GpuArenas> arenas_;
  std::optional<GpuUpdates> updates_;
};

}  // namespace

std::unique_ptr<Synchronizer> make_gpu_single(const WorkerContext& context) {
  return std::make_unique<GpuSingleSynchronizer>(context.abort);
}

}  // namespace paceline
