// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_graph.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string>

#include "common/core/cuda/library.h"

namespace paceline::cuda {

namespace {

constexpr std::int64_t kProposals = 32;  // more than are looked at

/// The configurations that cuDNN proposes in one of its modes, best first.
std::vector<DnnDescriptor> proposals(const DnnLibrary& library, const DnnTarget& target,
                                     const DnnDescriptor& graph, cudnnBackendHeurMode_t mode) {
  DnnDescriptor heuristics(library, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.native());
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  target.aim_heuristics(heuristics);
  heuristics.finalize("asking for proposals");
  std::vector<DnnDescriptor> made;
  std::vector<cudnnBackendDescriptor_t> natives;
  for (std::int64_t i = 0; i < kProposals; ++i) {
    natives.push_back(made.emplace_back(library, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).native());
  }
  const std::int64_t count = heuristics.get(
      CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, kProposals, natives.data());
  while (static_cast<std::int64_t>(made.size()) > count) {
    made.pop_back();
  }
  return made;
}

std::uint32_t notes_on(const DnnLibrary& library, const DnnDescriptor& configuration) {
  const DnnDescriptor engine(library, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t native = engine.native();
  configuration.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &native);
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  const std::int64_t count = engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        static_cast<std::int64_t>(notes.size()), notes.data());
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, notes.size()); ++i) {
    bits |= 1U << static_cast<unsigned>(notes[i]);
  }
  return bits;
}

/// By the knobs that say so; most engines have none.
std::int64_t slices_of(const DnnLibrary& library, const DnnDescriptor& configuration) {
  constexpr int kSplit = 0;  // CUDNN_KNOB_TYPE_SPLIT_K, whose name is deprecated
  constexpr std::int64_t kKnobs = 32;
  std::vector<DnnDescriptor> choices;
  std::vector<cudnnBackendDescriptor_t> natives;
  for (std::int64_t i = 0; i < kKnobs; ++i) {
    natives.push_back(choices.emplace_back(library, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).native());
  }
  const std::int64_t count = configuration.get(
      CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, kKnobs, natives.data());
  std::int64_t slices = 1;
  for (std::int64_t i = 0; i < std::min(count, kKnobs); ++i) {
    cudnnBackendKnobType_t type{};
    choices[i].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    if (static_cast<int>(type) == kSplit || type == CUDNN_KNOB_TYPE_SPLIT_K_SLC) {
      std::int64_t value = 1;
      choices[i].get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
      slices = std::max(slices, value);
    }
  }
  return slices;
}

/// None where a configuration cannot be built; `reason` then says why.
std::optional<DnnPlan> built(const DnnLibrary& library, const DnnTarget& target,
                             const DnnDescriptor& configuration, const char* what,
                             Failure& reason) {
  try {
    DnnDescriptor plan(library, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    target.aim_plan(plan);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration.native());
    plan.finalize(what);
    return DnnPlan(library, std::move(plan),
                   {notes_on(library, configuration), slices_of(library, configuration)});
  } catch (const Failure& failure) {
    reason = failure;
    return std::nullopt;
  }
}

}  // namespace

Failure not_supported(std::string text) {
  return {kDnnStatus + static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED), std::move(text)};
}

DnnDescriptor::DnnDescriptor(const DnnLibrary& library, cudnnBackendDescriptorType_t type)
    : library_(&library) {
  library.check(library.create_descriptor(type, &native_), "making a descriptor");
}

DnnDescriptor::~DnnDescriptor() {
  if (native_ != nullptr) {
    (void)library_->destroy_descriptor(native_);
  }
}

void DnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        std::int64_t count, const void* values) {
  if (const cudnnStatus_t status = library_->set_attribute(native_, name, type, count, values);
      status != CUDNN_STATUS_SUCCESS) {
    library_->check(status, ("setting attribute " + std::to_string(name)).c_str());
  }
}

std::int64_t DnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::int64_t room, void* values) const {
  std::int64_t count = 0;
  if (const cudnnStatus_t status =
          library_->get_attribute(native_, name, type, room, &count, values);
      status != CUDNN_STATUS_SUCCESS) {
    library_->check(status, ("reading attribute " + std::to_string(name)).c_str());
  }
  return count;
}

void DnnDescriptor::finalize(const char* what) {
  library_->check(library_->finalize(native_), what);
}

DnnTarget::DnnTarget(cudnnHandle_t handle) : handle_(handle) {
  int device = 0;
  int major = 0;
  int minor = 0;
  check_runtime(cudaGetDevice(&device));
  check_runtime(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_runtime(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  capability_ = 100 * major + 10 * minor;
}

DnnTarget::DnnTarget(const DnnLibrary& library, const std::string& json) {
  DnnDescriptor& properties =
      properties_.emplace_back(library, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 static_cast<std::int64_t>(json.size()), json.data());
  properties.finalize("describing a device");
  const std::string key = "\"deviceVer\":";
  if (const std::size_t at = json.find(key); at != std::string::npos) {
    capability_ = std::atoi(json.c_str() + at + key.size());
  }
}

void DnnTarget::aim_graph(DnnDescriptor& graph) const {
  if (handle_ != nullptr) {
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  }
}

void DnnTarget::aim_heuristics(DnnDescriptor& heuristics) const {
  if (!properties_.empty()) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties_.front().native());
  }
}

void DnnTarget::aim_plan(DnnDescriptor& plan) const {
  if (!properties_.empty()) {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties_.front().native());
  } else {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
  }
}

DnnPlan::DnnPlan(const DnnLibrary& library, DnnDescriptor plan, const DnnTraits& traits)
    : library_(&library), plan_(std::move(plan)), traits_(traits) {
  std::int64_t bytes = 0;
  plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
  bytes_ = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0));
}

void DnnPlan::run(cudnnHandle_t handle, std::span<const DnnBinding> bindings,
                  void* workspace) const {
  std::vector<std::int64_t> numbers;
  std::vector<const void*> memory;
  for (const DnnBinding& binding : bindings) {
    numbers.push_back(binding.number);
    memory.push_back(binding.memory);
  }
  const auto count = static_cast<std::int64_t>(bindings.size());
  DnnDescriptor pack(*library_, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, numbers.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, memory.data());
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize("binding a graph's tensors");
  library_->check(library_->execute(handle, plan_.native(), pack.native()), "running a graph");
}

DnnDescriptor& DnnGraph::keep(cudnnBackendDescriptorType_t type) {
  return kept_.emplace_back(library_, type);
}

void DnnGraph::add(DnnDescriptor& operation, const char* what) {
  operation.finalize(what);
  operations_.push_back(operation.native());
}

DnnGraph::Tensor DnnGraph::make_tensor(std::int64_t number, cudnnDataType_t type,
                                       const DnnExtent& extent, std::int64_t alignment,
                                       bool between, bool by_value) {
  DnnDescriptor& made = keep(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, number);
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, extent.sizes.data());
  made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, extent.strides.data());
  made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, between);
  made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value);
  made.finalize("describing a tensor");
  return made.native();
}

DnnGraph::Tensor DnnGraph::tensor(std::int64_t number, cudnnDataType_t type,
                                  const DnnExtent& extent, std::int64_t alignment) {
  return make_tensor(number, type, extent, alignment, false, false);
}

DnnGraph::Tensor DnnGraph::value(std::int64_t number) {
  return make_tensor(number, CUDNN_DATA_FLOAT, DnnExtent::dense(1, 1, 1, 1), kDnnAlignment, false,
                     true);
}

DnnGraph::Tensor DnnGraph::between(cudnnDataType_t type, const DnnExtent& extent) {
  return make_tensor(next_between_++, type, extent, kDnnAlignment, true, false);
}

DnnGraph::Tensor DnnGraph::multiply(Tensor a, Tensor b, const DnnExtent& extent) {
  const Tensor to = between(CUDNN_DATA_FLOAT, extent);
  multiply_into(a, b, to);
  return to;
}

void DnnGraph::multiply_into(Tensor a, Tensor b, Tensor to) {
  DnnDescriptor& product = keep(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  product.finalize("describing a product");
  const cudnnBackendDescriptor_t native = product.native();
  DnnDescriptor& operation = keep(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, native);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  operation.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
  add(operation, "describing a product");
}

void DnnGraph::apply(cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, std::int64_t axis,
                     Tensor x, Tensor b, Tensor chosen, Tensor to) {
  constexpr const char* kWhat = "describing a pointwise operation";
  DnnDescriptor& kind = keep(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, arithmetic);
  if (mode == CUDNN_POINTWISE_RELU_FWD) {
    kind.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, CUDNN_PROPAGATE_NAN);
  }
  if (axis >= 0) {
    kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  }
  kind.finalize(kWhat);
  const cudnnBackendDescriptor_t native = kind.native();
  DnnDescriptor& operation = keep(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, native);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  }
  if (chosen != nullptr) {
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, chosen);
  }
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to);
  add(operation, kWhat);
}

DnnGraph::Tensor DnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, const DnnExtent& extent,
                                     cudnnDataType_t type) {
  return pointwise(mode, x, nullptr, extent, type);
}

DnnGraph::Tensor DnnGraph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b,
                                     const DnnExtent& extent, cudnnDataType_t type) {
  const Tensor to = between(type, extent);
  apply(mode, type == CUDNN_DATA_BOOLEAN ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT, -1, x, b, nullptr,
        to);
  return to;
}

void DnnGraph::pointwise_into(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor to) {
  apply(mode, CUDNN_DATA_FLOAT, -1, x, b, nullptr, to);
}

DnnGraph::Tensor DnnGraph::places(Tensor like, std::int64_t dimension, const DnnExtent& extent) {
  const Tensor to = between(CUDNN_DATA_INT32, extent);
  apply(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, dimension, like, nullptr, nullptr, to);
  return to;
}

DnnGraph::Tensor DnnGraph::select(Tensor chosen, Tensor x, Tensor otherwise,
                                  const DnnExtent& extent) {
  const Tensor to = between(CUDNN_DATA_FLOAT, extent);
  apply(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, x, otherwise, chosen, to);
  return to;
}

DnnGraph::Tensor DnnGraph::reduce(cudnnReduceTensorOp_t by, Tensor x, const DnnExtent& extent) {
  const Tensor to = between(CUDNN_DATA_FLOAT, extent);
  DnnDescriptor& kind = keep(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, by);
  kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  kind.finalize("describing a reduction");
  const cudnnBackendDescriptor_t native = kind.native();
  DnnDescriptor& operation = keep(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, native);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  operation.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
  add(operation, "describing a reduction");
  return to;
}

DnnGraph::Tensor DnnGraph::reshape(Tensor x, const DnnExtent& extent, cudnnDataType_t type) {
  const Tensor to = between(type, extent);
  DnnDescriptor& operation = keep(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  operation.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
  add(operation, "describing a reshape");
  return to;
}

std::vector<DnnPlan> DnnGraph::plans(const DnnTarget& target, const char* what, std::size_t most,
                                     const DnnFilter& admits) {
  DnnDescriptor& graph = keep(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(operations_.size()), operations_.data());
  target.aim_graph(graph);
  graph.finalize(what);
  std::vector<DnnPlan> taken;
  Failure last = not_supported(std::string("cuDNN: ") + what + ": it has no kernel to take");
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    if (taken.size() == most) {
      break;
    }
    try {
      for (const DnnDescriptor& configuration : proposals(library_, target, graph, mode)) {
        std::optional<DnnPlan> made = built(library_, target, configuration, what, last);
        if (made && admits(*made)) {
          taken.push_back(std::move(*made));
        }
        if (taken.size() == most) {
          break;
        }
      }
    } catch (const Failure& failure) {
      last = failure;
    }
  }
  if (taken.empty()) {
    throw last;
  }
  return taken;
}

DnnPlan DnnGraph::plan(const DnnTarget& target, const char* what) {
  return std::move(plans(target, what, 1, [](const DnnPlan&) { return true; }).front());
}

}  // namespace paceline::cuda
