// SPDX-License-Identifier: Apache-2.0
// Graphs of cuDNN's operations, which it turns into one kernel or a few, and the plans to run them
// (cuDNN's backend API).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/core/cuda/dnn_library.h"
#include "common/core/cuda/library.h"

namespace paceline::cuda {

/// Of what cuDNN cannot do.
[[nodiscard]] Failure not_supported(std::string text);

/// A descriptor of the backend API and what is set in it.
class DnnDescriptor {
 public:
  DnnDescriptor(const DnnLibrary& library, cudnnBackendDescriptorType_t type);
  ~DnnDescriptor();
  DnnDescriptor(DnnDescriptor&& other) noexcept
      : library_(other.library_), native_(std::exchange(other.native_, nullptr)) {}
  DnnDescriptor& operator=(DnnDescriptor&&) = delete;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values);
  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    set(name, type, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
  }
  /// Returns how many there are, of which at most `room` are written.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   std::int64_t room, void* values) const;
  /// `what` is being done, for the error.
  void finalize(const char* what);
  [[nodiscard]] cudnnBackendDescriptor_t native() const noexcept { return native_; }

 private:
  const DnnLibrary* library_;
  cudnnBackendDescriptor_t native_ = nullptr;
};

/// What a graph is planned for: the device of a handle, or one that is described only (cuDNN 9.8),
/// which need not be here.
class DnnTarget {
 public:
  /// The calling thread's current device, which is the handle's.
  explicit DnnTarget(cudnnHandle_t handle);
  /// `json`: as cuDNN serialises a device's properties.
  DnnTarget(const DnnLibrary& library, const std::string& json);

  void aim_graph(DnnDescriptor& graph) const;
  void aim_heuristics(DnnDescriptor& heuristics) const;
  void aim_plan(DnnDescriptor& plan) const;
  /// Of computing; 900 is 9.0.
  [[nodiscard]] int capability() const noexcept { return capability_; }

 private:
  cudnnHandle_t handle_ = nullptr;
  int capability_ = 0;
  std::vector<DnnDescriptor> properties_;  // one or none
};

/// Of a tensor of four dimensions, in elements.
struct DnnExtent {
  std::array<std::int64_t, 4> sizes;
  std::array<std::int64_t, 4> strides;
  [[nodiscard]] DnnExtent transposed() const {
    return {{sizes[0], sizes[1], sizes[3], sizes[2]},
            {strides[0], strides[1], strides[3], strides[2]}};
  }
  [[nodiscard]] static DnnExtent dense(std::int64_t a, std::int64_t b, std::int64_t c,
                                       std::int64_t d) {
    return {{a, b, c, d}, {b * c * d, c * d, d, 1}};
  }
  /// [samples, channels, height, width] as NHWC lies in memory.
  [[nodiscard]] static DnnExtent channels_last(std::int64_t samples, std::int64_t height,
                                               std::int64_t width, std::int64_t channels) {
    return {{samples, channels, height, width},
            {height * width * channels, 1, width * channels, channels}};
  }
};

/// Where a plan finds the tensor of that number.
struct DnnBinding {
  std::int64_t number;
  const void* memory;  ///< the device's; of a value the host's, which is read during the call
};

/// What cuDNN says of how it computes a graph.
struct DnnTraits {
  std::uint32_t notes = 0;  ///< on the engine, each as 1 << cudnnBackendNumericalNote_t
  std::int64_t slices = 1;  ///< of every sum, which are added at last (split-k)

  /// Of this and another.
  [[nodiscard]] DnnTraits with(const DnnTraits& other) const {
    return {notes | other.notes, std::max(slices, other.slices)};
  }
};

/// How cuDNN computes a graph on its target.
class DnnPlan {
 public:
  DnnPlan(const DnnLibrary& library, DnnDescriptor plan, const DnnTraits& traits);
  /// Queues it on the handle's stream.
  void run(cudnnHandle_t handle, std::span<const DnnBinding> bindings, void* workspace) const;
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }  ///< of workspace
  [[nodiscard]] const DnnTraits& traits() const noexcept { return traits_; }

 private:
  const DnnLibrary* library_;
  DnnDescriptor plan_;
  DnnTraits traits_;
  std::size_t bytes_ = 0;
};

/// Whether a plan is one to take.
using DnnFilter = std::function<bool(const DnnPlan&)>;

/// Bytes; more gains nothing.
inline constexpr std::int64_t kDnnAlignment = 16;

/// Operations on tensors, each described before it is used. Sums and pointwise arithmetic are fp32.
class DnnGraph {
 public:
  using Tensor = cudnnBackendDescriptor_t;  ///< the graph's

  explicit DnnGraph(const DnnLibrary& library) : library_(library) {}

  /// In memory that a DnnBinding of that number says, aligned to `alignment` bytes.
  Tensor tensor(std::int64_t number, cudnnDataType_t type, const DnnExtent& extent,
                std::int64_t alignment = kDnnAlignment);
  /// One fp32 of the host.
  Tensor value(std::int64_t number);

  // Each returns a tensor that exists between operations only, or fills `to`.
  Tensor multiply(Tensor a, Tensor b, const DnnExtent& extent);
  void multiply_into(Tensor a, Tensor b, Tensor to);
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, const DnnExtent& extent,
                   cudnnDataType_t type = CUDNN_DATA_FLOAT);
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, const DnnExtent& extent,
                   cudnnDataType_t type = CUDNN_DATA_FLOAT);
  void pointwise_into(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor to);
  /// Every element's place along a dimension.
  Tensor places(Tensor like, std::int64_t dimension, const DnnExtent& extent);
  /// x where `chosen` is true, else `otherwise`.
  Tensor select(Tensor chosen, Tensor x, Tensor otherwise, const DnnExtent& extent);
  Tensor reduce(cudnnReduceTensorOp_t by, Tensor x, const DnnExtent& extent);
  /// The same elements in another shape or order.
  Tensor reshape(Tensor x, const DnnExtent& extent, cudnnDataType_t type);

  /// An operation of another kind; `describe` sets its attributes.
  template <typename Describe>
  void operation(cudnnBackendDescriptorType_t type, const char* what, const Describe& describe) {
    DnnDescriptor& made = keep(type);
    describe(made);
    add(made, what);
  }
  /// One that exists between operations only.
  Tensor between(cudnnDataType_t type, const DnnExtent& extent);
  /// A new descriptor that lives as long as the graph.
  DnnDescriptor& keep(cudnnBackendDescriptorType_t type);

  /// The first `most` of cuDNN's proposals that can be built and that `admits` takes. Throws
  /// Failure with cuDNN's reason when there is none; `what` is done. Whether equal runs give equal
  /// bits is for the caller to see to: cuDNN has a note on that for engines, but leaves it away
  /// where sums are atomic. Of convolutions it bears on one engine of each gradient; what else
  /// splits sums without memory for the slices' own has none, or, in fp16 alone, one on its
  /// reduced precision (cuDNN 9.19, A100 and H100).
  [[nodiscard]] std::vector<DnnPlan> plans(const DnnTarget& target, const char* what,
                                           std::size_t most, const DnnFilter& admits);
  /// The first of them all.
  [[nodiscard]] DnnPlan plan(const DnnTarget& target, const char* what);

 private:
  Tensor make_tensor(std::int64_t number, cudnnDataType_t type, const DnnExtent& extent,
                     std::int64_t alignment, bool between, bool by_value);
  void add(DnnDescriptor& operation, const char* what);
  void apply(cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, std::int64_t axis, Tensor x,
             Tensor b, Tensor chosen, Tensor to);

  const DnnLibrary& library_;
  std::vector<DnnDescriptor> kept_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::int64_t next_between_ = 1000;  // numbers of tensors between operations
};

}  // namespace paceline::cuda
