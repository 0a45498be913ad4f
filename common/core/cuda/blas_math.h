// SPDX-License-Identifier: Apache-2.0
// Matmul (math_abi.h) through cuBLASLt.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>

#include "common/core/cuda/blas_library.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

namespace paceline::cuda {

/// For the calling thread's current device; everything throws Failure.
class BlasMath {
 public:
  BlasMath(const char* file, bool tf32, cudaStream_t stream);
  ~BlasMath();
  BlasMath(const BlasMath&) = delete;
  BlasMath& operator=(const BlasMath&) = delete;

  void matmul(const Matmul& product, Workspace& workspace);
  [[nodiscard]] std::size_t bytes() const noexcept { return bias_.bytes(); }

 private:
  struct Plan;
  /// All that decides which algorithm can run: shape, steps, formats, and the operands' alignment.
  using Key = std::array<std::int64_t, 20>;

  [[nodiscard]] static Key key_of(const Matmul& product);
  [[nodiscard]] Plan& plan_for(const Matmul& product);
  [[nodiscard]] std::unique_ptr<Plan> make_plan(const Matmul& product) const;
  [[nodiscard]] bool find_algorithm(const Matmul& product, Plan& plan, bool fused) const;
  [[nodiscard]] cublasLtMatrixLayout_t make_layout(cudaDataType_t type, bool transposed,
                                                   std::int64_t rows, std::int64_t columns,
                                                   std::int64_t stride, std::int64_t batch,
                                                   std::int64_t step) const;
  /// The bias as the fused epilogue reads it: in C's type, aligned.
  [[nodiscard]] const void* bias_for(const Matmul& product);

  BlasLibrary library_;
  bool tf32_;
  cudaStream_t stream_;
  cublasLtHandle_t handle_ = nullptr;
  Workspace bias_;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace paceline::cuda
