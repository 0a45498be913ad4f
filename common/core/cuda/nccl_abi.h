// SPDX-License-Identifier: Apache-2.0
// NCCL as the CUDA module offers it (see abi.h): one function per NCCL call that sync=nccl uses,
// with NCCL's own meaning. The library is opened by file when asked for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/core/precision.h"

namespace paceline::cuda {

struct NcclId {
  char bytes[128];  ///< ncclUniqueId
};

enum class NcclSum : std::int32_t { sum, average };

struct NcclOptions {
  std::int32_t min_ctas;  ///< 0: NCCL's choice, as below
  std::int32_t max_ctas;
};

/// The first with ncclCommSplit, as ncclGetVersion tells it.
inline constexpr int kOldestNccl = 21800;
inline constexpr int kNcclTooOld = 4'000'001;  ///< open()'s status for older ones

/// NCCL's states of a non-blocking communicator.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclInProgress = 7;

/// Communicators are non-blocking (ncclConfig_t::blocking = 0): a call returns kSuccess when it is
/// done or under way; async_error() tells which. Every status is kSuccess, kNoLibrary, kNcclTooOld
/// or kNcclStatus + ncclResult_t. Calls on one communicator are not made at the same time.
struct NcclApi {
  /// Opens the library once per process; later calls return what the first found.
  int (*open)(const char* file, int* version);
  int (*unique_id)(NcclId* id);
  int (*init)(void** comm, int world, const NcclId* id, int rank, const NcclOptions* options);
  /// NCCL writes `made` once all have called; `comm` is in progress until then.
  int (*split)(void* comm, int color, int key, void** made, const NcclOptions* options);
  int (*async_error)(void* comm, int* state);  ///< state: an ncclResult_t
  const char* (*last_error)(void* comm);       ///< NCCL's own words; may be empty
  int (*all_reduce)(const void* from, void* to, std::size_t count, Precision format, NcclSum sum,
                    void* comm, void* stream);
  /// `count` elements per rank, as in all_gather.
  int (*reduce_scatter)(const void* from, void* to, std::size_t count, Precision format,
                        NcclSum sum, void* comm, void* stream);
  int (*all_gather)(const void* from, void* to, std::size_t count, Precision format, void* comm,
                    void* stream);
  int (*broadcast)(void* memory, std::size_t count, Precision format, int root, void* comm,
                   void* stream);
  /// Doubles, in place.
  int (*sum_doubles)(double* values, std::size_t count, void* comm, void* stream);
  int (*group_start)();
  int (*group_end)();
  int (*finalize)(void* comm);
  int (*destroy)(void* comm);
  int (*abort)(void* comm);
};

}  // namespace paceline::cuda
