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

 protected:
  /// Primitives for one number of samples. `weight` descriptors say what the primitive wants; the
  /// operands are set in the order source, weight, bias, destination.
  struct Primitives {
    DnnlOp forward;
    DnnlOp backward_weights;
    DnnlOp backward_data;
    DnnlReorder forward_weight;   ///< arena -> what forward wants
    DnnlReorder weight_gradient;  ///< what backward_weights makes -> arena
    DnnlReorder backward_weight;  ///< arena -> what backward_data wants
  };

  struct Setup {
    bool relu;
    ReluMask mask;
    std::vector<std::int64_t> weight_shape;  ///< in the arena
    std::int64_t fan_in;
    dnnl::memory::desc weight;  ///< dense layout of the arena, in the primitives' dimensions
  };

  DnnlLayer(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input,
            SampleShape output, Setup setup);

  virtual void make_forward(std::int64_t samples, Primitives& p) = 0;
  /// `with_input_gradient`: backward_data is needed as well.
  virtual void make_backward(std::int64_t samples, bool with_input_gradient, Primitives& p) = 0;

  [[nodiscard]] DnnlContext& context() const noexcept { return *context_; }
  [[nodiscard]] const Setup& setup() const noexcept { return setup_; }
  /// The weight with the layout left to oneDNN.
  [[nodiscard]] dnnl::memory::desc any_weight() const;
  [[nodiscard]] dnnl::memory::desc bias_desc() const;
  /// Activation descriptors, NHWC; flat where height = width = 1 and the weight has two dimensions.
  [[nodiscard]] dnnl::memory::desc input_desc(std::int64_t samples) const;
  [[nodiscard]] dnnl::memory::desc output_desc(std::int64_t samples) const;

 private:
  [[nodiscard]] dnnl::memory::desc activation_desc(std::int64_t samples, const SampleShape& shape,
                                                   bool flat) const;

  std::shared_ptr<DnnlContext> context_;
  Setup setup_;
  std::size_t weight_elements_;
  std::map<std::int64_t, Primitives> primitives_;
};

/// Fills `p` from a primitive family of oneDNN (inner product or convolution), given its forward
/// description.
template <typename Forward, typename ForwardDesc>
void set_forward(DnnlContext& context, const ForwardDesc& desc, const dnnl::memory::desc& arena,
                 DnnlOp& op, DnnlReorder& reorder) {
  op = DnnlOp::make<Forward>(context, desc, "forward");
  op.operand(context, DNNL_ARG_SRC, desc.src_desc());
  op.operand(context, DNNL_ARG_WEIGHTS, desc.weights_desc());
  op.operand(context, DNNL_ARG_BIAS, desc.bias_desc());
  op.operand(context, DNNL_ARG_DST, desc.dst_desc());
  reorder = DnnlReorder(context, arena, desc.weights_desc());
  context.reserve(0, desc.weights_desc().get_size());
}

template <typename Backward, typename Desc>
void set_backward_weights(DnnlContext& context, const Desc& desc, const dnnl::memory::desc& arena,
                          DnnlOp& op, DnnlReorder& reorder) {
  op = DnnlOp::make<Backward>(context, desc, "backward_weights");
  op.operand(context, DNNL_ARG_SRC, desc.src_desc());
  op.operand(context, DNNL_ARG_DIFF_WEIGHTS, desc.diff_weights_desc());
  op.operand(context, DNNL_ARG_DIFF_BIAS, desc.diff_bias_desc());
  op.operand(context, DNNL_ARG_DIFF_DST, desc.diff_dst_desc());
  reorder = DnnlReorder(context, desc.diff_weights_desc(), arena);
  context.reserve(0, desc.diff_weights_desc().get_size());
}

template <typename Backward, typename Desc>
void set_backward_data(DnnlContext& context, const Desc& desc, const dnnl::memory::desc& arena,
                       DnnlOp& op, DnnlReorder& reorder) {
  op = DnnlOp::make<Backward>(context, desc, "backward_data");
  op.operand(context, DNNL_ARG_DIFF_SRC, desc.diff_src_desc());
  op.operand(context, DNNL_ARG_WEIGHTS, desc.weights_desc());
  op.operand(context, DNNL_ARG_DIFF_DST, desc.diff_dst_desc());
  reorder = DnnlReorder(context, arena, desc.weights_desc());
  context.reserve(0, desc.weights_desc().get_size());
}

}  // namespace paceline
