// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_math.h"

#include <limits>
#include <string>

namespace paceline::cuda {

namespace {

/// More algorithms than any direction has.
constexpr int kOffers = 16;
constexpr float kOne = 1.0F;
constexpr float kZero = 0.0F;

int narrow(std::int64_t extent) {
  if (extent <= 0 || extent > std::numeric_limits<int>::max()) {
    throw Failure{kDnnStatus + static_cast<int>(CUDNN_STATUS_BAD_PARAM),
                  "a convolution with an extent of " + std::to_string(extent)};
  }
  return static_cast<int>(extent);
}

std::int64_t extent_after(std::int64_t extent, const Convolution& s) {
  return (extent + 2 * s.padding - s.kernel) / s.stride + 1;
}

}  // namespace

struct DnnMath::Plan {
  explicit Plan(const DnnLibrary& made_by) : library(made_by) {
    library.check(library.create_tensor(&x), "describing a convolution");
    library.check(library.create_tensor(&y), "describing a convolution");
    library.check(library.create_filter(&filter), "describing a convolution");
    library.check(library.create_convolution(&convolution), "describing a convolution");
  }
  ~Plan() {
    (void)library.destroy_tensor(x);
    (void)library.destroy_tensor(y);
    (void)library.destroy_filter(filter);
    (void)library.destroy_convolution(convolution);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const DnnLibrary& library;
  cudnnTensorDescriptor_t x = nullptr;
  cudnnTensorDescriptor_t y = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  int algorithm = -1;  ///< an enumerator of the direction's own type
  std::size_t bytes = 0;
};

DnnMath::DnnMath(const char* file, bool tf32, cudaStream_t stream) : library_(file), tf32_(tf32) {
  library_.check(library_.create(&handle_), "opening a device");
  if (const cudnnStatus_t status = library_.set_stream(handle_, stream);
      status != CUDNN_STATUS_SUCCESS) {
    (void)library_.destroy(handle_);
    library_.check(status, "choosing the stream");
  }
}

DnnMath::~DnnMath() {
  plans_.clear();
  (void)library_.destroy(handle_);
}

void DnnMath::describe(const Convolution& s, Plan& plan) const {
  const cudnnDataType_t type = dnn_type(s.format);
  const auto tensor = [&](cudnnTensorDescriptor_t to, std::int64_t channels, std::int64_t height,
                          std::int64_t width) {
    library_.check(library_.set_tensor(to, CUDNN_TENSOR_NHWC, type, narrow(s.samples),
                                       narrow(channels), narrow(height), narrow(width)),
                   "describing a tensor");
  };
  tensor(plan.x, s.channels, s.height, s.width);
  tensor(plan.y, s.outputs, extent_after(s.height, s), extent_after(s.width, s));
  library_.check(library_.set_filter(plan.filter, type, CUDNN_TENSOR_NHWC, narrow(s.outputs),
                                     narrow(s.channels), s.kernel, s.kernel),
                 "describing a filter");
  library_.check(
      library_.set_convolution(plan.convolution, s.padding, s.padding, s.stride, s.stride, 1, 1,
                               CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
      "describing a convolution");
}

template <typename Performance, typename Bytes>
void DnnMath::choose(const Convolution& s, Plan& plan, const Performance* offered, int count,
                     const Bytes& bytes) const {
  const bool strict = s.format == Precision::fp32 && !tf32_;
  for (const Performance* offer = offered; offer != offered + count; ++offer) {
    if (offer->status != CUDNN_STATUS_SUCCESS || offer->determinism != CUDNN_DETERMINISTIC) {
      continue;
    }
    const cudnnMathType_t math = strict ? CUDNN_FMA_MATH : offer->mathType;
    library_.check(library_.set_math_type(plan.convolution, math), "describing a convolution");
    std::size_t wanted = 0;
    if (bytes(offer->algo, &wanted) == CUDNN_STATUS_SUCCESS &&
        wanted <= kMostConvolutionWorkspace) {
      plan.algorithm = static_cast<int>(offer->algo);
      plan.bytes = wanted;
      return;
    }
  }
  throw Failure{kDnnStatus + static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED),
                "cuDNN: no deterministic algorithm for a convolution " + std::to_string(s.kernel) +
                    "x" + std::to_string(s.kernel) + " of " + std::to_string(s.channels) + " to " +
                    std::to_string(s.outputs) + " channels over " + std::to_string(s.samples) +
                    " samples " + std::to_string(s.height) + "x" + std::to_string(s.width)};
}

void DnnMath::find_algorithm(const Convolution& s, Direction direction, Plan& plan) const {
  const bool strict = s.format == Precision::fp32 && !tf32_;
  const cudnnMathType_t wish = strict                        ? CUDNN_FMA_MATH
                               : s.format == Precision::fp32 ? CUDNN_DEFAULT_MATH
                                                             : CUDNN_TENSOR_OP_MATH;
  library_.check(library_.set_math_type(plan.convolution, wish), "describing a convolution");
  int count = 0;
  constexpr const char* kChoosing = "choosing an algorithm";
  if (direction == Direction::forward) {
    cudnnConvolutionFwdAlgoPerf_t offered[kOffers];
    library_.check(library_.forward_algorithms(handle_, plan.x, plan.filter, plan.convolution,
                                               plan.y, kOffers, &count, offered),
                   kChoosing);
    choose(s, plan, offered, count, [&](cudnnConvolutionFwdAlgo_t algorithm, std::size_t* bytes) {
      return library_.forward_bytes(handle_, plan.x, plan.filter, plan.convolution, plan.y,
                                    algorithm, bytes);
    });
  } else if (direction == Direction::data) {
    cudnnConvolutionBwdDataAlgoPerf_t offered[kOffers];
    library_.check(library_.data_algorithms(handle_, plan.filter, plan.y, plan.convolution, plan.x,
                                            kOffers, &count, offered),
                   kChoosing);
    choose(s, plan, offered, count,
           [&](cudnnConvolutionBwdDataAlgo_t algorithm, std::size_t* bytes) {
             return library_.data_bytes(handle_, plan.filter, plan.y, plan.convolution, plan.x,
                                        algorithm, bytes);
           });
  } else {
    cudnnConvolutionBwdFilterAlgoPerf_t offered[kOffers];
    library_.check(library_.filter_algorithms(handle_, plan.x, plan.y, plan.convolution,
                                              plan.filter, kOffers, &count, offered),
                   kChoosing);
    choose(s, plan, offered, count,
           [&](cudnnConvolutionBwdFilterAlgo_t algorithm, std::size_t* bytes) {
             return library_.filter_bytes(handle_, plan.x, plan.y, plan.convolution, plan.filter,
                                          algorithm, bytes);
           });
  }
}

DnnMath::Plan& DnnMath::plan_for(const Convolution& s, Direction direction) {
  const Key key{static_cast<std::int64_t>(s.format),
                static_cast<std::int64_t>(direction),
                s.kernel,
                s.stride,
                s.padding,
                s.samples,
                s.height,
                s.width,
                s.channels,
                s.outputs};
  std::unique_ptr<Plan>& kept = plans_[key];
  if (kept == nullptr) {
    auto plan = std::make_unique<Plan>(library_);
    describe(s, *plan);
    find_algorithm(s, direction, *plan);
    kept = std::move(plan);
  }
  return *kept;
}

void DnnMath::convolve(const Convolution& s, const void* x, const void* filter, void* y,
                       Workspace& workspace) {
  const Plan& plan = plan_for(s, Direction::forward);
  library_.check(library_.forward(handle_, &kOne, plan.x, x, plan.filter, filter, plan.convolution,
                                  static_cast<cudnnConvolutionFwdAlgo_t>(plan.algorithm),
                                  workspace.get(plan.bytes), plan.bytes, &kZero, plan.y, y),
                 "a convolution");
}

void DnnMath::input_gradient(const Convolution& s, const void* dy, const void* filter, void* dx,
                             Workspace& workspace) {
  const Plan& plan = plan_for(s, Direction::data);
  library_.check(
      library_.backward_data(handle_, &kOne, plan.filter, filter, plan.y, dy, plan.convolution,
                             static_cast<cudnnConvolutionBwdDataAlgo_t>(plan.algorithm),
                             workspace.get(plan.bytes), plan.bytes, &kZero, plan.x, dx),
      "a convolution's input gradient");
}

void DnnMath::filter_gradient(const Convolution& s, const void* x, const void* dy, void* d_filter,
                              Workspace& workspace) {
  const Plan& plan = plan_for(s, Direction::filter);
  library_.check(library_.backward_filter(
                     handle_, &kOne, plan.x, x, plan.y, dy, plan.convolution,
                     static_cast<cudnnConvolutionBwdFilterAlgo_t>(plan.algorithm),
                     workspace.get(plan.bytes), plan.bytes, &kZero, plan.filter, d_filter),
                 "a convolution's filter gradient");
}

}  // namespace paceline::cuda
