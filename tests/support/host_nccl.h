// SPDX-License-Identifier: Apache-2.0
// NCCL's double: communicators between threads of one process, whose collectives are queued on the
// streams of host_stream.h and meet there. Sums are added in rank order in fp32 and rounded once to
// the format. As with NCCL, a collective that not all ranks join, or whose counts differ, never
// ends until it is aborted, and an abort does not come back before all collectives of its rank have
// ended, those of other communicators too; from 2.22 on, aborts in a group wait together. No result
// of it is a GPU's.
#pragma once

#include <cstdint>
#include <optional>

#include "common/core/cuda/nccl_abi.h"

namespace paceline::test {

[[nodiscard]] cuda::NcclApi host_nccl();

enum class NcclFaultKind : std::uint8_t {
  error,        ///< the call returns `result`
  async_error,  ///< the collective never ends, and async_error() then says `result`
  hang,         ///< the collective never ends
};

/// Strikes at the collective that rank `rank` of the job begins after `after` others, on all its
/// communicators together.
struct NcclFault {
  NcclFaultKind kind = NcclFaultKind::error;
  int rank = 0;
  int after = 0;
  int result = 2;  ///< an ncclResult_t
};

/// For all communicators made from here on.
void set_nccl_fault(std::optional<NcclFault> fault);
/// What open() finds, by default 22809 (2.28.9); 0: nothing.
void set_nccl_version(int version);
/// Whether aborts come back once they have ended what they had to, as by default.
void let_nccl_aborts_end(bool end);
/// Communicators that were made and neither destroyed nor aborted.
[[nodiscard]] int live_nccl_communicators();
/// Sums of doubles that all ranks joined since the process began.
[[nodiscard]] std::int64_t host_nccl_double_sums();

}  // namespace paceline::test
