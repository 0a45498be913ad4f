// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "common/core/gpu/device_sums.h"
#include "common/core/gpu/gpu_layers.h"
#include "common/core/gpu/gpu_parts.h"
#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_norm.h"
#include "common/core/kernels_shared_norm.h"
#include "common/core/norm_layer.h"
#include "common/core/shared_moments.h"

namespace paceline {

namespace {

/// What the norms share; see kernels_columns.h for slabs, parts and columns.
class GpuNorm : public NormLayer {
 public:
  GpuNorm(GpuContextPtr context, std::string name, SampleShape input, const NormSetup& setup)
      : NormLayer(std::move(name), input, setup), context_(std::move(context)) {}

  [[nodiscard]] std::size_t held_bytes() const noexcept override { return statistics_.size(); }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    return statistics_bytes(cut_of(batch.samples));
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    ScratchAreas areas{};
    areas[3] = scratch_bytes(cut_of(batch.samples));
    return areas;
  }

  void forward(const ForwardPass& pass) override {
    reserve(pass.samples);
    const kernels::ColumnParts cut = cut_of(pass.samples);
    const Scratch scratch = carve(cut);
    find_statistics(pass, cut, scratch);
    normalise(pass, cut);
  }

  void backward(const BackwardPass& pass) override {
    const kernels::ColumnParts cut = cut_of(pass.samples);
    const Scratch scratch = carve(cut);
    context_->with_format([&]<typename T>(T) {
      const kernels::ColumnGradientSums<T> sums{as_stored<T>(pass.input),
                                                as_stored<T>(masks() ? pass.output : nullptr),
                                                as_stored<T>(pass.d_output),
                                                mean(),
                                                inverse(cut),
                                                scratch.part_first,
                                                scratch.part_second,
                                                cut};
      gpu().each(sums.units(), sums, name());
    });
    gpu().rows(cut.slabs * channels(),
               kernels::MergedSums{scratch.part_first, scratch.part_second, scratch.first,
                                   scratch.second, cut},
               name());
    gpu().each(channels(),
               kernels::NormParameterGradient{scratch.first, scratch.second, pass.gradients,
                                              pass.gradients + channels(), cut.slabs, channels()},
               name());
    share_gradients(pass, cut, scratch);
    if (pass.d_input == nullptr) {
      return;
    }
    context_->with_format([&]<typename T>(T) {
      const kernels::ColumnInputGradient<T> gradient{as_stored<T>(pass.input),
                                                     as_stored<T>(pass.d_output),
                                                     as_stored<T>(pass.d_input),
                                                     mean(),
                                                     inverse(cut),
                                                     pass.weights,
                                                     scratch.mean_dy,
                                                     scratch.mean_dy_x,
                                                     cut_elements(cut)};
      gpu().each(gradient.units(), gradient, name());
    });
  }

 protected:
  /// Of one call, in the shared scratch. Per slab and column where it does not say part.
  struct Scratch {
    double* part_first;
    double* part_second;
    double* first;   ///< forward: means, backward: Σ dy
    double* second;  ///< forward: Σ (x − mean)², backward: Σ dy·x̂
    double* count;   ///< after `second`: for sums over ranks
    float* mean_dy;
    float* mean_dy_x;
  };

  [[nodiscard]] Gpu& gpu() const noexcept { return context_->gpu(); }
  [[nodiscard]] const GpuContext& context() const noexcept { return *context_; }
  /// For what is kept of a batch.
  void reserve(std::int64_t samples) {
    context_->grow(statistics_, statistics_bytes(cut_of(samples)), "statistics of a norm");
  }
  /// Kept from forward to backward.
  [[nodiscard]] float* mean() const noexcept { return statistics_.as<float>(); }
  [[nodiscard]] float* inverse(const kernels::ColumnParts& cut) const noexcept {
    return mean() + cut.slabs * cut.columns;
  }

  [[nodiscard]] virtual kernels::ColumnParts cut_of(std::int64_t samples) const = 0;
  /// Fills mean() and inverse().
  virtual void find_statistics(const ForwardPass& pass, const kernels::ColumnParts& cut,
                               const Scratch& scratch) = 0;
  /// Turns sums of dy and dy·x̂ into mean_dy and mean_dy_x.
  virtual void share_gradients(const BackwardPass& pass, const kernels::ColumnParts& cut,
                               const Scratch& scratch) = 0;

  /// With mean() and inverse().
  void normalise(const ForwardPass& pass, const kernels::ColumnParts& cut) const {
    context_->with_format([&]<typename T>(T) {
      const kernels::ColumnNormalise<T> normalise{as_stored<T>(pass.input),
                                                  as_stored<T>(pass.output),
                                                  as_stored<T>(pass.addend),
                                                  mean(),
                                                  inverse(cut),
                                                  pass.weights,
                                                  pass.weights + channels(),
                                                  cut_elements(cut),
                                                  setup().activation == Activation::relu};
      gpu().each(normalise.units(), normalise, name());
    });
  }

  /// Fills `first` and `second` with the moments of every slab and column; rows >= 1.
  void take_moments(const ForwardPass& pass, const kernels::ColumnParts& cut,
                    const Scratch& scratch) const {
    context_->with_format([&]<typename T>(T) {
      const kernels::ColumnMoments<T> moments{as_stored<T>(pass.input), scratch.part_first,
                                              scratch.part_second, cut};
      gpu().each(moments.units(), moments, name());
    });
    gpu().rows(cut.slabs * channels(),
               kernels::MergedMoments{scratch.part_first, scratch.part_second, scratch.first,
                                      scratch.second, cut},
               name());
  }

 private:
  [[nodiscard]] static std::size_t columns_of(const kernels::ColumnParts& cut) {
    return static_cast<std::size_t>(cut.slabs * cut.columns);
  }
  [[nodiscard]] static std::size_t statistics_bytes(const kernels::ColumnParts& cut) {
    return 2 * columns_of(cut) * sizeof(float);
  }
  [[nodiscard]] static std::size_t scratch_bytes(const kernels::ColumnParts& cut) {
    const auto parts = static_cast<std::size_t>(cut.parts);
    return columns_of(cut) * (2 * (parts + 1) * sizeof(double) + 2 * sizeof(float)) +
           sizeof(double);
  }
  [[nodiscard]] Scratch carve(const kernels::ColumnParts& cut) const {
    const auto n = static_cast<std::ptrdiff_t>(columns_of(cut));
    auto* const doubles = context_->scratch<double>(3, scratch_bytes(cut));
    double* const first = doubles + 2 * n * cut.parts;
    double* const count = first + 2 * n;
    auto* const floats = reinterpret_cast<float*>(count + 1);
    return {doubles, doubles + n * cut.parts, first, first + n, count, floats, floats + n};
  }

  GpuContextPtr context_;
  GpuMemory statistics_;
};

class GpuBatchNorm : public GpuNorm {
 public:
  using GpuNorm::GpuNorm;

  void forward(const ForwardPass& pass) override {
    if (pass.training) {
      GpuNorm::forward(pass);
      return;
    }
    reserve(pass.samples);
    const kernels::ColumnParts cut = cut_of(pass.samples);
    gpu().each(
        channels(),
        kernels::KeptStatistics{pass.buffers, mean(), inverse(cut), channels(), kNormEpsilon},
        name());
    normalise(pass, cut);
  }

 protected:
  [[nodiscard]] kernels::ColumnParts cut_of(std::int64_t samples) const override {
    return cut_columns(1, samples * positions(), channels());
  }
  /// What the gradient's means are over, where others than find_statistics() found the statistics.
  void set_count(std::int64_t rows) noexcept { count_ = static_cast<double>(rows); }

  void find_statistics(const ForwardPass& pass, const kernels::ColumnParts& cut,
                       const Scratch& scratch) override {
    if (cut.rows > 0) {
      take_moments(pass, cut, scratch);
    }
    set_count(cut.rows);
    const kernels::BatchStatistics own{scratch.first, scratch.second,   mean(),
                                       inverse(cut),  pass.buffers,     channels(),
                                       count_,        setup().momentum, kNormEpsilon};
    if (sums_on_device()) {
      gpu().each(channels(),
                 kernels::MomentSums{scratch.first, scratch.second, scratch.count, count_}, name());
      sum_on_device(scratch);
      gpu().each(channels(),
                 kernels::SharedStatistics{scratch.first, scratch.second, scratch.count, own},
                 name());
      return;
    }
    kernels::BatchStatistics all = own;
    if (sums_over_ranks()) {
      download(scratch, cut.rows > 0);
      all.count = count_ = share_moments(*setup().reducer, count_, half(0), half(1));
      upload(scratch);
    }
    if (count_ > 0.0) {
      gpu().each(channels(), all, name());
    }
  }

  void share_gradients(const BackwardPass& pass, const kernels::ColumnParts& cut,
                       const Scratch& scratch) override {
    const kernels::GroupGradientMeans means{scratch.first,
                                            scratch.second,
                                            pass.weights,
                                            scratch.mean_dy,
                                            scratch.mean_dy_x,
                                            static_cast<std::int64_t>(count_),
                                            1,
                                            channels()};
    if (sums_on_device()) {
      gpu().each(1, kernels::SharedCount{scratch.count, static_cast<double>(cut.rows)}, name());
      sum_on_device(scratch);
      gpu().each(channels(), kernels::SharedGradientMeans{scratch.count, means}, name());
      return;
    }
    if (sums_over_ranks()) {
      download(scratch, true);
      setup().reducer->sum(host_);
      upload(scratch);
    }
    if (count_ > 0.0) {
      gpu().each(channels(), means, name());
    }
  }

 private:
  [[nodiscard]] bool sums_on_device() const noexcept {
    return sums_over_ranks() && setup().reducer->on_device() != nullptr;
  }
  void sum_on_device(const Scratch& scratch) {
    const std::size_t n = 2 * static_cast<std::size_t>(channels()) + 1;
    setup().reducer->on_device()->sum({scratch.first, n}, gpu().stream());
  }
  [[nodiscard]] std::span<double> half(std::size_t which) noexcept {
    const std::size_t n = host_.size() / 2;
    return std::span(host_).subspan(which * n, n);
  }
  /// `first` and `second`, which lie side by side; zeros where there are none.
  void download(const Scratch& scratch, bool there) {
    host_.assign(2 * static_cast<std::size_t>(channels()), 0.0);
    if (there) {
      gpu().check(gpu().api().copy_to_host(host_.data(), scratch.first,
                                           host_.size() * sizeof(double), gpu().stream().native()),
                  name());
      gpu().stream().synchronize();
    }
  }
  /// The next call may overwrite host_.
  void upload(const Scratch& scratch) const {
    gpu().check(gpu().api().copy_to_device(scratch.first, host_.data(),
                                           host_.size() * sizeof(double), gpu().stream().native()),
                name());
    gpu().stream().synchronize();
  }

  // Elements per channel, of all ranks where the host sums.
  double count_ = 0.0;
  std::vector<double> host_;
};

/// A batch norm that cuDNN computes in training, where it can. What it keeps of a batch, and the
/// running statistics, are GpuBatchNorm's, which computes all the rest.
class GpuDnnBatchNorm final : public GpuBatchNorm {
 public:
  using GpuBatchNorm::GpuBatchNorm;

  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    return gpu().norm() == LayerEngine::dnn ? ScratchAreas{} : GpuBatchNorm::planned_scratch(batch);
  }

  void forward(const ForwardPass& pass) override {
    addend_ = pass.addend != nullptr;
    const cuda::BatchNorm shape = whole(pass.samples);
    const char* const lies = misaligned({pass.input, pass.addend, pass.output});
    by_dnn_ = pass.training &&
              computed_by_dnn(context(), gpu().norm(), lies != nullptr ? lies : obstacle(shape),
                              *this, pass.samples, "cuda.norm");
    if (!by_dnn_) {
      GpuBatchNorm::forward(pass);
      return;
    }
    reserve(pass.samples);
    const kernels::ColumnParts cut = cut_of(pass.samples);
    set_count(cut.rows);
    gpu().check(
        context().math().normalise(gpu().math(), &shape, pass.input, pass.addend, pass.weights,
                                   pass.weights + channels(), pass.output, mean(), inverse(cut)),
        name());
    gpu().each(
        channels(),
        kernels::RunningStatistics{mean(), inverse(cut), pass.buffers, channels(),
                                   static_cast<double>(cut.rows), setup().momentum, kNormEpsilon},
        name());
  }

  /// An addend's gradient is the masked one, so that is stored; else cuDNN masks as it reads.
  void backward(const BackwardPass& pass) override {
    if (!by_dnn_ || pass.d_input == nullptr ||
        misaligned({pass.d_output, pass.d_input}) != nullptr) {
      GpuBatchNorm::backward(pass);
      return;
    }
    if (masks() && addend_) {
      queue_relu_mask(context(), *this, pass);
    }
    const cuda::BatchNorm shape = whole(pass.samples);
    gpu().check(context().math().normalise_gradient(gpu().math(), &shape, pass.input, pass.output,
                                                    pass.d_output, pass.weights, mean(),
                                                    inverse(cut_of(pass.samples)), pass.d_input,
                                                    pass.gradients, pass.gradients + channels()),
                name());
  }

 private:
  [[nodiscard]] const char* obstacle(const cuda::BatchNorm& shape) const {
    return context().math().norm_obstacle(gpu().math(), &shape);
  }
  [[nodiscard]] cuda::BatchNorm whole(std::int64_t samples) const noexcept {
    cuda::BatchNorm shape{};
    shape.format = context().format();
    shape.relu = setup().activation == Activation::relu ? 1 : 0;
    shape.addend = addend_ ? 1 : 0;
    shape.masks = masks() && !addend_ ? 1 : 0;
    shape.samples = samples;
    shape.height = input_shape().height;
    shape.width = input_shape().width;
    shape.channels = channels();
    shape.epsilon = static_cast<float>(kNormEpsilon);
    return shape;
  }

  bool addend_ = false;  // of the last forward, as the next
  bool by_dnn_ = false;
};

class GpuGroupNorm final : public GpuNorm {
 public:
  GpuGroupNorm(GpuContextPtr context, std::string name, SampleShape input, const NormSetup& setup)
      : GpuNorm(std::move(context), std::move(name), input, setup),
        groups_(checked_groups(this->name(), channels(), setup)) {}

 private:
  [[nodiscard]] kernels::ColumnParts cut_of(std::int64_t samples) const override {
    return cut_columns(samples, positions(), channels());
  }
  void find_statistics(const ForwardPass& pass, const kernels::ColumnParts& cut,
                       const Scratch& scratch) override {
    take_moments(pass, cut, scratch);
    gpu().each(cut.slabs * groups_,
               kernels::GroupMoments{scratch.first, scratch.second, mean(), inverse(cut), cut.rows,
                                     channels() / groups_, kNormEpsilon},
               name());
  }
  void share_gradients(const BackwardPass& pass, const kernels::ColumnParts& cut,
                       const Scratch& scratch) override {
    gpu().each(
        cut.slabs * groups_,
        kernels::GroupGradientMeans{scratch.first, scratch.second, pass.weights, scratch.mean_dy,
                                    scratch.mean_dy_x, cut.rows, channels() / groups_, groups_},
        name());
  }

  std::int64_t groups_;
};

}  // namespace

std::unique_ptr<Layer> make_gpu_norm(GpuContextPtr context, std::string name, SampleShape input,
                                     const NormSetup& setup) {
  if (setup.kind == NormKind::batch && context->gpu().norm() != LayerEngine::own) {
    return std::make_unique<GpuDnnBatchNorm>(std::move(context), std::move(name), input, setup);
  }
  if (setup.kind == NormKind::batch || setup.kind == NormKind::sync_batch) {
    return std::make_unique<GpuBatchNorm>(std::move(context), std::move(name), input, setup);
  }
  return std::make_unique<GpuGroupNorm>(std::move(context), std::move(name), input, setup);
}

}  // namespace paceline
