// SPDX-License-Identifier: Apache-2.0
// A chain of layers on a GPU, ending in softmax cross-entropy at each position of its output. A
// step is only queued: the host neither waits for it nor for its result.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/core/gpu/batch_upload.h"
#include "common/core/gpu/gpu_context.h"
#include "common/core/gpu/result_queue.h"
#include "common/core/gpu/step_graphs.h"
#include "common/core/layered_model.h"

namespace paceline {

/// asynchronous(). Spans of weights and gradients are memory of the Gpu; a batch is the host's and
/// borrowed during the call only. Hooks are called as work is queued, so that one may make the
/// stream wait or mark a point in it. The host waits where memory grows (a larger batch than any
/// before), where a batch comes while the two before it are not uploaded yet, in take_result(),
/// evaluate_batch(), buffers(), and for SyncBatchNorm's statistics; each wait ends as GpuWaits
/// says.
///
/// Where Gpu::graphs(), a training batch whose work is known is launched as CUDA graphs, one
/// between two points where hooks or the loss queue something: but for batches without samples or
/// that leave out layers, and SyncBatchNorm's.
///
/// Inputs are rounded to the context's format of inputs; losses are fp32.
class GpuSequential final : public LayeredModel {
 public:
  /// The layers are made with `context`, whose Gpu outlives the model. The last layer's output are
  /// the logits, [height·width positions, channels classes].
  GpuSequential(std::string name, std::vector<std::unique_ptr<Layer>> layers,
                std::shared_ptr<GpuContext> context, const ModelOptions& options);
  ~GpuSequential() override;

  void begin_step(std::int64_t step) override;
  [[nodiscard]] bool asynchronous() const noexcept override { return true; }
  /// Waits for what is queued and returns the host's copy; what is written to it before the next
  /// batch comes takes effect with that batch.
  [[nodiscard]] std::span<float> buffers() override;
  BatchResult train_batch(const Batch& batch, std::span<const float> weights,
                          std::span<float> gradients, LayerHooks* hooks) override;
  [[nodiscard]] BatchResult take_result() override { return results_.take(); }
  [[nodiscard]] std::int64_t graph_batches() const noexcept override { return graphs_.replayed(); }
  BatchResult evaluate_batch(const Batch& batch, std::span<const float> weights) override;
  [[nodiscard]] std::size_t activation_bytes() const noexcept override;
  /// After two batches, so that both have been uploaded; `batch.element_bytes` is the context's.
  [[nodiscard]] ActivationPlan plan_activations(const PlannedBatch& batch) const override;
  [[nodiscard]] std::size_t unplanned_bytes() const noexcept override {
    return context_->unplanned_bytes();
  }

 private:
  void reserve(std::int64_t samples);
  void upload_buffers();
  [[nodiscard]] float* state(std::size_t l) const noexcept;
  [[nodiscard]] float* output(std::size_t l) const noexcept;
  /// Half 0 or 1 of what layers alternate between.
  [[nodiscard]] float* gradient(int half) const noexcept;
  void forward(const Batch& batch, const float* inputs, const float* weights, bool training,
               LayerHooks* hooks);
  void loss(const Batch& batch, const std::int32_t* labels, bool with_gradient,
            ResultQueue& results);
  void backward(const Batch& batch, const float* weights, std::span<float> gradients,
                LayerHooks* hooks);
  /// Also fills cuts_. None where the batch is queued call by call.
  [[nodiscard]] std::optional<StepKey> key_of(const Batch& batch,
                                              const BatchUpload::OnDevice& there,
                                              const float* weights, const float* gradients,
                                              const LayerHooks* hooks);
  void cut_if(bool cut);

  std::shared_ptr<GpuContext> context_;
  BatchUpload upload_;
  ResultQueue results_;     // of training
  ResultQueue evaluation_;  // of parts of a batch
  StepGraphs graphs_;
  std::vector<bool> cuts_;  // before each layer's forward, then after each one's backward
  std::int64_t capacity_ = 0;
  std::int64_t step_ = ResultQueue::kNoStep;
  GpuMemory activations_;
  GpuMemory gradients_;               // two halves
  GpuMemory losses_;                  // fp32, then a byte each for right or wrong
  std::vector<const float*> inputs_;  // of each layer, kept from forward to backward
  GpuMemory device_buffers_;
  std::vector<float> buffers_;  // the host's copy
  bool buffers_lent_ = true;    // the copy may have been written to
};

}  // namespace paceline
