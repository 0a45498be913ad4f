// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/host_staging.h"

#include <fmt/format.h>

#include <deque>
#include <optional>
#include <vector>

namespace paceline {

namespace {

class HostStagedSynchronizer final : public Synchronizer {
 public:
  explicit HostStagedSynchronizer(std::unique_ptr<Synchronizer> inner) : inner_(std::move(inner)) {}

  /// Copies still under way read and write memory that ends with this.
  ~HostStagedSynchronizer() override {
    for (const std::optional<GpuStream>* stream : {&down_, &up_}) {
      if (*stream) {
        (*stream)->drain();
      }
    }
  }

  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = inner_->memory();
    use.staging += 2 * plan_.elements() * sizeof(float);
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    gpu_ = &as_gpu(device);
    plan_ = plan;
    host_ = inner_->bind(plan, host_device_, optimizer, init);
    pinned_weights_.emplace(*gpu_, std::as_writable_bytes(host_.weights));
    pinned_gradients_.emplace(*gpu_, std::as_writable_bytes(host_.gradients));
    weights_ = gpu_->allocate(plan.elements(), "the weights");
    gradients_ = gpu_->allocate(plan.elements(), "the gradients");
    down_.emplace(*gpu_, "of gradients to the host", true);
    up_.emplace(*gpu_, "of weights to the GPU", true);
    for (BucketId b = 0; b < plan.count(); ++b) {
      arrived_.push_back(std::make_unique<GpuEvent>(*gpu_));
      uploaded_.push_back(std::make_unique<GpuEvent>(*gpu_));
    }
    gpu_->upload(host_.weights, weights_->values());
    return {weights_->values(), gradients_->values()};
  }

  void begin_step(const StepInfo& info) override {
    forward_arrived();
    inner_->begin_step(info);
  }

  void parameters_needed(BucketId b, Stream& stream) override {
    forward_arrived();
    inner_->parameters_needed(b, host_stream_);
    upload(b);
    stream.wait(*uploaded_[static_cast<std::size_t>(b)]);
  }

  void gradient_ready(BucketId b, const Event& done) override {
    const Range range = plan_[b];
    down_->wait(done);
    if (range.size() > 0) {
      gpu_->check(gpu_->api().copy_to_host(host_.gradients.data() + range.begin,
                                           gradients_->values().data() + range.begin,
                                           range.size() * sizeof(float), down_->native()),
                  "copying a gradient to the host");
    }
    down_->record(*arrived_[static_cast<std::size_t>(b)]);
    on_the_way_.push_back(b);
    forward_arrived();
  }

  StepReport commit() override {
    while (!on_the_way_.empty()) {
      const BucketId b = on_the_way_.front();
      arrived_[static_cast<std::size_t>(b)]->synchronize(
          fmt::format("the gradient of bucket {} (stream of gradients to the host)", b));
      forward_first();
    }
    return inner_->commit();
  }

  void quiesce() override {
    inner_->quiesce();
    for (BucketId b = 0; b < plan_.count(); ++b) {
      upload(b);
    }
    up_->synchronize("the updated weights");
  }

  void save(StateWriter& writer) const override { inner_->save(writer); }
  void load(StateReader& reader) override { inner_->load(reader); }

 private:
  /// Hands over what has come, in order.
  void forward_arrived() {
    while (!on_the_way_.empty() &&
           arrived_[static_cast<std::size_t>(on_the_way_.front())]->reached()) {
      forward_first();
    }
  }

  void forward_first() {
    const BucketId b = on_the_way_.front();
    on_the_way_.pop_front();
    inner_->gradient_ready(b, reached_);
  }

  /// The model is done with the bucket's old weights: its gradient has come to the host since.
  void upload(BucketId b) {
    const Range range = plan_[b];
    if (range.size() > 0) {
      gpu_->check(gpu_->api().copy_to_device(weights_->values().data() + range.begin,
                                             host_.weights.data() + range.begin,
                                             range.size() * sizeof(float), up_->native()),
                  "copying weights to the GPU");
    }
    up_->record(*uploaded_[static_cast<std::size_t>(b)]);
  }

  Gpu* gpu_ = nullptr;
  Device host_device_;
  Stream host_stream_;
  Event reached_;  ///< already
  BucketPlan plan_;
  std::unique_ptr<Synchronizer> inner_;
  ReplicaView host_;
  std::optional<PinnedRange> pinned_weights_;  ///< end before the memory of inner_
  std::optional<PinnedRange> pinned_gradients_;
  std::unique_ptr<DeviceArena> weights_;
  std::unique_ptr<DeviceArena> gradients_;
  std::optional<GpuStream> down_;
  std::optional<GpuStream> up_;
  std::vector<std::unique_ptr<GpuEvent>> arrived_;   ///< by bucket: its gradient is on the host
  std::vector<std::unique_ptr<GpuEvent>> uploaded_;  ///< by bucket: its weights are on the GPU
  std::deque<BucketId> on_the_way_;                  ///< in the order of gradient_ready
};

}  // namespace

std::unique_ptr<Synchronizer> make_host_staged(std::unique_ptr<Synchronizer> inner) {
  return std::make_unique<HostStagedSynchronizer>(std::move(inner));
}

}  // namespace paceline
