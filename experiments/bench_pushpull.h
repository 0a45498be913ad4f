// SPDX-License-Identifier: Apache-2.0
// `paceline bench pushpull`: nccl-tests' table for push + pull through the parameter server.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/time.h"

namespace paceline {

struct PushPullOptions {
  std::size_t min_bytes = 4 * 1024;
  std::size_t max_bytes = std::size_t{16} << 20;
  std::size_t factor = 4;  ///< each size is the one before times this, 2 or more
  int iters = 20;          ///< timed rounds of a size; sizes under 1 MiB get up to 50 times as many
  int warmup = 5;          ///< likewise, before them
  int workers = 1;
  int servers = 1;
  int keys = 1;                    ///< buckets of `size` bytes in flight at a time
  std::string transport = "auto";  ///< auto | tcp | ipc
  std::string host = "127.0.0.1";
  std::string json;  ///< file to write the results to as well; empty: none
  Nanoseconds timeout = std::chrono::seconds(30);
};

/// What the columns count; for --help and the table's head.
inline constexpr const char* kPushPullLegend =
    "time: one round, in which every worker pushes `keys` gradients of `size` bytes at once, the "
    "server sums them and updates its weights (SGD), and the worker holds the new weights; median "
    "of the rounds, slowest worker.\n"
    "goodput: payload pushed plus payload pulled by all workers / time. one-way: payload pushed "
    "by all workers / time, which is what ps-lite's test_benchmark prints for PUSH_PULL. No "
    "headers are counted.";

/// Runs workers and servers as processes and prints the table; every weight is checked after each
/// size. Returns 0, or 1 when a result was wrong or a process failed. Throws ConfigError for
/// options that make no sense. Call it before the process has a second thread: it forks.
[[nodiscard]] int bench_pushpull(const PushPullOptions& options);

}  // namespace paceline
