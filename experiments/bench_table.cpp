// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_table.h"

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/base/error.h"

namespace paceline {

double bus_bandwidth(double algbw, int world) noexcept {
  return algbw * 2.0 * (world - 1) / world;
}

void require_flag(bool good, const std::string& problem) {
  if (!good) {
    throw ConfigError(problem);
  }
}

void check_bench_sizes(const AllreduceBenchOptions& options) {
  require_flag(options.world >= 1 && options.world <= 256,
               fmt::format("--world {}: allowed are 1..256", options.world));
  check_runs(options, 1);
}

std::vector<std::size_t> bench_sizes(const AllreduceBenchOptions& options) {
  std::vector<std::size_t> sizes = options.sizes;
  for (std::size_t bytes = options.min_bytes; options.sizes.empty() && bytes <= options.max_bytes;
       bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

void print_bench_columns(std::string_view more, std::string_view unit) {
  fmt::print("#{:>12} {:>12} {:>6} {:>6} {:>17} {:>11} {:>8} {:>8} {:>7}{}\n", "size", "count",
             "type", "redop", "algorithm", "time", "algbw", "busbw", "#wrong", more);
  fmt::print("#{:>12} {:>12} {:>6} {:>6} {:>17} {:>11} {:>8} {:>8} {:>7}{}\n", "(B)", "(elements)",
             "", "", "", "(us)", "(GB/s)", "(GB/s)", "", unit);
}

void print_bench_row(const AllreduceBenchOptions& options, const AllreduceRow& row,
                     std::string_view more) {
  fmt::print(" {:>12} {:>12} {:>6} {:>6} {:>17} {:>11.1f} {:>8.3f} {:>8.3f} {:>7}{}\n", row.bytes,
             row.count, options.type, "sum", row.algorithm, row.seconds * 1e6, row.algbw * 1e-9,
             row.busbw * 1e-9, row.wrong, more);
  std::fflush(stdout);
}

nlohmann::json bench_row_json(const AllreduceBenchOptions& options, const AllreduceRow& row) {
  return {{"size", row.bytes},
          {"count", row.count},
          {"type", options.type},
          {"redop", "sum"},
          {"algorithm", row.algorithm},
          {"time_us", row.seconds * 1e6},
          {"algbw_gbps", row.algbw * 1e-9},
          {"busbw_gbps", row.busbw * 1e-9},
          {"wrong", row.wrong}};
}

void write_bench_json(const std::string& path, const nlohmann::json& result) {
  std::ofstream file(path);
  file << result.dump(2) << '\n';
  if (!file.flush()) {
    throw ConfigError(fmt::format("--json {}: cannot be written", path));
  }
}

}  // namespace paceline
