// SPDX-License-Identifier: Apache-2.0
// What Linear and Conv2d share: a weight, a bias, an optional ReLU, and three oneDNN primitives per
// batch size. They differ in the primitives only.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/core/cpu/dnnl_context.h"
#include "common/core/layer.h"

namespace paceline {

class DnnlLayer : public Layer {
 public:
  [[nodiscard]] std::vector<ParameterSpec> parameters() const override;
  void forward(const ForwardPass& pass) override;
  void backward(const BackwardPass& pass) override;
  [[nodiscard]] std::vector<std::string> implementations() const override;
  [[nodiscard]] ScratchAreas planned_scratch(const PlannedBatch& batch) const override;
  [[nodiscard]] bool rounds_weights() const noexcept override {
    return context_->operand_type() != dnnl::memory::data_type::f32;
  }

 protected:
  /// Primitives for one number of samples, their operands in the order given. The bias gradient is
  /// ours: one pass together with the ReLU's mask. The reorders also bring fp32 into the operands'
  /// type.
  struct Primitives {
    DnnlOp forward;               ///< input, weight, output, bias (if there is one)
    DnnlOp backward_weights;      ///< input, weight gradient, output gradient
    DnnlOp backward_data;         ///< input gradient, weight, output gradient
    DnnlReorder forward_weight;   ///< arena -> what forward wants
    DnnlReorder weight_gradient;  ///< what backward_weights makes -> arena
    DnnlReorder backward_weight;  ///< arena -> what backward_data wants
    DnnlReorder input;            ///< activations -> operands
    DnnlReorder output_gradient;  ///< likewise
  };

  struct Setup {
    bool relu;
    ReluMask mask;
    std::vector<std::int64_t> weight_shape;  ///< in the arena
    std::int64_t fan_in;
    dnnl::memory::desc weight;  ///< dense layout of the arena, in the primitives' dimensions
    bool bias = true;
  };

  DnnlLayer(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
            SampleShape output, Setup setup);

  virtual void make_forward(std::int64_t samples, Primitives& p) = 0;
  /// `with_input_gradient`: backward_data is needed as well.
  virtual void make_backward(std::int64_t samples, bool with_input_gradient, Primitives& p) = 0;

  /// Together with the ReLU's mask.
  void find_bias_gradient(const BackwardPass& pass) const;
  /// Of the weights on their way to or from what the primitives want.
  [[nodiscard]] virtual std::size_t staged_weight_bytes() const = 0;

  [[nodiscard]] std::size_t weight_elements() const noexcept { return weight_elements_; }
  [[nodiscard]] DnnlContext& context() const noexcept { return *context_; }
  [[nodiscard]] const Setup& setup() const noexcept { return setup_; }
  /// Makes `reorder` bring the activation `from` to `to`, with room for it.
  void make_operand(DnnlReorder& reorder, std::size_t index, const dnnl::memory::desc& from,
                    const dnnl::memory::desc& to) const;

 private:
  /// `values` themselves or, through `reorder`, a copy in the operand's area.
  const void* operand(DnnlReorder& reorder, std::size_t index, const float* values) const;
  const float* bias(const float* weights);

  std::shared_ptr<DnnlContext> context_;
  Setup setup_;
  std::size_t weight_elements_;
  std::vector<float> rounded_bias_;  // with operands that are not fp32
  std::map<std::int64_t, Primitives> primitives_;
};

}  // namespace paceline
