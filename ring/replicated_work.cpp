// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include "common/base/buffer.h"
#include "common/core/arena_optimizer.h"
#include "ring/bucket_work.h"
#include "ring/gradient_reducer.h"
#include "ring/one_bit_adam.h"

namespace paceline {

namespace {

class ReplicatedWork final : public BucketWork {
 public:
  explicit ReplicatedWork(const WorkPlace& place)
      : plan_(place.plan),
        transport_(place.transport),
        weights_(place.init.size_bytes()),
        gradients_(place.transport.allocate(place.init.size_bytes())),
        optimizer_(place.spec, place.plan) {
    std::ranges::copy(place.init, weights_.as<float>().begin());
    const ReducerPlace reducer{place.config, place.transport, place.collective, plan_,
                               place.spec.skip_nonfinite};
    reducer_ = make_gradient_reducer(reducer);
    if (place.spec.kind == OptimizerKind::onebit_adam) {
      one_bit_.emplace(reducer, optimizer_);
    }
  }

  [[nodiscard]] ReplicaView view() noexcept override {
    return {weights_.as<float>(), gradient_span()};
  }

  BucketCost run(BucketId b, const StepInfo& step) override {
    const Range range = plan_[b];
    const std::span<float> gradient = gradient_span().subspan(range.begin, range.size());
    const std::span<float> weights = weights_.as<float>().subspan(range.begin, range.size());
    BucketCost cost;
    if (one_bit_ && one_bit_->frozen(b)) {
      cost.times = one_bit_->step(b, weights, gradient, step);
    } else {
      cost.times = reducer_->reduce(b, gradient, step);
      cost.skipped = update(b, step);
    }
    cost.bytes_sent_total = transport_.bytes_sent();
    return cost;
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use{weights_.size(), gradient_span().size_bytes(), optimizer_.state_bytes(),
                  reducer_->staging_bytes(), reducer_->residual_bytes()};
    if (one_bit_) {
      use.staging += one_bit_->staging_bytes();
      use.residual += one_bit_->residual_bytes();
    }
    return use;
  }

  void save(StateWriter& writer) const override { optimizer_.save(writer); }
  void load(StateReader& reader) override { optimizer_.load(reader); }

 private:
  [[nodiscard]] std::span<float> gradient_span() const noexcept {
    const std::span<std::byte> bytes = gradients_->bytes();
    return {reinterpret_cast<float*>(bytes.data()), plan_.elements()};
  }

  /// Of bucket b, or of all once the step's last bucket is summed; returns the updates left out.
  int update(BucketId b, const StepInfo& step) {
    const float scale = 1.0F / static_cast<float>(std::max<std::int64_t>(step.global_samples, 1));
    if (!optimizer_.spec().whole_gradient()) {
      if (step.global_samples > 0) {
        optimizer_.apply_bucket(b, weights_.as<float>(), gradient_span(), step.lr, scale);
      }
      return 0;
    }
    summed_ = (summed_ + 1) % plan_.count();
    if (summed_ != 0 || step.global_samples == 0) {
      return 0;
    }
    return optimizer_.apply(weights_.as<float>(), gradient_span(), step.lr, scale) ? 0 : 1;
  }

  const BucketPlan& plan_;
  Transport& transport_;
  Buffer weights_;
  std::unique_ptr<CommBuffer> gradients_;
  ArenaOptimizer optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::optional<OneBitAdam> one_bit_;
  int summed_ = 0;  ///< buckets of this step (whole_gradient)
};

}  // namespace

std::unique_ptr<BucketWork> make_replicated_work(const WorkPlace& place) {
  return std::make_unique<ReplicatedWork>(place);
}

}  // namespace paceline
