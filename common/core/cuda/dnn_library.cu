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

DnnHandle::DnnHandle(const char* file, cudaStream_t stream) : library_(file), stream_(stream) {
  library_.check(library_.create(&native_), "opening a device");
  if (const cudnnStatus_t status = library_.set_stream(native_, stream);
      status != CUDNN_STATUS_SUCCESS) {
    (void)library_.destroy(native_);
    library_.check(status, "choosing the stream");
  }
}

DnnHandle::~DnnHandle() {
  (void)library_.destroy(native_);
}

}  // namespace paceline::cuda
