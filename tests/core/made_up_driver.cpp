// SPDX-License-Identifier: Apache-2.0
// A double of the CUDA driver, by its soname: loading a kernel succeeds and does nothing, all else
// says that this is no driver (cudaErrorStubLibrary). With it cuDNN finishes plans for a device
// that it was only told about.
#include <cstddef>

namespace {

constexpr int kSuccess = 0;
constexpr int kStubLibrary = 34;
int loaded;  // what every handle points to

}  // namespace

#define PACELINE_MADE(name) \
  int name(void** handle) { \
    *handle = &loaded;      \
    return kSuccess;        \
  }
#define PACELINE_DONE(name) \
  int name() {              \
    return kSuccess;        \
  }
#define PACELINE_REFUSED(name) \
  int name() {                 \
    return kStubLibrary;       \
  }

extern "C" {

PACELINE_MADE(cuLibraryLoadData)
PACELINE_MADE(cuLibraryGetKernel)
PACELINE_DONE(cuLibraryUnload)
PACELINE_DONE(cuKernelSetAttribute)
PACELINE_DONE(cuFuncSetAttribute)

// What cuDNN and NVRTC look for besides.
PACELINE_REFUSED(cuCtxGetCurrent)
PACELINE_REFUSED(cuCtxGetDevice)
PACELINE_REFUSED(cuCtxGetLimit)
PACELINE_REFUSED(cuCtxPopCurrent)
PACELINE_REFUSED(cuCtxPushCurrent)
PACELINE_REFUSED(cuDeviceGet)
PACELINE_REFUSED(cuDeviceGetAttribute)
PACELINE_REFUSED(cuDeviceGetCount)
PACELINE_REFUSED(cuDevicePrimaryCtxRelease)
PACELINE_REFUSED(cuDevicePrimaryCtxReset)
PACELINE_REFUSED(cuDevicePrimaryCtxRetain)
PACELINE_REFUSED(cuDriverGetVersion)
PACELINE_REFUSED(cuFuncGetAttribute)
PACELINE_REFUSED(cuGetErrorName)
PACELINE_REFUSED(cuGetErrorString)
PACELINE_REFUSED(cuInit)
PACELINE_REFUSED(cuKernelGetAttribute)
PACELINE_REFUSED(cuLaunchCooperativeKernel)
PACELINE_REFUSED(cuLaunchKernel)
PACELINE_REFUSED(cuLaunchKernelEx)
PACELINE_REFUSED(cuLibraryLoadFromFile)
PACELINE_REFUSED(cuLinkAddData)
PACELINE_REFUSED(cuLinkAddData_v2)
PACELINE_REFUSED(cuLinkAddFile_v2)
PACELINE_REFUSED(cuLinkComplete)
PACELINE_REFUSED(cuLinkCreate)
PACELINE_REFUSED(cuLinkCreate_v2)
PACELINE_REFUSED(cuLinkDestroy)
PACELINE_REFUSED(cuMemcpyDtoH_v2)
PACELINE_REFUSED(cuModuleGetFunction)
PACELINE_REFUSED(cuModuleGetGlobal_v2)
PACELINE_REFUSED(cuModuleLoadData)
PACELINE_REFUSED(cuModuleLoadDataEx)
PACELINE_REFUSED(cuModuleLoadFatBinary)
PACELINE_REFUSED(cuModuleUnload)
PACELINE_REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
PACELINE_REFUSED(cuOccupancyMaxPotentialClusterSize)
PACELINE_REFUSED(cuStreamGetCtx)
PACELINE_REFUSED(cuStreamSynchronize)
PACELINE_REFUSED(cuTensorMapEncodeTiled)
}
