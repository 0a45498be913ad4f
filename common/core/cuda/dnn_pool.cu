// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_pool.h"

#include <algorithm>
#include <vector>

namespace paceline::cuda {

namespace {

/// Numbers of the tensors that are bound to memory.
enum PoolNumber : std::int64_t { kInput = 1, kPooled, kWinners };

/// Zeros or nothing beyond the last row (or column), as far as the last window reaches.
std::int64_t padding_after(const Pool& s, std::int64_t extent, std::int64_t windows,
                           std::int64_t window) {
  return std::max<std::int64_t>(0, (windows - 1) * s.stride + window - extent - s.padding);
}

DnnDescriptor& windows_of(DnnGraph& graph, const Pool& s) {
  const bool maximum = s.kind == Pooling::maximum;
  const auto set_both = [&](DnnDescriptor& to, cudnnBackendAttributeName_t name,
                            std::int64_t height, std::int64_t width) {
    const cudnnFraction_t both[] = {{height, 1}, {width, 1}};
    to.set(name, CUDNN_TYPE_FRACTION, 2, both);
  };
  DnnDescriptor& made = graph.keep(CUDNN_BACKEND_RESAMPLE_DESCRIPTOR);
  made.set(CUDNN_ATTR_RESAMPLE_MODE, CUDNN_TYPE_RESAMPLE_MODE,
           maximum ? CUDNN_RESAMPLE_MAXPOOL : CUDNN_RESAMPLE_AVGPOOL_INCLUDE_PADDING);
  made.set(CUDNN_ATTR_RESAMPLE_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, CUDNN_PROPAGATE_NAN);
  made.set(CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  made.set(CUDNN_ATTR_RESAMPLE_PADDING_MODE, CUDNN_TYPE_PADDING_MODE,
           maximum ? CUDNN_NEG_INF_PAD : CUDNN_ZERO_PAD);
  set_both(made, CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, s.window_height, s.window_width);
  set_both(made, CUDNN_ATTR_RESAMPLE_STRIDES, s.stride, s.stride);
  set_both(made, CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, s.padding, s.padding);
  set_both(made, CUDNN_ATTR_RESAMPLE_POST_PADDINGS,
           padding_after(s, s.height, s.rows, s.window_height),
           padding_after(s, s.width, s.columns, s.window_width));
  made.finalize("describing a pool");
  return made;
}

/// The tensors of a pool, or of the gradients that flow through it.
struct PoolTensors {
  DnnGraph::Tensor input;
  DnnGraph::Tensor pooled;
  DnnGraph::Tensor winners;  ///< null for a mean
  PoolTensors(DnnGraph& graph, const Pool& s) {
    const cudnnDataType_t type = dnn_type(s.format);
    const DnnExtent after = DnnExtent::channels_last(s.samples, s.rows, s.columns, s.channels);
    input = graph.tensor(kInput, type,
                         DnnExtent::channels_last(s.samples, s.height, s.width, s.channels));
    pooled = graph.tensor(kPooled, type, after);
    winners = s.kind == Pooling::maximum ? graph.tensor(kWinners, CUDNN_DATA_INT8, after) : nullptr;
  }
};

std::vector<DnnBinding> bound(const Pool& s, const void* input, const void* pooled,
                              const std::uint8_t* winners) {
  std::vector<DnnBinding> bindings{{kInput, input}, {kPooled, pooled}};
  if (s.kind == Pooling::maximum) {
    bindings.push_back({kWinners, winners});
  }
  return bindings;
}

}  // namespace

PoolGraphs::Key PoolGraphs::forward_key(const Pool& s) {
  return {static_cast<std::int64_t>(s.format),
          static_cast<std::int64_t>(s.kind),
          s.samples,
          s.height,
          s.width,
          s.channels,
          s.rows,
          s.columns,
          s.window_height,
          s.window_width,
          s.stride,
          s.padding};
}

PoolGraphs::Key PoolGraphs::backward_key(const Pool& s) {
  return forward_key(s);
}

DnnPlan PoolGraphs::forward(const DnnLibrary& library, const DnnTarget& target, const Pool& s) {
  DnnGraph graph(library);
  const PoolTensors tensors(graph, s);
  const cudnnBackendDescriptor_t windows = windows_of(graph, s).native();
  graph.operation(CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR, "describing a pool",
                  [&](DnnDescriptor& pool) {
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, windows);
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, tensors.input);
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, tensors.pooled);
                    if (tensors.winners != nullptr) {
                      pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_IDXDESC, tensors.winners);
                    }
                  });
  return graph.plan(target, "planning a pool");
}

DnnPlan PoolGraphs::backward(const DnnLibrary& library, const DnnTarget& target, const Pool& s) {
  DnnGraph graph(library);
  const PoolTensors tensors(graph, s);
  const cudnnBackendDescriptor_t windows = windows_of(graph, s).native();
  graph.operation(CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR, "describing a pool's gradient",
                  [&](DnnDescriptor& pool) {
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC, windows);
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, tensors.input);
                    pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, tensors.pooled);
                    if (tensors.winners != nullptr) {
                      pool.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_IDXDESC, tensors.winners);
                    }
                  });
  return graph.plan(target, "planning a pool's gradient");
}

void DnnPool::forward(const Pool& s, const void* x, void* y, std::uint8_t* winners,
                      Workspace& workspace) {
  run_forward(s, bound(s, x, y, winners), workspace);
}

void DnnPool::backward(const Pool& s, const void* dy, const std::uint8_t* winners, void* dx,
                       Workspace& workspace) {
  run_backward(s, bound(s, dx, dy, winners), workspace);
}

}  // namespace paceline::cuda
