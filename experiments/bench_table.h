// SPDX-License-Identifier: Apache-2.0
// What the allreduce benchmarks of all transports share: sizes, nccl-tests' columns, JSON rows.
#pragma once

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

/// Of at least one value.
[[nodiscard]] double median(std::vector<double> values);

/// Throws ConfigError where world, sizes or repetitions make no sense.
void check_bench_sizes(const AllreduceBenchOptions& options);
[[nodiscard]] std::vector<std::size_t> bench_sizes(const AllreduceBenchOptions& options);

/// `more`: one more column's name and unit, then its values.
void print_bench_columns(std::string_view more = "", std::string_view unit = "");
void print_bench_row(const AllreduceBenchOptions& options, const AllreduceRow& row,
                     std::string_view more = "");
[[nodiscard]] nlohmann::json bench_row_json(const AllreduceBenchOptions& options,
                                            const AllreduceRow& row);
/// Throws ConfigError naming options.json when it cannot be written.
void write_bench_json(const AllreduceBenchOptions& options, const nlohmann::json& result);

}  // namespace paceline
