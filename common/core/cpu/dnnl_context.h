// SPDX-License-Identifier: Apache-2.0
// oneDNN (2.6) for the CPU layers: one engine, stream and scratch memory per model, and weights
// that travel between their place in the flat arena and the layout that a primitive wants. Included
// by the layers' .cpp files only; no other header shows oneDNN.
#pragma once

#include <initializer_list>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/cpu/layers.h"
#include "common/core/sequential.h"

namespace paceline {

/// Shared by the layers of one model; used by one thread at a time. A layer may use the scratchpad
/// during one primitive and the staging area during one forward or backward call.
class DnnlContext final : public SharedScratch {
 public:
  DnnlContext() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

  [[nodiscard]] const dnnl::engine& engine() const noexcept { return engine_; }
  [[nodiscard]] dnnl::stream& stream() noexcept { return stream_; }

  /// Grows the areas if needed; what they held is lost.
  void reserve(std::size_t scratchpad_bytes, std::size_t staging_bytes);
  [[nodiscard]] void* scratchpad() const noexcept { return scratchpad_.data(); }
  [[nodiscard]] float* staging() const noexcept { return staging_.as<float>().data(); }
  [[nodiscard]] std::size_t bytes() const noexcept override {
    return scratchpad_.size() + staging_.size();
  }

  /// Attributes of every primitive: scratch memory comes from us.
  [[nodiscard]] static dnnl::primitive_attr attributes(bool relu = false);

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  Buffer scratchpad_;
  Buffer staging_;
};

/// A primitive and its operands. Operands are oneDNN memory objects made once; run() only sets
/// pointers.
class DnnlOp {
 public:
  DnnlOp() = default;
  template <typename Primitive, typename Desc>
  static DnnlOp make(DnnlContext& context, const Desc& desc, std::string name) {
    DnnlOp op;
    op.primitive_ = Primitive(desc);
    op.implementation_ = std::move(name) + " " + desc.impl_info_str();
    op.scratchpad_ = dnnl::memory(desc.scratchpad_desc(), context.engine(), nullptr);
    context.reserve(desc.scratchpad_desc().get_size(), 0);
    return op;
  }
  /// Adds operand `arg`.
  void operand(DnnlContext& context, int arg, const dnnl::memory::desc& desc) {
    arguments_.emplace_back(arg, dnnl::memory(desc, context.engine(), nullptr));
  }
  /// Pointers in the order of the operand() calls.
  void run(DnnlContext& context, std::initializer_list<const void*> pointers);

  [[nodiscard]] const std::string& implementation() const noexcept { return implementation_; }
  explicit operator bool() const noexcept { return static_cast<bool>(primitive_); }

 private:
  dnnl::primitive primitive_;
  dnnl::memory scratchpad_;
  std::vector<std::pair<int, dnnl::memory>> arguments_;
  std::unordered_map<int, dnnl::memory> ready_;
  std::string implementation_;
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
