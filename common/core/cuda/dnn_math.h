// SPDX-License-Identifier: Apache-2.0
// Convolutions (math_abi.h) through cuDNN 9.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>

#include "common/core/cuda/dnn_library.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

/// For the calling thread's current device; everything throws Failure. Tensors and sums are in the
/// combinations that cuDNN calls FLOAT_CONFIG, PSEUDO_HALF_CONFIG and PSEUDO_BFLOAT16_CONFIG, all
/// of which compute in fp32. Only deterministic algorithms run.
class DnnMath {
 public:
  DnnMath(const char* file, bool tf32, cudaStream_t stream);
  ~DnnMath();
  DnnMath(const DnnMath&) = delete;
  DnnMath& operator=(const DnnMath&) = delete;

  void convolve(const Convolution& shape, const void* x, const void* filter, void* y,
                Workspace& workspace);
  void input_gradient(const Convolution& shape, const void* dy, const void* filter, void* dx,
                      Workspace& workspace);
  void filter_gradient(const Convolution& shape, const void* x, const void* dy, void* d_filter,
                       Workspace& workspace);

  // For what else cuDNN computes on the stream.
  [[nodiscard]] const DnnLibrary& library() const noexcept { return library_; }
  [[nodiscard]] cudnnHandle_t handle() const noexcept { return handle_; }

 private:
  enum class Direction : std::uint8_t { forward, data, filter };
  struct Plan;
  using Key = std::array<std::int64_t, 10>;

  [[nodiscard]] Plan& plan_for(const Convolution& shape, Direction direction);
  void describe(const Convolution& shape, Plan& plan) const;
  void find_algorithm(const Convolution& shape, Direction direction, Plan& plan) const;
  /// The first of `offered` that is deterministic, allowed to compute as asked, and wants no more
  /// memory than we give.
  template <typename Performance, typename Bytes>
  void choose(const Convolution& shape, Plan& plan, const Performance* offered, int count,
              const Bytes& bytes) const;

  DnnLibrary library_;
  bool tf32_;
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace paceline::cuda
