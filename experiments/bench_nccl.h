// SPDX-License-Identifier: Apache-2.0
// `paceline bench allreduce --transport=nccl`: NCCL between GPUs, beside plain copies.
#pragma once

#include "common/base/abort.h"
#include "common/comm/communicator.h"
#include "common/core/cuda_module.h"
#include "experiments/bench_allreduce.h"
#include "experiments/copy_rates.h"

namespace paceline {

/// Runs the ranks as processes, rank r on GPU r, after measuring the GPUs' copies in a process of
/// its own. Returns 0, or 1 when a result was wrong or a rank failed. Throws ConfigError for
/// options that make no sense, without a usable GPU or NCCL, and where the world exceeds the GPUs.
/// Call it before the process has a second thread: it forks, and does not open CUDA itself.
[[nodiscard]] int bench_nccl(const AllreduceBenchOptions& options);

/// Throws ConfigError for options that NCCL does not have.
void check_nccl_bench(const AllreduceBenchOptions& options);

/// Copies of `bytes` between the first `options.world` GPUs. Throws ConfigError where these cannot
/// be used with NCCL.
[[nodiscard]] CopyRates nccl_ceiling(const CudaModule& module, const AllreduceBenchOptions& options,
                                     std::size_t bytes);

/// One rank's side; collective over `workers`. Rank 0 prints the table and writes the JSON: sums
/// are out of place (in place NCCL has nothing to do at one rank), each timed by events on the
/// communication stream behind one that is not timed, which lines the ranks up; the slowest rank's
/// time counts, and the median over repetitions is shown. Every element of one more sum is checked
/// on the host. The share of the ceiling is busbw over the slowest copy between two GPUs; at one
/// rank, where busbw is 0, algbw over the copy within the GPU. Throws Error when results are wrong,
/// what NcclCommunicators throws, and TimeoutError when a sum takes longer than options.timeout.
void bench_nccl_rank(const CudaModule& module, const AllreduceBenchOptions& options,
                     const CopyRates& copies, Communicator& workers, AbortToken& abort);

}  // namespace paceline
