// SPDX-License-Identifier: Apache-2.0
// The functions of cuBLASLt that products use, by name from a file.
#pragma once

#include <cublasLt.h>

namespace paceline::cuda {

struct BlasLibrary {
  /// Throws Failure kNoLibrary where the file, a function or version 12 or 13 is missing.
  explicit BlasLibrary(const char* file);
  /// Throws Failure unless status is a success.
  void check(cublasStatus_t status, const char* what) const;

  decltype(&::cublasLtGetVersion) get_version;
  decltype(&::cublasLtGetStatusString) status_string;
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtMatmulDescCreate) create_product;
  decltype(&::cublasLtMatmulDescDestroy) destroy_product;
  decltype(&::cublasLtMatmulDescSetAttribute) set_product;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&::cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmul) matmul;
};

}  // namespace paceline::cuda
