// SPDX-License-Identifier: Apache-2.0
// `paceline bench allreduce`: nccl-tests' table for our collectives, over any transport.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/time.h"

namespace paceline {

struct AllreduceBenchOptions {
  std::size_t min_bytes = 4 * 1024;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::size_t factor = 4;          ///< each size is the one before times this, 2 or more
  std::vector<std::size_t> sizes;  ///< if not empty: exactly these instead
  int iters = 20;  ///< timed runs of a size; sizes under 1 MiB get up to 50 times as many
  int warmup = 5;  ///< likewise, before them
  int world = 2;
  std::string transport = "auto";   ///< auto | inproc | shm | tcp; nccl: see bench_nccl.h
  std::string algorithm = "auto";   ///< auto, or a name that parse_algorithm takes
  std::string type = "f32";         ///< f32 | i64; nccl: f32 | f16 | bf16
  std::size_t chunk = 0;            ///< bytes per message at most; 0: picked by size
  int ranks_per_node = 0;           ///< 0: all ranks on one node
  std::string link_inter = "none";  ///< emulated link between nodes, "1gbit,50us"
  std::string link_intra = "none";  ///< and within one
  std::string host = "127.0.0.1";
  int tcp_connections = 1;
  std::string json;  ///< file to write the results to as well; empty: none
  Nanoseconds timeout = std::chrono::seconds(30);
};

/// Runs the ranks as processes (threads with transport inproc), each bound to a processor of its
/// own where there are enough, and prints the table: each size is summed in place, timed `iters`
/// times with a barrier before each, the slowest rank's time counts and the median over runs is
/// shown; every element of one more run is checked. Returns 0, or 1 when a result was wrong or a
/// rank failed. Throws ConfigError for options that make no sense. Call it before the process has a
/// second thread: it forks.
[[nodiscard]] int bench_allreduce(const AllreduceBenchOptions& options);

}  // namespace paceline
