// SPDX-License-Identifier: Apache-2.0
#include "common/core/cpu/dnnl_context.h"

namespace paceline {

std::shared_ptr<DnnlContext> make_dnnl_context() {
  return std::make_shared<DnnlContext>();
}

std::shared_ptr<SharedScratch> as_shared_scratch(std::shared_ptr<DnnlContext> context) {
  return context;
}

void DnnlContext::reserve(std::size_t scratchpad_bytes, std::size_t staging_bytes) {
  if (scratchpad_bytes > scratchpad_.size()) {
    scratchpad_ = Buffer();
    scratchpad_ = Buffer(scratchpad_bytes);
  }
  if (staging_bytes > staging_.size()) {
    staging_ = Buffer();
    staging_ = Buffer(staging_bytes);
  }
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

void DnnlOp::run(DnnlContext& context, std::initializer_list<const void*> pointers) {
  if (ready_.empty()) {
    for (const auto& [arg, memory] : arguments_) {
      ready_.emplace(arg, memory);
    }
    ready_.emplace(DNNL_ARG_SCRATCHPAD, scratchpad_);
  }
  auto argument = arguments_.begin();
  for (const void* pointer : pointers) {
    // oneDNN takes inputs and outputs alike as void*; it writes to outputs only.
    argument->second.set_data_handle(const_cast<void*>(pointer));
    ++argument;
  }
  scratchpad_.set_data_handle(context.scratchpad());
  primitive_.execute(context.stream(), ready_);
}

DnnlReorder::DnnlReorder(DnnlContext& context, const dnnl::memory::desc& from,
                         const dnnl::memory::desc& to) {
  if (from == to) {
    return;
  }
  const dnnl::reorder::primitive_desc desc(context.engine(), from, context.engine(), to,
                                           DnnlContext::attributes());
  op_ = DnnlOp::make<dnnl::reorder>(context, desc, "reorder");
  op_.operand(context, DNNL_ARG_FROM, from);
  op_.operand(context, DNNL_ARG_TO, to);
}

}  // namespace paceline
