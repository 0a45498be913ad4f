// SPDX-License-Identifier: Apache-2.0
// NCCL, opened by file: nothing of the module links against it.
#include "common/core/cuda/nccl.h"

#include <nccl.h>

#include <cstring>
#include <optional>
#include <string>

#include "common/core/cuda/library.h"

namespace paceline::cuda {
namespace {

static_assert(kNcclSuccess == ncclSuccess);
static_assert(kNcclInProgress == ncclInProgress);
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
static_assert(kOldestNccl == NCCL_VERSION(2, 18, 0));

/// The functions by NCCL's own types. Throws Failure.
struct NcclLibrary {
  explicit NcclLibrary(const Library& library) {
    library.find(unique_id, "ncclGetUniqueId");
    library.find(init, "ncclCommInitRankConfig");
    library.find(split, "ncclCommSplit");
    library.find(async_error, "ncclCommGetAsyncError");
    library.find(error_string, "ncclGetErrorString");
    library.find(last_error, "ncclGetLastError");
    library.find(all_reduce, "ncclAllReduce");
    library.find(reduce_scatter, "ncclReduceScatter");
    library.find(all_gather, "ncclAllGather");
    library.find(broadcast, "ncclBroadcast");
    library.find(group_start, "ncclGroupStart");
    library.find(group_end, "ncclGroupEnd");
    library.find(finalize, "ncclCommFinalize");
    library.find(destroy, "ncclCommDestroy");
    library.find(abort, "ncclCommAbort");
  }

  decltype(&::ncclGetUniqueId) unique_id;
  decltype(&::ncclCommInitRankConfig) init;
  decltype(&::ncclCommSplit) split;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
};

/// What opening it came to, once per process.
struct Opened {
  explicit Opened(const char* file) noexcept {
    status = guarded([&] {
      const Library library(file);
      decltype(&::ncclGetVersion) get_version = nullptr;
      library.find(get_version, "ncclGetVersion");
      if (get_version(&version) != ncclSuccess || version < kOldestNccl) {
        throw Failure{kNcclTooOld, library.file() + " is older than NCCL 2.18"};
      }
      functions.emplace(library);
    });
    if (const char* words = failure_text(status); words != nullptr) {
      text = words;
    }
  }

  int status = kSuccess;
  int version = 0;
  std::string text;
  std::optional<NcclLibrary> functions;
};

const Opened& opened(const char* file) {
  static const Opened once(file);
  return once;
}

/// Only after open() succeeded.
const NcclLibrary& nccl() {
  return *opened(nullptr).functions;
}

int open(const char* file, int* version) {
  const Opened& library = opened(file);
  *version = library.version;
  return library.status == kSuccess ? kSuccess : remember({library.status, library.text});
}

/// "In progress" is a success here: async_error() tells when it has become one.
int told(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) {
    return kSuccess;
  }
  return remember({kNcclStatus + static_cast<int>(result), nccl().error_string(result)});
}

ncclComm_t native(void* comm) {
  return static_cast<ncclComm_t>(comm);
}

ncclDataType_t native(Precision format) {
  return format == Precision::fp32 ? ncclFloat32
                                   : (format == Precision::fp16 ? ncclFloat16 : ncclBfloat16);
}

ncclRedOp_t native(NcclSum sum) {
  return sum == NcclSum::average ? ncclAvg : ncclSum;
}

cudaStream_t native_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

ncclConfig_t config_of(const NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options.min_ctas > 0) {
    config.minCTAs = options.min_ctas;
  }
  if (options.max_ctas > 0) {
    config.maxCTAs = options.max_ctas;
  }
  return config;
}

int unique_id(NcclId* id) {
  ncclUniqueId drawn;
  const int status = told(nccl().unique_id(&drawn));
  std::memcpy(id->bytes, &drawn, sizeof drawn);
  return status;
}

int init(void** comm, int world, const NcclId* id, int rank, const NcclOptions* options) {
  ncclUniqueId drawn;
  std::memcpy(&drawn, id->bytes, sizeof drawn);
  ncclConfig_t config = config_of(*options);
  ncclComm_t made = nullptr;
  const int status = told(nccl().init(&made, world, drawn, rank, &config));
  *comm = made;
  return status;
}

int split(void* comm, int color, int key, void** made, const NcclOptions* options) {
  ncclConfig_t config = config_of(*options);
  return told(nccl().split(native(comm), color, key, reinterpret_cast<ncclComm_t*>(made), &config));
}

int async_error(void* comm, int* state) {
  ncclResult_t result = ncclSuccess;
  const int status = told(nccl().async_error(native(comm), &result));
  *state = result;
  return status;
}

const char* last_error(void* comm) {
  return nccl().last_error(native(comm));
}

int all_reduce(const void* from, void* to, std::size_t count, Precision format, NcclSum sum,
               void* comm, void* stream) {
  return told(nccl().all_reduce(from, to, count, native(format), native(sum), native(comm),
                                native_stream(stream)));
}

int reduce_scatter(const void* from, void* to, std::size_t count, Precision format, NcclSum sum,
                   void* comm, void* stream) {
  return told(nccl().reduce_scatter(from, to, count, native(format), native(sum), native(comm),
                                    native_stream(stream)));
}

int all_gather(const void* from, void* to, std::size_t count, Precision format, void* comm,
               void* stream) {
  return told(
      nccl().all_gather(from, to, count, native(format), native(comm), native_stream(stream)));
}

int broadcast(void* memory, std::size_t count, Precision format, int root, void* comm,
              void* stream) {
  return told(nccl().broadcast(memory, memory, count, native(format), root, native(comm),
                               native_stream(stream)));
}

int sum_doubles(double* values, std::size_t count, void* comm, void* stream) {
  return told(nccl().all_reduce(values, values, count, ncclFloat64, ncclSum, native(comm),
                                native_stream(stream)));
}

int group_start() {
  return told(nccl().group_start());
}

int group_end() {
  return told(nccl().group_end());
}

int finalize(void* comm) {
  return told(nccl().finalize(native(comm)));
}

int destroy(void* comm) {
  return told(nccl().destroy(native(comm)));
}

int abort(void* comm) {
  return told(nccl().abort(native(comm)));
}

}  // namespace

/// Words of our own, since a status can be asked about before the library was opened.
const char* nccl_result_text(int result) noexcept {
  switch (result) {
    case ncclUnhandledCudaError:
      return "NCCL: a CUDA call failed (NCCL_DEBUG=INFO says which)";
    case ncclSystemError:
      return "NCCL: a system call failed (NCCL_DEBUG=INFO says which)";
    case ncclInternalError:
      return "NCCL: an internal error";
    case ncclInvalidArgument:
      return "NCCL: an invalid argument";
    case ncclInvalidUsage:
      return "NCCL: invalid usage";
    case ncclRemoteError:
      return "NCCL: a remote process exited or the network failed";
    default:
      return nullptr;
  }
}

constinit const NcclApi kNcclApi{open,        unique_id,  init,        split,
                                 async_error, last_error, all_reduce,  reduce_scatter,
                                 all_gather,  broadcast,  sum_doubles, group_start,
                                 group_end,   finalize,   destroy,     abort};

}  // namespace paceline::cuda
