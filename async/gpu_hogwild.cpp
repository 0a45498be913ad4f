// SPDX-License-Identifier: Apache-2.0
#include "async/gpu_hogwild.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "async/share.h"
#include "common/base/error.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "common/core/loss_scaler.h"

namespace paceline {

namespace {

/// Released by the last worker that holds it, whichever's Gpu ends first; left to the process's end
/// where some worker's is stuck.
class SharedArena {
 public:
  SharedArena(Gpu& gpu, std::span<const float> init) : module_(gpu.module()), device_(gpu.index()) {
    module_.check(
        module_.api().allocate(&memory_, init.size_bytes()),
        fmt::format("GPU {}: {} bytes for the shared weights", device_, init.size_bytes()));
    weights = {static_cast<float*>(memory_), init.size()};
    gpu.upload(init, weights);
  }
  ~SharedArena() {
    if (!stuck) {
      static_cast<void>(module_.api().release(memory_));
    }
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  [[nodiscard]] int device() const noexcept { return device_; }

  std::span<float> weights;
  std::atomic<std::int64_t> updates{0};
  std::atomic<bool> stuck{false};  ///< a worker's Gpu may still write, or never be idle

 private:
  const CudaModule& module_;
  int device_;
  void* memory_ = nullptr;
};

class GpuHogwildSynchronizer final : public Synchronizer {
 public:
  explicit GpuHogwildSynchronizer(const WorkerContext& context)
      : workers_(context.workers), abort_(context.abort) {}

  /// The others' kernels may still write what the last worker to go releases; in a job that is
  /// being aborted they may never end, and freeing memory would wait for them.
  ~GpuHogwildSynchronizer() override {
    if (gpu_ == nullptr) {
      return;
    }
    if (abort_.requested()) {
      gpu_->waits()->give_up();
    }
    if ((!gpu_->stream().drain() || gpu_->waits()->given_up()) && shared_) {
      shared_->stuck = true;
    }
  }

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::asynchronous, UpdatePlace::shared_memory, true};
  }

  /// The weights are shared by all workers and counted for each.
  [[nodiscard]] MemoryUse memory() const noexcept override {
    const std::size_t arena = plan_.elements() * sizeof(float);
    return {arena, arena, optimizer_->state_bytes(), 0};
  }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    gpu_ = &as_gpu(device);
    plan_ = plan;
    shared_ = share_among_threads<SharedArena>(
        workers_, [&] { return std::make_shared<SharedArena>(*gpu_, init); });
    if (shared_->device() != gpu_->index()) {
      throw Error(fmt::format("rank {} computes on GPU {}, the shared weights are on GPU {}",
                              workers_.rank(), gpu_->index(), shared_->device()));
    }
    gradients_ = gpu_->allocate(plan.elements(), "the gradients");
    OwnRanges all;
    for (BucketId b = 0; b < plan.count(); ++b) {
      all.push_back({plan[b]});
    }
    optimizer_.emplace(*gpu_, gpu_->stream(), spec, std::move(all));
    return {shared_->weights, gradients_->values()};
  }

  void begin_step(const StepInfo& info) override {
    info_ = info;
    updates_seen_ = shared_->updates.load(std::memory_order_relaxed);
  }

  void parameters_needed(BucketId /*b*/, Stream& /*stream*/) override {}

  void gradient_ready(BucketId b, const Event& /*done*/) override {
    if (info_.samples > 0 && plan_[b].size() > 0) {
      optimizer_->update(b, shared_->weights, gradients_->values(), info_.lr,
                         1.0F / static_cast<float>(info_.samples));
    }
  }

  StepReport commit() override {
    StepReport report;
    if (info_.samples > 0) {
      const std::int64_t now = shared_->updates.fetch_add(1, std::memory_order_relaxed);
      report.staleness.add(now - updates_seen_);
    }
    return report;
  }

  void quiesce() override {
    gpu_->stream().synchronize();
    workers_.barrier();
  }

  void save(StateWriter& writer) const override { optimizer_->save(writer); }
  void load(StateReader& reader) override { optimizer_->load(reader); }

 private:
  Communicator& workers_;
  const AbortToken& abort_;
  Gpu* gpu_ = nullptr;
  BucketPlan plan_;
  std::shared_ptr<SharedArena> shared_;
  std::unique_ptr<DeviceArena> gradients_;
  std::optional<GpuOptimizer> optimizer_;
  StepInfo info_;
  std::int64_t updates_seen_ = 0;
};

}  // namespace

std::unique_ptr<Synchronizer> make_gpu_hogwild(const WorkerContext& context) {
  return std::make_unique<GpuHogwildSynchronizer>(context);
}

void validate_gpu_hogwild(const Config& config) {
  if (config.optimizer.clip_norm > 0.0) {
    throw ConfigError(fmt::format(
        "optimizer.clip_norm = {} with sync = hogwild and device = cuda: a bucket's update is "
        "queued before the whole gradient is there; allowed: 0",
        config.optimizer.clip_norm));
  }
  if (LossScaler(config.precision).enabled()) {
    throw ConfigError(fmt::format(
        "precision.compute = {} with precision.loss_scale = {}, sync = hogwild and device = cuda: "
        "a bucket's update is queued before an overflow of the others is known; allowed: "
        "precision.loss_scale = none, which auto is but for fp16",
        config.precision.compute, config.precision.loss_scale));
  }
}

}  // namespace paceline
