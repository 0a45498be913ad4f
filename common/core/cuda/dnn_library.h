// SPDX-License-Identifier: Apache-2.0
// The functions of cuDNN that convolutions and graphs of operations use, by name from a file.
#pragma once

#include <cudnn.h>

#include "common/core/precision.h"

namespace paceline::cuda {

[[nodiscard]] cudnnDataType_t dnn_type(Precision format);

struct DnnLibrary {
  /// Throws Failure kNoLibrary where the file, a function or major version 9 is missing.
  explicit DnnLibrary(const char* file);
  /// Throws Failure unless status is a success.
  void check(cudnnStatus_t status, const char* what) const;

  decltype(&::cudnnGetVersion) get_version;
  decltype(&::cudnnGetErrorString) error_string;
  decltype(&::cudnnGetLastErrorString) last_error_string;
  decltype(&::cudnnCreate) create;
  decltype(&::cudnnDestroy) destroy;
  decltype(&::cudnnSetStream) set_stream;
  decltype(&::cudnnCreateTensorDescriptor) create_tensor;
  decltype(&::cudnnSetTensor4dDescriptor) set_tensor;
  decltype(&::cudnnDestroyTensorDescriptor) destroy_tensor;
  decltype(&::cudnnCreateFilterDescriptor) create_filter;
  decltype(&::cudnnSetFilter4dDescriptor) set_filter;
  decltype(&::cudnnDestroyFilterDescriptor) destroy_filter;
  decltype(&::cudnnCreateConvolutionDescriptor) create_convolution;
  decltype(&::cudnnSetConvolution2dDescriptor) set_convolution;
  decltype(&::cudnnSetConvolutionMathType) set_math_type;
  decltype(&::cudnnDestroyConvolutionDescriptor) destroy_convolution;
  decltype(&::cudnnGetConvolutionForwardAlgorithm_v7) forward_algorithms;
  decltype(&::cudnnGetConvolutionForwardWorkspaceSize) forward_bytes;
  decltype(&::cudnnConvolutionForward) forward;
  decltype(&::cudnnGetConvolutionBackwardDataAlgorithm_v7) data_algorithms;
  decltype(&::cudnnGetConvolutionBackwardDataWorkspaceSize) data_bytes;
  decltype(&::cudnnConvolutionBackwardData) backward_data;
  decltype(&::cudnnGetConvolutionBackwardFilterAlgorithm_v7) filter_algorithms;
  decltype(&::cudnnGetConvolutionBackwardFilterWorkspaceSize) filter_bytes;
  decltype(&::cudnnConvolutionBackwardFilter) backward_filter;
  decltype(&::cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&::cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&::cudnnBackendSetAttribute) set_attribute;
  decltype(&::cudnnBackendGetAttribute) get_attribute;
  decltype(&::cudnnBackendFinalize) finalize;
  decltype(&::cudnnBackendExecute) execute;
};

}  // namespace paceline::cuda
