// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "common/core/cpu/dnnl_context.h"

namespace paceline {

namespace {

class Flatten final : public Layer {
 public:
  Flatten(std::shared_ptr<DnnlContext> context, std::string name, SampleShape input)
      : Layer(std::move(name), input, {1, 1, input.elements()}), context_(std::move(context)) {}

  [[nodiscard]] double flops() const override { return 0.0; }
  [[nodiscard]] Rounding rounding() const noexcept override { return Rounding::nothing; }

  void forward(const ForwardPass& pass) override {
    reorders(pass.samples).forward.run(*context_, pass.input, pass.output);
  }

  void backward(const BackwardPass& pass) override {
    if (pass.d_input != nullptr) {
      reorders(pass.samples).backward.run(*context_, pass.d_output, pass.d_input);
    }
  }

  [[nodiscard]] std::vector<std::string> implementations() const override {
    std::vector<std::string> all;
    for (const auto& [samples, pair] : reorders_) {
      all.push_back(pair.forward.implementation());
      all.push_back(pair.backward.implementation());
    }
    return all;
  }

 private:
  struct Pair {
    DnnlReorder forward;
    DnnlReorder backward;
  };

  Pair& reorders(std::int64_t samples) {
    const auto found = reorders_.find(samples);
    if (found != reorders_.end()) {
      return found->second;
    }
    using Tag = dnnl::memory::format_tag;
    const SampleShape& in = input_shape();
    const dnnl::memory::dims dims{samples, in.channels, in.height * in.width};
    const dnnl::memory::desc nhwc(dims, dnnl::memory::data_type::f32, Tag::acb);
    const dnnl::memory::desc nchw(dims, dnnl::memory::data_type::f32, Tag::abc);
    return reorders_
        .emplace(samples,
                 Pair{DnnlReorder(*context_, nhwc, nchw), DnnlReorder(*context_, nchw, nhwc)})
        .first->second;
  }

  std::shared_ptr<DnnlContext> context_;
  std::map<std::int64_t, Pair> reorders_;
};

}  // namespace

std::unique_ptr<Layer> make_flatten(std::shared_ptr<DnnlContext> context, std::string name,
                                    SampleShape input) {
  return std::make_unique<Flatten>(std::move(context), std::move(name), input);
}

}  // namespace paceline
