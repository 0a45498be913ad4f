// SPDX-License-Identifier: Apache-2.0
// Between a model's layers and the seam: which bucket is needed when, which is final when.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/core/device.h"
#include "common/core/device_pace.h"
#include "common/core/model.h"
#include "common/core/step_stretch.h"
#include "common/core/trainer.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/synchronizer.h"

namespace paceline {

/// First and last arena bucket that a layer's parameters touch, and for each bucket how many layers
/// must finish backward before it is final.
class LayerBuckets {
 public:
  LayerBuckets(const Model& model, const BucketPlan& plan);
  [[nodiscard]] const std::vector<BucketId>& of_layer(int layer) const {
    return of_layer_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] const std::vector<int>& layers_of() const noexcept { return layers_of_; }
  /// Whether a bucket is first needed by the layer's forward; whether one may be launched, as all
  /// before it, after its backward, where no layer is left out.
  [[nodiscard]] bool needs_first(int layer) const {
    return needs_first_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] bool launches(int layer) const {
    return launches_[static_cast<std::size_t>(layer)];
  }

 private:
  void find_turns();

  std::vector<std::vector<BucketId>> of_layer_;
  std::vector<int> layers_of_;
  std::vector<bool> needs_first_;
  std::vector<bool> launches_;
};

struct StepDriverOptions {
  Nanoseconds emulate{0};   ///< the device's time for a step (DevicePace)
  bool find_unused = true;  ///< parameters that got no gradient in a step count as zero
  int rank = 0;             ///< for errors
  StepStretch stretch;      ///< of each step, on purpose
};

/// Turns a model's layer hooks into calls of the seam, paces the emulated device and adds up the
/// time that the seam blocked. What it is constructed with outlives it; used by one thread.
class StepDriver final : public LayerHooks {
 public:
  StepDriver(const Model& model, const BucketPlan& plan, const StepDriverOptions& options,
             Device& device, Synchronizer& sync, TrainObserver& observer);

  /// The arena that the backend reads gradients from.
  void set_gradients(std::span<float> gradients) noexcept { gradients_ = gradients; }
  /// Whether steps hand over the model's sparse_gradient() instead; without micro-batches.
  void set_sparse(bool sparse) noexcept { sparse_ = sparse; }

  /// `gradient_scale`: factor of every gradient before its bucket is launched; 1 over the loss
  /// scale.
  void begin(const StepInfo& info, float gradient_scale = 1.0F);
  /// Only the step's `last` micro-batch launches buckets; `accumulated` (may be empty) is added to
  /// each before.
  void begin_micro_batch(bool last, std::span<float> accumulated);

  void before_forward(int layer) override;
  void after_forward(int layer) override;
  void after_backward(int layer) override;
  [[nodiscard]] bool queues_before_forward(int layer) const override;
  [[nodiscard]] bool queues_after_backward(int layer) const override;

  /// Waits for the buckets of layers that this step left out too, before the gradients of all are
  /// read.
  void need_all();

  /// After backward: what is left is launched in order, empty buckets included. The gradients of
  /// layers whose backward never came become zero first; without find_unused they are an Error that
  /// names rank, step and the first such parameter.
  StepReport commit();
  void quiesce();

  /// Time, not taken before, in which the seam kept the device from computing, `most` at most: the
  /// rest is left for the next call. On a GPU its stream's own account of what the device has come
  /// to the end of, so that of a step's last buckets comes with the next step's.
  [[nodiscard]] double take_blocked(double most);
  [[nodiscard]] const DevicePace& pace() const noexcept { return pace_; }

 private:
  void need(BucketId b);
  void clear_unused();
  void launch_ready();
  void finish_gradient(const Range& range);
  /// Runs `call` of the seam and returns how long the host was in it.
  template <typename F>
  std::int64_t in_seam(const char* name, const F& call);
  void close_segment(const char* name);

  const Model& model_;
  StepDriverOptions options_;
  bool sparse_ = false;
  const BucketPlan& plan_;
  LayerBuckets buckets_;
  DevicePace pace_;
  Synchronizer& sync_;
  TrainObserver& observer_;
  Device& device_;
  std::vector<std::unique_ptr<Event>> events_;  // by bucket: its gradient is final
  std::span<float> gradients_;
  std::span<float> accumulated_;
  float gradient_scale_ = 1.0F;
  bool last_micro_batch_ = true;
  std::vector<bool> finished_;  // layers whose last backward is over
  std::vector<int> pending_;    // layers that a bucket waits for
  std::vector<bool> needed_;
  std::size_t next_ready_ = 0;
  std::unique_ptr<Stopwatch> idle_;  // of the device's stream in the seam; null: the host's time is
  double blocked_s_ = 0.0;           // not yet taken
  std::int64_t segment_begin_ns_ = 0;
  std::int64_t step_ = 0;
};

}  // namespace paceline
