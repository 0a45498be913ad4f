// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/norm.h"

#include <algorithm>
#include <cmath>

#include "common/core/kernels_norm.h"
#include "common/core/norm_layer.h"
#include "common/core/shared_moments.h"

namespace paceline {

namespace {

/// Slabs of equal height that a batch is cut into.
struct Slabs {
  std::int64_t count;
  std::int64_t rows;
  /// The channels, or with one slab several rows of them side by side as one row, so that a row is
  /// wide enough for the processor.
  std::int64_t columns;
};

/// What the norms share: moments per slab and channel, and the passes over the activations.
class Norm : public NormLayer {
 public:
  using NormLayer::NormLayer;

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return (first_.capacity() + second_.capacity()) * sizeof(double) +
           (mean_.capacity() + inverse_.capacity() + mean_dy_.capacity() + mean_dy_x_.capacity() +
            gamma_.capacity() + beta_.capacity()) *
               sizeof(float);
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    const Slabs slabs = slabs_of(batch.samples);
    const auto n = static_cast<std::size_t>(slabs.count * slabs.columns);
    return n * (2 * sizeof(double) + 4 * sizeof(float)) +
           static_cast<std::size_t>(slabs.columns) * 2 * sizeof(float);
  }

  void forward(const ForwardPass& pass) override {
    const Slabs slabs = slabs_of(pass.samples);
    reserve(slabs);
    find_statistics(pass, slabs);
    repeat(mean_, slabs);
    repeat(inverse_, slabs);
    take_scales(pass.weights, slabs);
    const kernels::Normalise row{
        pass.input,      pass.output,   mean_.data(),
        inverse_.data(), gamma_.data(), beta_.data(),
        slabs.rows,      slabs.columns, setup().activation == Activation::relu,
        pass.addend};
    kernels::for_rows(slabs.count * slabs.rows, row);
  }

  void backward(const BackwardPass& pass) override {
    const Slabs slabs = slabs_of(pass.samples);
    const kernels::NormGradientSums sums{pass.input,      masks() ? pass.output : nullptr,
                                         pass.d_output,   mean_.data(),
                                         inverse_.data(), first_.data(),
                                         second_.data(),  slabs.rows,
                                         slabs.columns};
    kernels::for_rows(units(slabs), sums);
    add_repeated(slabs);
    kernels::for_each(channels(), kernels::NormParameterGradient{
                                      first_.data(), second_.data(), pass.gradients,
                                      pass.gradients + channels(), slabs.count, channels()});
    share_gradients(pass, slabs);
    if (pass.d_input == nullptr) {
      return;
    }
    repeat(mean_dy_, slabs);
    repeat(mean_dy_x_, slabs);
    take_scales(pass.weights, slabs);
    const kernels::NormInputGradient row{
        pass.input,    pass.d_output,   pass.d_input,      mean_.data(), inverse_.data(),
        gamma_.data(), mean_dy_.data(), mean_dy_x_.data(), slabs.rows,   slabs.columns};
    kernels::for_rows(slabs.count * slabs.rows, row);
  }

 protected:
  [[nodiscard]] virtual Slabs slabs_of(std::int64_t samples) const noexcept = 0;
  /// Fills mean_ and inverse_ of the channels.
  virtual void find_statistics(const ForwardPass& pass, const Slabs& slabs) = 0;
  /// Fills first_ and second_ with the moments of every slab and channel.
  void take_moments(const ForwardPass& pass, const Slabs& slabs) {
    kernels::for_rows(units(slabs),
                      kernels::ChannelMoments{pass.input, first_.data(), second_.data(), slabs.rows,
                                              slabs.columns});
    merge_repeated(slabs);
  }
  /// Turns sums of dy and dy·x̂ (in first_, second_) into mean_dy_ and mean_dy_x_.
  virtual void share_gradients(const BackwardPass& pass, const Slabs& slabs) = 0;

  std::vector<double> first_;  // forward: means, backward: Σ dy; per slab and channel, as all here
  std::vector<double> second_;  // forward: Σ (x − mean)², backward: Σ dy·x̂
  std::vector<float> mean_;     // kept from forward to backward
  std::vector<float> inverse_;
  std::vector<float> mean_dy_;
  std::vector<float> mean_dy_x_;

 private:
  [[nodiscard]] static std::int64_t units(const Slabs& slabs) noexcept {
    return slabs.count * kernels::norm_tiles(slabs.columns);
  }

  /// The channels' values, again for every further row in a wide one.
  void repeat(std::vector<float>& values, const Slabs& slabs) const noexcept {
    const auto n = static_cast<std::size_t>(channels());
    for (auto c = n; c < static_cast<std::size_t>(slabs.columns); ++c) {
      values[c] = values[c - n];
    }
  }
  void take_scales(const float* weights, const Slabs& slabs) {
    std::copy_n(weights, channels(), gamma_.begin());
    std::copy_n(weights + channels(), channels(), beta_.begin());
    repeat(gamma_, slabs);
    repeat(beta_, slabs);
  }

  /// Sums of a wide row's columns become those of the channels.
  void add_repeated(const Slabs& slabs) noexcept {
    const auto n = static_cast<std::size_t>(channels());
    for (auto c = n; c < static_cast<std::size_t>(slabs.columns); ++c) {
      first_[c % n] += first_[c];
      second_[c % n] += second_[c];
    }
  }

  /// Moments likewise; all columns have as many rows.
  void merge_repeated(const Slabs& slabs) noexcept {
    const auto n = static_cast<std::size_t>(channels());
    const auto all = static_cast<std::size_t>(slabs.columns);
    if (all == n) {
      return;
    }
    const double share = static_cast<double>(n) / static_cast<double>(all);
    for (std::size_t channel = 0; channel < n; ++channel) {
      double mean = 0.0;
      for (std::size_t c = channel; c < all; c += n) {
        mean += first_[c] * share;
      }
      double squares = 0.0;
      for (std::size_t c = channel; c < all; c += n) {
        const double distance = first_[c] - mean;
        squares += second_[c] + static_cast<double>(slabs.rows) * distance * distance;
      }
      first_[channel] = mean;
      second_[channel] = squares;
    }
  }

  void reserve(const Slabs& slabs) {
    if (gamma_.size() < static_cast<std::size_t>(slabs.columns)) {
      gamma_.resize(static_cast<std::size_t>(slabs.columns));
      beta_.resize(static_cast<std::size_t>(slabs.columns));
    }
    const auto n = static_cast<std::size_t>(slabs.count * slabs.columns);
    if (n > first_.size()) {
      first_.resize(n);
      second_.resize(n);
      mean_.resize(n);
      inverse_.resize(n);
      mean_dy_.resize(n);
      mean_dy_x_.resize(n);
    }
  }

  std::vector<float> gamma_;  // of a row's columns, as beta_
  std::vector<float> beta_;
};

class BatchNorm final : public Norm {
 public:
  using Norm::Norm;

 private:
  [[nodiscard]] Slabs slabs_of(std::int64_t samples) const noexcept override {
    const std::int64_t rows = samples * positions();
    const std::int64_t fold = kernels::kColumnTile / channels();
    const bool folds = fold > 1 && kernels::kColumnTile % channels() == 0 && rows % fold == 0;
    return folds ? Slabs{1, rows / fold, kernels::kColumnTile} : Slabs{1, rows, channels()};
  }

  void find_statistics(const ForwardPass& pass, const Slabs& slabs) override {
    const auto n = static_cast<std::size_t>(channels());
    float* running = pass.buffers;
    if (!pass.training) {
      for (std::size_t c = 0; c < n; ++c) {
        set(c, static_cast<double>(running[c]), static_cast<double>(running[n + c]));
      }
      return;
    }
    take_moments(pass, slabs);
    count_ = static_cast<double>(pass.samples * positions());
    if (sums_over_ranks()) {
      count_ = share_moments(*setup().reducer, count_, std::span(first_).first(n),
                             std::span(second_).first(n));
    }
    for (std::size_t c = 0; c < n && count_ > 0.0; ++c) {
      set(c, first_[c], second_[c] / count_);
      keep(running[c], first_[c]);
      if (count_ > 1.0) {
        keep(running[n + c], second_[c] / (count_ - 1.0));
      }
    }
  }

  void share_gradients(const BackwardPass& pass, const Slabs& /*slabs*/) override {
    const auto n = static_cast<std::size_t>(channels());
    const double* plain = first_.data();
    const double* weighted = second_.data();
    if (sums_over_ranks()) {
      sums_.resize(2 * n);
      std::copy_n(plain, n, sums_.begin());
      std::copy_n(weighted, n, sums_.begin() + static_cast<std::ptrdiff_t>(n));
      setup().reducer->sum(sums_);
      plain = sums_.data();
      weighted = sums_.data() + n;
    }
    for (std::size_t c = 0; c < n && count_ > 0.0; ++c) {
      const auto gamma = static_cast<double>(pass.weights[c]);
      mean_dy_[c] = static_cast<float>(gamma * plain[c] / count_);
      mean_dy_x_[c] = static_cast<float>(gamma * weighted[c] / count_);
    }
  }

  void set(std::size_t c, double mean, double variance) noexcept {
    mean_[c] = static_cast<float>(mean);
    inverse_[c] = static_cast<float>(1.0 / std::sqrt(variance + kNormEpsilon));
  }
  void keep(float& running, double batch) const noexcept {
    running = static_cast<float>((1.0 - setup().momentum) * static_cast<double>(running) +
                                 setup().momentum * batch);
  }

  double count_ = 0.0;  // elements per channel, of all ranks where they share
  std::vector<double> sums_;
};

class GroupNorm final : public Norm {
 public:
  GroupNorm(std::string name, SampleShape input, const NormSetup& setup)
      : Norm(std::move(name), input, setup),
        groups_(checked_groups(this->name(), channels(), setup)) {}

 private:
  [[nodiscard]] Slabs slabs_of(std::int64_t samples) const noexcept override {
    return {samples, positions(), channels()};
  }
  /// A sample's own, in evaluation as well.
  void find_statistics(const ForwardPass& pass, const Slabs& slabs) override {
    take_moments(pass, slabs);
    kernels::for_each(
        slabs.count * groups_,
        kernels::GroupMoments{first_.data(), second_.data(), mean_.data(), inverse_.data(),
                              slabs.rows, channels() / groups_, kNormEpsilon});
  }
  void share_gradients(const BackwardPass& pass, const Slabs& slabs) override {
    kernels::for_each(
        slabs.count * groups_,
        kernels::GroupGradientMeans{first_.data(), second_.data(), pass.weights, mean_dy_.data(),
                                    mean_dy_x_.data(), slabs.rows, channels() / groups_, groups_});
  }

  std::int64_t groups_;
};

}  // namespace

std::unique_ptr<Layer> make_norm(std::string name, SampleShape input, const NormSetup& setup) {
  if (setup.kind == NormKind::batch || setup.kind == NormKind::sync_batch) {
    return std::make_unique<BatchNorm>(std::move(name), input, setup);
  }
  return std::make_unique<GroupNorm>(std::move(name), input, setup);
}

}  // namespace paceline
