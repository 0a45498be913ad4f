// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/blas_library.h"

#include <string>

#include "common/core/cuda/library.h"

namespace paceline::cuda {

BlasLibrary::BlasLibrary(const char* file) {
  const Library library(file);
  library.find(get_version, "cublasLtGetVersion");
  if (const std::size_t version = get_version(); version < 120000 || version >= 140000) {
    throw Failure{kNoLibrary, library.file() + " is version " + std::to_string(version) +
                                  " of cuBLASLt, 12 or 13 is needed"};
  }
  library.find(status_string, "cublasLtGetStatusString");
  library.find(create, "cublasLtCreate");
  library.find(destroy, "cublasLtDestroy");
  library.find(create_product, "cublasLtMatmulDescCreate");
  library.find(destroy_product, "cublasLtMatmulDescDestroy");
  library.find(set_product, "cublasLtMatmulDescSetAttribute");
  library.find(create_layout, "cublasLtMatrixLayoutCreate");
  library.find(destroy_layout, "cublasLtMatrixLayoutDestroy");
  library.find(set_layout, "cublasLtMatrixLayoutSetAttribute");
  library.find(create_preference, "cublasLtMatmulPreferenceCreate");
  library.find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
  library.find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
  library.find(heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.find(matmul, "cublasLtMatmul");
}

void BlasLibrary::check(cublasStatus_t status, const char* what) const {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Failure{kBlasStatus + static_cast<int>(status),
                  std::string("cuBLASLt: ") + what + ": " + status_string(status)};
  }
}

}  // namespace paceline::cuda
