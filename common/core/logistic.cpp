// SPDX-License-Identifier: Apache-2.0
#include "common/core/logistic.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "common/base/error.h"

namespace paceline {

namespace {

/// As another thread may be writing it.
float shared_value(const float& weight) noexcept {
  return std::atomic_ref(const_cast<float&>(weight)).load(std::memory_order_relaxed);
}

class Logistic final : public Model {
 public:
  explicit Logistic(std::int64_t features)
      : features_(static_cast<std::size_t>(features)),
        parameters_{{"fc.weight", {1, features}, {0, features_}, 0},
                    {"fc.bias", {1}, {features_, features_ + 1}, 0}},
        sum_(features_ + 1) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "logistic"; }
  [[nodiscard]] SampleShape input_shape() const noexcept override {
    return {1, 1, static_cast<std::int64_t>(features_)};
  }
  [[nodiscard]] int classes() const noexcept override { return 2; }
  [[nodiscard]] int layers() const noexcept override { return 1; }
  [[nodiscard]] std::string_view layer_name(int /*layer*/) const override { return "fc"; }
  [[nodiscard]] double layer_flops(int /*layer*/) const override {
    return 2.0 * static_cast<double>(features_);
  }
  [[nodiscard]] const std::vector<Parameter>& parameters() const noexcept override {
    return parameters_;
  }
  void initialise(std::span<float> weights, std::uint64_t /*seed*/) const override {
    std::ranges::fill(weights, 0.0F);
  }
  [[nodiscard]] std::span<float> buffers() noexcept override { return {}; }
  [[nodiscard]] bool collective() const noexcept override { return false; }
  void begin_step(std::int64_t /*step*/) override {}
  [[nodiscard]] bool sparse() const noexcept override { return true; }
  [[nodiscard]] SparseGradient sparse_gradient() const noexcept override {
    return {elements_, values_};
  }

  BatchResult train_batch(const Batch& batch, std::span<const float> weights,
                          std::span<float> gradients, LayerHooks* hooks) override {
    check(batch, weights.size());
    if (!gradients.empty() && gradients.size() != parameter_elements()) {
      throw Error(fmt::format("model logistic: {} gradients, expected {} or none", gradients.size(),
                              parameter_elements()));
    }
    if (hooks != nullptr) hooks->before_forward(0);
    const BatchResult result = forward(batch, weights);
    if (hooks != nullptr) hooks->after_forward(0);
    backward(batch, gradients);
    if (hooks != nullptr) hooks->after_backward(0);
    return result;
  }

  BatchResult evaluate_batch(const Batch& batch, std::span<const float> weights) override {
    check(batch, weights.size());
    return forward(batch, weights);
  }

  [[nodiscard]] std::size_t activation_bytes() const noexcept override {
    return slopes_.capacity() * sizeof(float) + elements_.capacity() * sizeof(std::uint32_t) +
           values_.capacity() * sizeof(float) + sum_.bytes();
  }

  /// At most: the features that the batch's rows have in common count once.
  [[nodiscard]] ActivationPlan plan_activations(const PlannedBatch& batch) const override {
    ActivationPlan plan;
    plan.outputs = static_cast<std::size_t>(batch.samples) * sizeof(float);
    plan.gradients = parameter_elements() * (sizeof(std::uint32_t) + sizeof(float));
    plan.layers = sum_.bytes();
    return plan;
  }

 private:
  void check(const Batch& batch, std::size_t weights) const {
    const auto samples = static_cast<std::size_t>(batch.samples);
    const SparseMatrix* matrix = batch.sparse.matrix;
    if (weights != parameter_elements() || batch.labels.size() != samples || matrix == nullptr ||
        batch.sparse.rows.size() != samples ||
        matrix->width != static_cast<std::int64_t>(features_)) {
      throw Error(fmt::format(
          "model logistic: {} samples with {} labels, {} sparse rows of {} features and "
          "{} weights, expected {} features",
          samples, batch.labels.size(), batch.sparse.rows.size(),
          matrix != nullptr ? matrix->width : 0, weights, features_));
    }
    for (std::size_t i = 0; i < samples; ++i) {
      if (batch.labels[i] < 0 || batch.labels[i] > 1 || batch.sparse.rows[i] >= matrix->rows()) {
        throw Error(fmt::format("model logistic: row {} of {} with label {}, allowed 0 and 1",
                                batch.sparse.rows[i], matrix->rows(), batch.labels[i]));
      }
    }
  }

  /// Also keeps each sample's slope, d loss / d logit = p − label.
  BatchResult forward(const Batch& batch, std::span<const float> weights) {
    slopes_.resize(batch.labels.size());
    BatchResult result;
    const float bias = shared_value(weights[features_]);
    for (std::size_t i = 0; i < slopes_.size(); ++i) {
      const auto columns = batch.sparse.matrix->row_columns(batch.sparse.rows[i]);
      const auto values = batch.sparse.matrix->row_values(batch.sparse.rows[i]);
      float logit = bias;
      for (std::size_t k = 0; k < columns.size(); ++k) {
        logit += shared_value(weights[columns[k]]) * values[k];
      }
      const bool one = batch.labels[i] == 1;
      const float small = std::exp(-std::abs(logit));  // never overflows
      const float p = (logit >= 0.0F ? 1.0F : small) / (1.0F + small);
      slopes_[i] = p - (one ? 1.0F : 0.0F);
      result.loss_sum +=
          static_cast<double>(std::log1p(small) + std::max(one ? -logit : logit, 0.0F));
      result.correct += (logit > 0.0F) == one ? 1 : 0;
    }
    return result;
  }

  /// Each weight's gradient once and in order, however often its feature comes: whoever applies it
  /// to shared weights then touches popular ones' cache lines once, not in every row. Also put into
  /// `gradients` unless that is empty.
  void backward(const Batch& batch, std::span<float> gradients) {
    elements_.clear();
    values_.clear();
    float d_bias = 0.0F;
    for (std::size_t i = 0; i < slopes_.size(); ++i) {
      const float slope = slopes_[i] * batch.loss_scale;
      const auto columns = batch.sparse.matrix->row_columns(batch.sparse.rows[i]);
      const auto values = batch.sparse.matrix->row_values(batch.sparse.rows[i]);
      for (std::size_t k = 0; k < columns.size(); ++k) {
        sum_.add(columns[k], slope * values[k]);
      }
      d_bias += slope;
    }
    sum_.add(features_, d_bias);
    sum_.take(elements_, values_);
    if (!gradients.empty()) {
      std::ranges::fill(gradients, 0.0F);
      for (std::size_t k = 0; k < elements_.size(); ++k) {
        gradients[elements_[k]] = values_[k];
      }
    }
  }

  std::size_t features_;
  std::vector<Parameter> parameters_;
  SparseSum sum_;
  std::vector<float> slopes_;
  std::vector<std::uint32_t> elements_;
  std::vector<float> values_;
};

}  // namespace

std::unique_ptr<Model> make_logistic(std::int64_t features, int classes,
                                     const ModelOptions& options) {
  if (features < 1 || features > kMostFeatures || classes != 2) {
    throw ConfigError(fmt::format(
        "model = logistic: {} features and {} classes; allowed: 1 to {} features, 2 classes",
        features, classes, kMostFeatures));
  }
  if (options.precision != Precision::fp32) {
    throw ConfigError("precision.compute with model = logistic: allowed fp32");
  }
  return std::make_unique<Logistic>(features);
}

}  // namespace paceline
