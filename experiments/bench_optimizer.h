// SPDX-License-Identifier: Apache-2.0
// `paceline bench optimizer`: how near an optimizer's updates come to the memory's bandwidth.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/time.h"
#include "common/core/cuda_module.h"

namespace paceline {

struct OptimizerBenchOptions {
  std::string device = "cuda";  ///< cuda: the first GPU; cpu: one thread
  std::vector<std::string> optimizers{"sgd", "momentum", "adam"};  ///< and nesterov
  std::size_t elements = 100'000'000;                              ///< of the arena, in fp32
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of weights; each bucket is one launch
  int iters = 20;                                    ///< timed steps of an optimizer
  int warmup = 5;                                    ///< untimed ones before them
  std::string json;  ///< file to write the results to as well; empty: none
  Nanoseconds timeout = std::chrono::seconds(30);  ///< of each wait for a GPU
};

/// What the columns count; for --help and the table's head.
inline constexpr const char* kOptimizerBenchLegend =
    "bytes: what a step must read and write, by formula: weights (read, written), gradients (read) "
    "and each moment (read, written), 4 bytes each, so 12 an element for sgd, 20 for momentum and "
    "nesterov, 28 for adam. time: of one step over the whole arena, one launch per bucket; "
    "median.\n"
    "of copy: the step's rate over that of a plain copy within the same memory, measured in the "
    "same run, whose bytes read and written both count; of nominal: over the rate that the card "
    "states.";

/// Prints the table and returns 0. Throws ConfigError for options that make no sense and where
/// `module` is not usable with device=cuda; what Gpu throws.
[[nodiscard]] int bench_optimizer(const CudaModule& module, const OptimizerBenchOptions& options);

}  // namespace paceline
