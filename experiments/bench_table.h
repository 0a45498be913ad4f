// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: checks of flags and the JSON file; and those of allreduce on all
// transports: sizes, nccl-tests' columns, JSON rows.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "experiments/bench_allreduce.h"

namespace paceline {

struct AllreduceRow {
  std::size_t bytes = 0;
  std::size_t count = 0;
  double seconds = 0.0;
  double algbw = 0.0;  ///< bytes per second
  double busbw = 0.0;
  std::int64_t wrong = 0;  ///< elements, on all ranks together
  std::string algorithm;
};

/// algbw · 2(N − 1)/N, as nccl-tests defines it: what a link carries of the best possible
/// algorithm's traffic. 0 for one rank.
[[nodiscard]] double bus_bandwidth(double algbw, int world) noexcept;

/// Throws ConfigError with `problem` unless `good`.
void require_flag(bool good, const std::string& problem);

/// Of sizes and repetitions, which all benchmarks' options have.
template <typename Options>
void check_runs(const Options& options, std::size_t smallest) {
  require_flag(options.factor >= 2, fmt::format("--factor {}: allowed: 2 or more", options.factor));
  require_flag(options.iters >= 1, fmt::format("--iters {}: allowed: 1 or more", options.iters));
  require_flag(options.warmup >= 0, fmt::format("--warmup {}: allowed: 0 or more", options.warmup));
  require_flag(options.min_bytes >= smallest && options.min_bytes <= options.max_bytes,
               fmt::format("--min {} --max {}: allowed: {} <= min <= max", options.min_bytes,
                           options.max_bytes, smallest));
}

/// Throws ConfigError where world, sizes or repetitions make no sense.
void check_bench_sizes(const AllreduceBenchOptions& options);
[[nodiscard]] std::vector<std::size_t> bench_sizes(const AllreduceBenchOptions& options);

/// `more`: one more column's name and unit, then its values.
void print_bench_columns(std::string_view more = "", std::string_view unit = "");
void print_bench_row(const AllreduceBenchOptions& options, const AllreduceRow& row,
                     std::string_view more = "");
[[nodiscard]] nlohmann::json bench_row_json(const AllreduceBenchOptions& options,
                                            const AllreduceRow& row);
/// Throws ConfigError naming --json and `path` when it cannot be written.
void write_bench_json(const std::string& path, const nlohmann::json& result);

}  // namespace paceline
