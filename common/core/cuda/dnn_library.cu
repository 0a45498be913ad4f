// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda/dnn_library.h"

#include <string>

#include "common/core/cuda/library.h"

namespace paceline::cuda {

cudnnDataType_t dnn_type(Precision format) {
  switch (format) {
    case Precision::bf16:
      return CUDNN_DATA_BFLOAT16;
    case Precision::fp16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

DnnLibrary::DnnLibrary(const char* file) {
  const Library library(file);
  library.find(get_version, "cudnnGetVersion");
  if (const std::size_t version = get_version(); version / 10000 != 9) {
    throw Failure{kNoLibrary, library.file() + " is version " + std::to_string(version) +
                                  " of cuDNN, 9 is needed"};
  }
  library.find(error_string, "cudnnGetErrorString");
  library.find(last_error_string, "cudnnGetLastErrorString");
  library.find(create, "cudnnCreate");
  library.find(destroy, "cudnnDestroy");
  library.find(set_stream, "cudnnSetStream");
  library.find(create_tensor, "cudnnCreateTensorDescriptor");
  library.find(set_tensor, "cudnnSetTensor4dDescriptor");
  library.find(destroy_tensor, "cudnnDestroyTensorDescriptor");
  library.find(create_filter, "cudnnCreateFilterDescriptor");
  library.find(set_filter, "cudnnSetFilter4dDescriptor");
  library.find(destroy_filter, "cudnnDestroyFilterDescriptor");
  library.find(create_convolution, "cudnnCreateConvolutionDescriptor");
  library.find(set_convolution, "cudnnSetConvolution2dDescriptor");
  library.find(set_math_type, "cudnnSetConvolutionMathType");
  library.find(destroy_convolution, "cudnnDestroyConvolutionDescriptor");
  library.find(forward_algorithms, "cudnnGetConvolutionForwardAlgorithm_v7");
  library.find(forward_bytes, "cudnnGetConvolutionForwardWorkspaceSize");
  library.find(forward, "cudnnConvolutionForward");
  library.find(data_algorithms, "cudnnGetConvolutionBackwardDataAlgorithm_v7");
  library.find(data_bytes, "cudnnGetConvolutionBackwardDataWorkspaceSize");
  library.find(backward_data, "cudnnConvolutionBackwardData");
  library.find(filter_algorithms, "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
  library.find(filter_bytes, "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  library.find(backward_filter, "cudnnConvolutionBackwardFilter");
  library.find(create_descriptor, "cudnnBackendCreateDescriptor");
  library.find(destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.find(set_attribute, "cudnnBackendSetAttribute");
  library.find(get_attribute, "cudnnBackendGetAttribute");
  library.find(finalize, "cudnnBackendFinalize");
  library.find(execute, "cudnnBackendExecute");
}

void DnnLibrary::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) {
    return;
  }
  constexpr std::size_t kLongest = 512;
  char details[kLongest] = {};
  last_error_string(details, kLongest);
  std::string text = std::string("cuDNN: ") + what + ": " + error_string(status);
  if (details[0] != '\0') {
    text = text + " (" + details + ")";
  }
  throw Failure{kDnnStatus + static_cast<int>(status), std::move(text)};
}

}  // namespace paceline::cuda
