// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_context.h"

namespace paceline {

std::shared_ptr<DnnlContext> make_dnnl_context(Precision operands) {
  using Type = dnnl::memory::data_type;
  return std::make_shared<DnnlContext>(operands == Precision::bf16 ? Type::bf16 : Type::f32);
}

std::shared_ptr<SharedScratch> as_shared_scratch(std::shared_ptr<DnnlContext> context) {
  return context;
}

void DnnlContext::reserve(std::size_t scratchpad_bytes, std::size_t staging_bytes) {
  scratchpad_.grow(scratchpad_bytes);
  staging_.grow(staging_bytes);
}

void DnnlContext::reserve_operand(std::size_t index, std::size_t bytes) {
  operands_[index].grow(bytes);
}

dnnl::primitive_attr DnnlContext::attributes(bool relu) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (relu) {
    dnnl::post_ops after;
    after.append_eltwise(1.0F, dnnl::algorithm::eltwise_relu, 0.0F, 0.0F);
    attr.set_post_ops(after);
  }
  return attr;
}

DnnlOp::DnnlOp(const DnnlContext& context, dnnl::primitive primitive,
               const dnnl::memory::desc& scratch, std::string implementation,
               std::initializer_list<Operand> operands)
    : primitive_(std::move(primitive)),
      implementation_(std::move(implementation)),
      scratchpad_(scratch, context.engine(), nullptr) {
  for (const auto& [arg, desc] : operands) {
    operands_.emplace_back(desc, context.engine(), nullptr);
    arguments_.emplace(arg, operands_.back());
  }
  arguments_.emplace(DNNL_ARG_SCRATCHPAD, scratchpad_);
}

void DnnlOp::run(DnnlContext& context, std::initializer_list<const void*> pointers) {
  auto operand = operands_.begin();
  for (const void* pointer : pointers) {
    // oneDNN takes inputs and outputs alike as void*; it writes to outputs only.
    operand->set_data_handle(const_cast<void*>(pointer));
    ++operand;
  }
  scratchpad_.set_data_handle(context.scratchpad());
  primitive_.execute(context.stream(), arguments_);
}

DnnlReorder::DnnlReorder(DnnlContext& context, const dnnl::memory::desc& from,
                         const dnnl::memory::desc& to) {
  if (from == to) {
    return;
  }
  const dnnl::reorder::primitive_desc desc(context.engine(), from, context.engine(), to,
                                           DnnlContext::attributes());
  op_ = DnnlOp::make<dnnl::reorder>(context, desc, "reorder",
                                    {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}});
}

}  // namespace paceline
