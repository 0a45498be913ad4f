// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_conv.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace paceline::cuda {

namespace {

constexpr std::size_t kTuned = 10;  // proposals that are timed

/// Numbers of the tensors that are bound to memory, or of their gradients.
enum ConvNumber : std::int64_t { kImages = 1, kFilter, kConvolved };

std::int64_t extent_after(std::int64_t extent, const Convolution& s) {
  return (extent + 2 * s.padding - s.kernel) / s.stride + 1;
}

DnnExtent extent_of(const Convolution& s, ConvNumber number) {
  switch (number) {
    case kImages:
      return DnnExtent::channels_last(s.samples, s.height, s.width, s.channels);
    case kFilter:
      return DnnExtent::channels_last(s.outputs, s.kernel, s.kernel, s.channels);
    default:
      return DnnExtent::channels_last(s.samples, extent_after(s.height, s),
                                      extent_after(s.width, s), s.outputs);
  }
}

/// How a direction is described to cuDNN.
struct ConvOperation {
  const char* name;
  ConvNumber result;
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, images, filter, convolved, alpha, beta;
};

constexpr std::array<ConvOperation, 3> kOperations{
    {{"a convolution", kConvolved, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
     {"the input gradient of a convolution", kImages,
      CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
     {"the filter gradient of a convolution", kFilter,
      CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}}};

cudnnBackendDescriptor_t windows_of(DnnGraph& graph, const Convolution& s) {
  const auto twice = [](std::int64_t value) { return std::array{value, value}; };
  DnnDescriptor& made = graph.keep(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const auto set_both = [&](cudnnBackendAttributeName_t name, std::int64_t value) {
    made.set(name, CUDNN_TYPE_INT64, 2, twice(value).data());
  };
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  set_both(CUDNN_ATTR_CONVOLUTION_DILATIONS, 1);
  set_both(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, s.stride);
  set_both(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, s.padding);
  set_both(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, s.padding);
  made.finalize("describing a convolution");
  return made.native();
}

constexpr std::uint32_t bit(cudnnBackendNumericalNote_t note) {
  return 1U << static_cast<unsigned>(note);
}

/// Of engines that are not taken; `strict`: products are of fp32 as it is.
constexpr std::uint32_t refused_notes(bool strict) {
  const std::uint32_t always = bit(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) |
                               bit(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) |
                               bit(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
  return always | (strict ? bit(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) : 0U);
}

std::size_t bytes_of(const Convolution& s, ConvNumber number, std::size_t element) {
  std::size_t bytes = element;
  for (const std::int64_t size : extent_of(s, number).sizes) {
    bytes *= static_cast<std::size_t>(size);
  }
  return bytes;
}

/// The most of the workspace that a copy of an operand takes: fp32 is copied to have channels
/// first, 16 bits where channels are no multiple of 16 bytes, filled up to one.
std::size_t copy_bytes(const Convolution& s, ConvNumber number) {
  const std::int64_t unit = s.format == Precision::fp32 ? 4 : 8;
  const std::int64_t channels = extent_of(s, number).sizes[1];
  if (s.format != Precision::fp32 && channels % unit == 0) {
    return 0;
  }
  const std::int64_t filled = (channels + unit - 1) / unit * unit;
  return bytes_of(s, number, static_cast<std::size_t>(16 / unit)) /
         static_cast<std::size_t>(channels) * static_cast<std::size_t>(filled);
}

/// Whether every slice of a result's sums but one, which is added last, has fp32 of its own in the
/// workspace; what it has not is added in the result, in its format and perhaps in any order.
bool holds_slices(const DnnPlan& plan, const Convolution& s, ConvNumber result) {
  std::size_t own = plan.bytes();
  for (const ConvNumber operand : {kImages, kFilter, kConvolved}) {
    own -= operand == result ? 0 : std::min(own, copy_bytes(s, operand));
  }
  return own / bytes_of(s, result, sizeof(float)) >=
         static_cast<std::size_t>(plan.traits().slices - 1);
}

std::string words_of(const ConvOperation& operation, const Convolution& s) {
  const auto kernel = std::to_string(s.kernel);
  return std::string("planning ") + operation.name + " " + kernel + "x" + kernel + " of " +
         std::to_string(s.channels) + " to " + std::to_string(s.outputs) + " channels over " +
         std::to_string(s.samples) + " samples " + std::to_string(s.height) + "x" +
         std::to_string(s.width);
}

/// What all are aligned to.
std::int64_t alignment_of(std::initializer_list<const void*> tensors) {
  std::uintptr_t bits = kDnnAlignment;
  for (const void* tensor : tensors) {
    bits |= reinterpret_cast<std::uintptr_t>(tensor);
  }
  return static_cast<std::int64_t>(bits & (~bits + 1));  // the lowest one
}

}  // namespace

DnnConv::DnnConv(const DnnHandle& handle, bool tf32, bool tune)
    : handle_(handle), tf32_(tf32), tune_(tune), target_(handle.native()), tuner_(handle) {}

DnnConv::Plans::Key DnnConv::key_of(const Pass& pass) {
  const Convolution& s = pass.shape;
  return {static_cast<std::int64_t>(s.format),
          static_cast<std::int64_t>(pass.direction),
          pass.alignment,
          s.kernel,
          s.stride,
          s.padding,
          s.samples,
          s.height,
          s.width,
          s.channels,
          s.outputs};
}

std::vector<DnnPlan> DnnConv::offers(const DnnLibrary& library, const DnnTarget& target,
                                     const Pass& pass, std::size_t most) {
  const Convolution& s = pass.shape;
  const ConvOperation& as = kOperations.at(static_cast<std::size_t>(pass.direction));
  const cudnnDataType_t type = dnn_type(s.format);
  DnnGraph graph(library);
  const auto tensor = [&](ConvNumber number) {
    return graph.tensor(number, type, extent_of(s, number), pass.alignment);
  };
  const auto images = tensor(kImages);
  const auto filter = tensor(kFilter);
  const auto convolved = tensor(kConvolved);
  const auto windows = windows_of(graph, s);
  graph.operation(as.type, "describing a convolution", [&](DnnDescriptor& convolution) {
    convolution.set(as.convolution, windows);
    convolution.set(as.images, images);
    convolution.set(as.filter, filter);
    convolution.set(as.convolved, convolved);
    convolution.set(as.alpha, CUDNN_TYPE_FLOAT, 1.0F);
    convolution.set(as.beta, CUDNN_TYPE_FLOAT, 0.0F);
  });
  const std::uint32_t refused = refused_notes(s.format == Precision::fp32 && !pass.tf32);
  return graph.plans(target, words_of(as, s).c_str(), most, [&](const DnnPlan& plan) {
    return (plan.traits().notes & refused) == 0 && plan.bytes() <= kMostConvolutionWorkspace &&
           holds_slices(plan, s, as.result);
  });
}

WorkspacePlan DnnConv::planned(const DnnLibrary& library, const DnnTarget& target,
                               const Convolution& shape, bool tf32) {
  const auto first = [&](Direction direction) {
    return std::move(offers(library, target, {shape, direction, kDnnAlignment, tf32}, 1).front());
  };
  const DnnPlan forward = first(Direction::forward);
  const DnnPlan data = first(Direction::data);
  const DnnPlan filter = first(Direction::filter);
  const DnnTraits all = forward.traits().with(data.traits()).with(filter.traits());
  return {forward.bytes(), std::max(data.bytes(), filter.bytes()), all.notes, all.slices};
}

void DnnConv::run(const Convolution& shape, Direction direction, const void* x, const void* filter,
                  const void* y, Workspace& workspace) {
  const std::array<DnnBinding, 3> bindings{{{kImages, x}, {kFilter, filter}, {kConvolved, y}}};
  const Pass pass{shape, direction, alignment_of({x, filter, y}), tf32_};
  const DnnPlan& plan = plans_.plan(key_of(pass), [&] {
    std::vector<DnnPlan> offered = offers(handle_.library(), target_, pass, tune_ ? kTuned : 1);
    return std::move(offered[tuner_.fastest(offered, bindings)]);
  });
  plan.run(handle_.native(), bindings, workspace.get(plan.bytes()));
}

void DnnConv::forward(const Convolution& shape, const void* x, const void* filter, void* y,
                      Workspace& workspace) {
  run(shape, Direction::forward, x, filter, y, workspace);
}

void DnnConv::input_gradient(const Convolution& shape, const void* dy, const void* filter, void* dx,
                             Workspace& workspace) {
  run(shape, Direction::data, dx, filter, dy, workspace);
}

void DnnConv::filter_gradient(const Convolution& shape, const void* x, const void* dy,
                              void* d_filter, Workspace& workspace) {
  run(shape, Direction::filter, x, d_filter, dy, workspace);
}

}  // namespace paceline::cuda
