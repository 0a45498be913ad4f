// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_norm.h"

#include <vector>

namespace paceline::cuda {

namespace {

constexpr float kZero = 0.0F;

/// Numbers of the tensors that are bound to memory, and of values.
enum NormNumber : std::int64_t {
  kX = 1,
  kY,
  kAddend,
  kGamma,
  kBeta,
  kMean,
  kInverse,
  kEpsilon,
  kThreshold,
  kYGradient,
  kXGradient,
  kGammaGradient,
  kBetaGradient
};

DnnExtent whole(const BatchNorm& s) {
  return DnnExtent::channels_last(s.samples, s.height, s.width, s.channels);
}

/// One fp32 of each channel. Weights and their gradients lie anywhere in their arenas.
DnnGraph::Tensor channels_of(DnnGraph& graph, const BatchNorm& s, NormNumber number) {
  return graph.tensor(number, CUDNN_DATA_FLOAT, DnnExtent::channels_last(1, 1, 1, s.channels),
                      sizeof(float));
}

NormGraphs::Key key_of(const BatchNorm& s, std::int32_t one, std::int32_t other) {
  return {
      static_cast<std::int64_t>(s.format), one, other, s.samples, s.height, s.width, s.channels};
}

}  // namespace

NormGraphs::Key NormGraphs::forward_key(const BatchNorm& s) {
  return key_of(s, s.relu, s.addend);
}

NormGraphs::Key NormGraphs::backward_key(const BatchNorm& s) {
  return key_of(s, s.masks, 0);
}

DnnPlan NormGraphs::forward(const DnnLibrary& library, const DnnTarget& target,
                            const BatchNorm& s) {
  const DnnExtent extent = whole(s);
  const cudnnDataType_t type = dnn_type(s.format);
  const bool last = s.relu == 0 && s.addend == 0;
  DnnGraph graph(library);
  const auto x = graph.tensor(kX, type, extent);
  const auto y = graph.tensor(kY, type, extent);
  auto value = last ? y : graph.between(CUDNN_DATA_FLOAT, extent);
  const auto mean = channels_of(graph, s, kMean);
  const auto inverse = channels_of(graph, s, kInverse);
  const auto gamma = channels_of(graph, s, kGamma);
  const auto beta = channels_of(graph, s, kBeta);
  const auto epsilon = graph.value(kEpsilon);
  graph.operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "describing a batch norm",
                  [&](DnnDescriptor& norm) {
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE,
                             CUDNN_BATCH_NORM);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE,
                             CUDNN_NORM_FWD_TRAINING);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC, mean);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC, inverse);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC, gamma);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC, beta);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, epsilon);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, value);
                  });
  if (s.addend != 0) {
    const auto sum = s.relu == 0 ? y : graph.between(CUDNN_DATA_FLOAT, extent);
    graph.pointwise_into(CUDNN_POINTWISE_ADD, value, graph.tensor(kAddend, type, extent), sum);
    value = sum;
  }
  if (s.relu != 0) {
    graph.pointwise_into(CUDNN_POINTWISE_RELU_FWD, value, nullptr, y);
  }
  return graph.plan(target, "planning a batch norm");
}

/// What is masked is stored nowhere; cuDNN takes it in the format of dy alone.
DnnPlan NormGraphs::backward(const DnnLibrary& library, const DnnTarget& target,
                             const BatchNorm& s) {
  const DnnExtent extent = whole(s);
  const cudnnDataType_t type = dnn_type(s.format);
  DnnGraph graph(library);
  const auto x = graph.tensor(kX, type, extent);
  auto dy = graph.tensor(kYGradient, type, extent);
  if (s.masks != 0) {
    const auto y = graph.tensor(kY, type, extent);
    const auto active = graph.pointwise(CUDNN_POINTWISE_CMP_GT, y, graph.value(kThreshold), extent,
                                        CUDNN_DATA_BOOLEAN);
    dy = graph.pointwise(CUDNN_POINTWISE_MUL, dy, active, extent, type);
  }
  const auto mean = channels_of(graph, s, kMean);
  const auto inverse = channels_of(graph, s, kInverse);
  const auto gamma = channels_of(graph, s, kGamma);
  const auto d_gamma = channels_of(graph, s, kGammaGradient);
  const auto d_beta = channels_of(graph, s, kBetaGradient);
  const auto dx = graph.tensor(kXGradient, type, extent);
  graph.operation(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR,
                  "describing a batch norm's gradient", [&](DnnDescriptor& norm) {
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE,
                             CUDNN_BATCH_NORM);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC, mean);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, inverse);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC, gamma);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC, d_gamma);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC, d_beta);
                    norm.set(CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx);
                  });
  return graph.plan(target, "planning a batch norm's gradient");
}

void DnnNorm::forward(const BatchNorm& s, const void* x, const void* addend, const float* gamma,
                      const float* beta, void* y, float* mean, float* inverse,
                      Workspace& workspace) {
  std::vector<DnnBinding> bindings{{kX, x},
                                   {kY, y},
                                   {kGamma, gamma},
                                   {kBeta, beta},
                                   {kMean, mean},
                                   {kInverse, inverse},
                                   {kEpsilon, &s.epsilon}};
  if (s.addend != 0) {
    bindings.push_back({kAddend, addend});
  }
  run_forward(s, bindings, workspace);
}

void DnnNorm::backward(const BatchNorm& s, const void* x, const void* y, const void* dy,
                       const float* gamma, const float* mean, const float* inverse, void* dx,
                       float* d_gamma, float* d_beta, Workspace& workspace) {
  std::vector<DnnBinding> bindings{{kX, x},
                                   {kYGradient, dy},
                                   {kGamma, gamma},
                                   {kMean, mean},
                                   {kInverse, inverse},
                                   {kXGradient, dx},
                                   {kGammaGradient, d_gamma},
                                   {kBetaGradient, d_beta}};
  if (s.masks != 0) {
    bindings.push_back({kY, y});
    bindings.push_back({kThreshold, &kZero});
  }
  run_backward(s, bindings, workspace);
}

}  // namespace paceline::cuda
