// SPDX-License-Identifier: Apache-2.0
// A model: a static sequence of layers over flat arenas, with explicit forward and backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/activation_plan.h"
#include "common/core/model_options.h"
#include "common/core/sparse.h"
#include "common/sync/bucket_plan.h"

namespace paceline {

/// Height, width, channels of one sample (NHWC in memory). A vector has height = width = 1.
struct SampleShape {
  std::int64_t height = 1;
  std::int64_t width = 1;
  std::int64_t channels = 1;
  [[nodiscard]] std::int64_t elements() const noexcept { return height * width * channels; }
  bool operator==(const SampleShape&) const = default;
};

/// One parameter tensor and its place in the flat arenas. Offsets descend with the layer: the last
/// layer's tensors lie first (backward order).
struct Parameter {
  std::string name;                 ///< "conv1.weight"
  std::vector<std::int64_t> shape;  ///< PyTorch's layout: linear [out, in], conv [out, in, kh, kw]
  Range range;                      ///< elements of the arenas
  int layer = 0;                    ///< index of its layer, forward order
};

/// A batch in host memory, borrowed during forward and backward.
struct Batch {
  std::span<const float> inputs;         ///< [samples, height, width, channels]
  std::span<const std::int32_t> labels;  ///< [samples, positions], 0 <= label < classes
  std::int64_t samples = 0;              ///< 0 is allowed: gradients become zero
  float loss_scale = 1.0F;               ///< factor of all gradients; the result's loss is unscaled
  SparseBatch sparse{};                  ///< instead of `inputs`, for a sparse() model
};

/// Of a sample with several positions both are the mean over them.
struct BatchResult {
  double loss_sum = 0.0;  ///< cross-entropy summed over the batch's samples
  double correct = 0.0;   ///< samples whose largest logit is the label
};

/// Told by Model around each layer, forward index 0..layers-1, so that a trainer can wait for
/// weights, launch buckets, and pace an emulated device. A layer that is left out of a step gets no
/// call.
class LayerHooks {
 public:
  LayerHooks() = default;
  virtual ~LayerHooks() = default;
  LayerHooks(const LayerHooks&) = delete;
  LayerHooks& operator=(const LayerHooks&) = delete;
  virtual void before_forward(int layer) = 0;
  /// On a GPU queues nothing, unlike the other two.
  virtual void after_forward(int layer) = 0;
  /// The layer's weight gradients are final and its weights are not read again in this step.
  virtual void after_backward(int layer) = 0;

  /// On a GPU, asked as a batch begins that leaves out no layer: whether the call for `layer` may
  /// queue work, or make the stream wait. The layers' work between two such calls may be queued as
  /// one.
  [[nodiscard]] virtual bool queues_before_forward(int /*layer*/) const { return true; }
  [[nodiscard]] virtual bool queues_after_backward(int /*layer*/) const { return true; }
};

/// Not thread-safe; one per worker. Several models of one process may compute at once.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual SampleShape input_shape() const noexcept = 0;
  [[nodiscard]] virtual int classes() const noexcept = 0;
  /// Labels of a sample: places at which the model predicts.
  [[nodiscard]] virtual std::int64_t positions() const noexcept { return 1; }
  [[nodiscard]] virtual int layers() const noexcept = 0;
  [[nodiscard]] virtual std::string_view layer_name(int layer) const = 0;
  /// Multiply-adds ×2 of one sample's forward; backward is taken as twice that.
  [[nodiscard]] virtual double layer_flops(int layer) const = 0;
  /// In arena order (last layer first).
  [[nodiscard]] virtual const std::vector<Parameter>& parameters() const noexcept = 0;
  [[nodiscard]] std::size_t parameter_elements() const noexcept {
    return parameters().empty() ? 0 : parameters().back().range.end;
  }

  /// Fills `weights` (parameter_elements() floats): He-uniform as PyTorch's defaults,
  /// U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for weights and biases, from a counter-based generator, so
  /// the values depend on (seed, parameter, element) alone; a norm's γ = 1, β = 0.
  virtual void initialise(std::span<float> weights, std::uint64_t seed) const = 0;

  /// State that training updates besides the weights (BatchNorm's running statistics), this
  /// worker's own; evaluation reads it. Empty in most models. In host memory: on a GPU a copy, good
  /// until the next batch, which takes what was written to it.
  [[nodiscard]] virtual std::span<float> buffers() = 0;

  /// Whether train_batch involves all ranks (SyncBatchNorm): each then makes the same number of
  /// calls, with 0 samples where it has no more.
  [[nodiscard]] virtual bool collective() const noexcept = 0;

  /// The batches that follow belong to step `step`: they leave out the same layers, a choice by
  /// (seed, rank, step, layer). Before the first call none is left out.
  virtual void begin_step(std::int64_t step) = 0;

  /// Forward and backward. Overwrites `gradients` with the sum over the batch's samples, but for
  /// those of layers that are left out, which it does not touch.
  /// Both spans hold parameter_elements() floats; they may change between calls (buffers), but
  /// keeping them stable is faster. `hooks` may be null.
  virtual BatchResult train_batch(const Batch& batch, std::span<const float> weights,
                                  std::span<float> gradients, LayerHooks* hooks) = 0;

  /// Whether train_batch only queues its work and returns nothing; its result is then fetched by
  /// take_result().
  [[nodiscard]] virtual bool asynchronous() const noexcept { return false; }
  /// Of the oldest train_batch whose result was not taken yet; blocks until it is there. At most
  /// kOpenResults may be untaken. Only where asynchronous().
  static constexpr int kOpenResults = 4;
  [[nodiscard]] virtual BatchResult take_result() { return {}; }

  /// Training batches so far whose work was launched as CUDA graphs.
  [[nodiscard]] virtual std::int64_t graph_batches() const noexcept { return 0; }

  /// Forward only, in parts of ModelOptions::evaluation_samples, whatever was trained before.
  virtual BatchResult evaluate_batch(const Batch& batch, std::span<const float> weights) = 0;

  /// Whether it reads Batch::sparse and not Batch::inputs. If so, train_batch takes an empty
  /// `gradients` too; sparse_gradient() is that of the last train_batch, valid until the next.
  [[nodiscard]] virtual bool sparse() const noexcept { return false; }
  [[nodiscard]] virtual SparseGradient sparse_gradient() const noexcept { return {}; }

  /// Bytes of activations and scratch held now.
  [[nodiscard]] virtual std::size_t activation_bytes() const noexcept = 0;
  /// Of activation_bytes(), what the maths library asked for, which no plan predicts.
  [[nodiscard]] virtual std::size_t unplanned_bytes() const noexcept { return 0; }
  /// What activation_bytes() will be after a training batch; allocates nothing. Empty: not known.
  [[nodiscard]] virtual ActivationPlan plan_activations(const PlannedBatch& /*batch*/) const {
    return {};
  }
};

/// Names that make_model takes: softmax, mlp, cnn, resmlp, resnet20, resnet50, logistic, gpt.
[[nodiscard]] const std::vector<std::string>& model_names();

/// The CPU model (oneDNN; logistic: plain loops over sparse rows). Throws ConfigError for an
/// unknown name and for what check_model_options refuses of shapes and layers.
[[nodiscard]] std::unique_ptr<Model> make_model(std::string_view name, SampleShape input,
                                                int classes, const ModelOptions& options = {});

}  // namespace paceline
