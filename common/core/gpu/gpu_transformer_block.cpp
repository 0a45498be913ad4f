// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu_attention.h"
#include "common/core/gpu/gpu_transformer.h"
#include "common/core/gpu/gpu_transformer_parts.h"
#include "common/core/kernels_transformer.h"

namespace paceline {

namespace {

class GpuTransformerBlock final : public Layer {
 public:
  GpuTransformerBlock(GpuContextPtr context, std::string name, const TransformerShape& shape)
      : Layer(std::move(name), {shape.positions, 1, shape.width},
              {shape.positions, 1, shape.width}),
        context_(std::move(context)),
        shape_(shape),
        attention_(context_, shape),
        qkv_(context_, "qkv", shape.width, 3 * shape.width),
        projection_(context_, "projection", shape.width, shape.width),
        expand_(context_, "expand", shape.width, 4 * shape.width),
        contract_(context_, "contract", 4 * shape.width, shape.width) {}

  [[nodiscard]] std::vector<ParameterSpec> parameters() const override {
    return block_parameters(shape_);
  }
  [[nodiscard]] double flops() const override { return block_flops(shape_); }
  [[nodiscard]] bool rounds_weights() const noexcept override { return true; }

  void forward(const ForwardPass& pass) override {
    reserve(pass.samples, pass.training);
    const std::int64_t rows = pass.samples * shape_.positions;
    const std::int64_t c = shape_.width;
    const BlockTensors<const float> w(pass.weights, c);
    const Scratch s = scratch_for(pass.samples);
    queue_row_norm(*context_, rows, c, norm1(w), pass.input, kept_.normed1);
    float* const qkv = attention_.input(kept_.attention, s.wide);
    qkv_.forward(rows, w.qkv, kept_.normed1, qkv);
    attention_.forward(pass.samples, qkv, kept_.attention, s.attention);
    copy(pass.input, kept_.middle, rows * c);
    projection_.forward(rows, w.projection, kept_.attention.attended, kept_.middle, true);
    queue_row_norm(*context_, rows, c, norm2(w), kept_.middle, kept_.normed2);
    expand_.forward(rows, w.expand, kept_.normed2, kept_.expanded);
    context_->with_format([&]<typename T>(T) {
      context_->gpu().each(
          rows * 4 * c,
          kernels::BasicGelu<T>{as_stored<T>(kept_.expanded), as_stored<T>(kept_.activated)},
          name());
    });
    copy(kept_.middle, pass.output, rows * c);
    contract_.forward(rows, w.contract, kept_.activated, pass.output, true);
  }

  void backward(const BackwardPass& pass) override {
    const std::int64_t rows = pass.samples * shape_.positions;
    const std::int64_t c = shape_.width;
    const BlockTensors<const float> w(pass.weights, c);
    const BlockTensors<float> d(pass.gradients, c);
    const Scratch s = scratch_for(pass.samples);
    contract_.backward(rows, kept_.activated, pass.d_output, s.wide, d.contract);
    context_->with_format([&]<typename T>(T) {
      context_->gpu().each(
          rows * 4 * c,
          kernels::BasicGeluGradient<T>{as_stored<T>(kept_.expanded), as_stored<T>(s.wide)},
          name());
    });
    expand_.backward(rows, kept_.normed2, s.wide, s.narrow, d.expand);
    queue_row_norm_gradient(*context_, rows, c, norm2(w), kept_.middle, s.narrow, pass.d_output,
                            s.middle, d.norm2);
    projection_.backward(rows, kept_.attention.attended, s.middle, s.narrow, d.projection);
    attention_.backward(pass.samples, kept_.attention, s.attention, s.narrow, s.wide);
    qkv_.backward(rows, kept_.normed1, s.wide, s.narrow, d.qkv);
    queue_row_norm_gradient(*context_, rows, c, norm1(w), pass.input, s.narrow, s.middle,
                            pass.d_input, d.norm1);
  }

  [[nodiscard]] std::size_t held_bytes() const noexcept override {
    return memory_.size() + qkv_.held_bytes() + projection_.held_bytes() + expand_.held_bytes() +
           contract_.held_bytes();
  }
  [[nodiscard]] std::size_t planned_bytes(const PlannedBatch& batch) const override {
    DeviceParts count;
    static_cast<void>(lay_out(batch.samples, attention_.fuses(batch.samples, true), count));
    return count.total() + qkv_.planned_bytes() + projection_.planned_bytes() +
           expand_.planned_bytes() + contract_.planned_bytes();
  }
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override {
    const std::int64_t rows = batch.samples * shape_.positions;
    ScratchAreas areas = row_norm_scratch(rows, shape_.width);
    for (const GpuRowLinear* map : {&qkv_, &projection_, &expand_, &contract_}) {
      grow_areas(areas, map->planned_scratch(rows));
    }
    DeviceParts count;
    static_cast<void>(lay_out_scratch(batch.samples, attention_.fuses(batch.samples, true), count));
    areas[2] = count.total();
    return areas;
  }

 private:
  /// Between forward and backward; of the context's format but for the statistics.
  struct Kept {
    GpuAttention::Kept attention;
    float* normed1;  ///< [rows, width], as middle and normed2
    float* middle;
    float* normed2;
    float* expanded;  ///< [rows, 4·width], as activated
    float* activated;
    float* mean1;  ///< [rows], as those below
    float* inverse1;
    float* mean2;
    float* inverse2;
  };

  /// Within one call.
  struct Scratch {
    GpuAttention::Scratch attention;
    float* wide;    ///< [rows, 4·width]
    float* narrow;  ///< [rows, width], as middle
    float* middle;
  };

  [[nodiscard]] GpuRowNorm norm1(const BlockTensors<const float>& w) const {
    return {w.norm1, kept_.mean1, kept_.inverse1};
  }
  [[nodiscard]] GpuRowNorm norm2(const BlockTensors<const float>& w) const {
    return {w.norm2, kept_.mean2, kept_.inverse2};
  }

  void copy(const float* from, float* to, std::int64_t elements) const {
    const Gpu& gpu = context_->gpu();
    const std::size_t bytes = static_cast<std::size_t>(elements) * context_->element_bytes();
    gpu.check(gpu.api().copy(to, from, bytes, context_->gpu().stream().native()), name());
  }

  [[nodiscard]] Kept lay_out(std::int64_t samples, bool fused, DeviceParts& parts) const {
    const std::int64_t rows = samples * shape_.positions;
    const std::int64_t c = shape_.width;
    const std::size_t bytes = context_->element_bytes();
    Kept kept{};
    kept.attention = attention_.lay_out(samples, fused, parts);
    kept.normed1 = parts.take(rows * c, bytes);
    kept.middle = parts.take(rows * c, bytes);
    kept.normed2 = parts.take(rows * c, bytes);
    kept.expanded = parts.take(rows * 4 * c, bytes);
    kept.activated = parts.take(rows * 4 * c, bytes);
    for (float** statistics : {&kept.mean1, &kept.inverse1, &kept.mean2, &kept.inverse2}) {
      *statistics = parts.take(rows, sizeof(float));
    }
    return kept;
  }

  void reserve(std::int64_t samples, bool training) {
    if (!attention_.prepare(samples, training) && samples <= capacity_) {
      return;
    }
    DeviceParts count;
    static_cast<void>(lay_out(samples, attention_.fused(), count));
    capacity_ = 0;
    context_->grow(memory_, count.total(), name());
    DeviceParts parts(memory_.as<std::byte>());
    kept_ = lay_out(samples, attention_.fused(), parts);
    capacity_ = samples;
  }

  [[nodiscard]] Scratch lay_out_scratch(std::int64_t samples, bool fused,
                                        DeviceParts& parts) const {
    const std::int64_t rows = samples * shape_.positions;
    const std::int64_t c = shape_.width;
    const std::size_t bytes = context_->element_bytes();
    Scratch s{};
    s.wide = parts.take(rows * 4 * c, bytes);
    s.narrow = parts.take(rows * c, bytes);
    s.middle = parts.take(rows * c, bytes);
    s.attention = attention_.lay_out_scratch(samples, fused, parts);
    return s;
  }

  [[nodiscard]] Scratch scratch_for(std::int64_t samples) const {
    DeviceParts count;
    static_cast<void>(lay_out_scratch(samples, attention_.fused(), count));
    DeviceParts parts(context_->scratch<std::byte>(2, count.total()));
    return lay_out_scratch(samples, attention_.fused(), parts);
  }

  GpuContextPtr context_;
  TransformerShape shape_;
  GpuAttention attention_;
  GpuRowLinear qkv_;
  GpuRowLinear projection_;
  GpuRowLinear expand_;
  GpuRowLinear contract_;
  std::int64_t capacity_ = 0;  // samples
  GpuMemory memory_;
  Kept kept_{};
};

}  // namespace

std::unique_ptr<Layer> make_gpu_transformer_block(GpuContextPtr context, std::string name,
                                                  const TransformerShape& shape) {
  return std::make_unique<GpuTransformerBlock>(std::move(context), std::move(name), shape);
}

}  // namespace paceline
