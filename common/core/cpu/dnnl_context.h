// SPDX-License-Identifier: Apache-2.0
// oneDNN (2.6) for the CPU layers: one engine, stream and scratch memory per model, and weights
// that travel between their place in the flat arena and the layout that a primitive wants. Included
// by the layers' .cpp files only; no other header shows oneDNN.
#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/cpu/layers.h"
#include "common/core/sequential.h"

namespace paceline {

/// Shared by the layers of one model; used by one thread at a time. A layer may use the scratchpad
/// during one primitive, the staging area and the operands' during one forward or backward call.
class DnnlContext final : public SharedScratch {
 public:
  explicit DnnlContext(dnnl::memory::data_type operand)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_), operand_type_(operand) {}

  /// What products multiply, f32 or bf16; they always add in f32.
  [[nodiscard]] dnnl::memory::data_type operand_type() const noexcept { return operand_type_; }

  [[nodiscard]] const dnnl::engine& engine() const noexcept { return engine_; }
  [[nodiscard]] dnnl::stream& stream() noexcept { return stream_; }

  /// Grows the areas if needed; what they held is lost.
  void reserve(std::size_t scratchpad_bytes, std::size_t staging_bytes);
  [[nodiscard]] void* scratchpad() const noexcept { return scratchpad_.data(); }
  [[nodiscard]] float* staging() const noexcept { return staging_.as<float>().data(); }
  /// Two areas for activations in the operands' type: 0 the input, 1 the output's gradient.
  void reserve_operand(std::size_t index, std::size_t bytes);
  [[nodiscard]] void* operand(std::size_t index) const noexcept { return operands_[index].data(); }
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return scratchpad_.size() + staging_.size() + operands_[0].size() + operands_[1].size();
  }
  [[nodiscard]] std::size_t unplanned_bytes() const noexcept override { return scratchpad_.size(); }

  /// Attributes of every primitive: scratch memory comes from us.
  [[nodiscard]] static dnnl::primitive_attr attributes(bool relu = false);

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  Buffer scratchpad_;
  Buffer staging_;
  std::array<Buffer, 2> operands_;
  dnnl::memory::data_type operand_type_;
};

/// A primitive and its operands: oneDNN memory objects made once, so that run() only sets pointers.
class DnnlOp {
 public:
  using Operand = std::pair<int, dnnl::memory::desc>;  ///< DNNL_ARG_…

  DnnlOp() = default;
  template <typename Primitive, typename Desc>
  static DnnlOp make(DnnlContext& context, const Desc& desc, std::string_view name,
                     std::initializer_list<Operand> operands) {
    context.reserve(desc.scratchpad_desc().get_size(), 0);
    return DnnlOp(context, Primitive(desc), desc.scratchpad_desc(),
                  std::string(name) + " " + desc.impl_info_str(), operands);
  }

  /// Executes with `pointers` as the operands, in make()'s order.
  void run(DnnlContext& context, std::initializer_list<const void*> pointers);

  /// "name implementation", empty for an empty op.
  [[nodiscard]] const std::string& implementation() const noexcept { return implementation_; }
  explicit operator bool() const noexcept { return static_cast<bool>(primitive_); }

 private:
  DnnlOp(const DnnlContext& context, dnnl::primitive primitive, const dnnl::memory::desc& scratch,
         std::string implementation, std::initializer_list<Operand> operands);

  dnnl::primitive primitive_;
  std::string implementation_;
  std::vector<dnnl::memory> operands_;  // handles of the objects in arguments_
  dnnl::memory scratchpad_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// Moves a tensor from one layout to another; does nothing where they are the same.
class DnnlReorder {
 public:
  DnnlReorder() = default;
  DnnlReorder(DnnlContext& context, const dnnl::memory::desc& from, const dnnl::memory::desc& to);
  [[nodiscard]] bool needed() const noexcept { return static_cast<bool>(op_); }
  void run(DnnlContext& context, const void* from, void* to) { op_.run(context, {from, to}); }
  [[nodiscard]] const std::string& implementation() const noexcept { return op_.implementation(); }

 private:
  DnnlOp op_;
};

}  // namespace paceline
