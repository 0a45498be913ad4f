// SPDX-License-Identifier: Apache-2.0
// bench_allreduce as a program of its own: `paceline_allreduce KEY=VALUE...`, keys as the fields of
// AllreduceBenchOptions.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

#include "common/base/error.h"
#include "experiments/bench_allreduce.h"

int main(int argc, char** argv) {
  paceline::AllreduceBenchOptions options;
  try {
    for (int i = 1; i < argc; ++i) {
      const std::string text = argv[i];
      const std::size_t equals = text.find('=');
      const std::string key = text.substr(0, equals);
      const std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
      if (key == "min") {
        options.min_bytes = std::stoull(value);
      } else if (key == "max") {
        options.max_bytes = std::stoull(value);
      } else if (key == "factor") {
        options.factor = std::stoull(value);
      } else if (key == "sizes") {
        std::istringstream list(value);
        for (std::string size; std::getline(list, size, ',');) {
          options.sizes.push_back(std::stoull(size));
        }
      } else if (key == "iters") {
        options.iters = std::stoi(value);
        options.warmup = std::max(1, options.iters / 4);
      } else if (key == "world") {
        options.world = std::stoi(value);
      } else if (key == "chunk") {
        options.chunk = std::stoull(value);
      } else if (key == "transport") {
        options.transport = value;
      } else if (key == "algorithm") {
        options.algorithm = value;
      } else if (key == "type") {
        options.type = value;
      } else if (key == "connections") {
        options.tcp_connections = std::stoi(value);
      } else if (key == "ranks_per_node") {
        options.ranks_per_node = std::stoi(value);
      } else if (key == "inter") {
        options.link_inter = value;
      } else if (key == "json") {
        options.json = value;
      } else {
        throw paceline::ConfigError(fmt::format("{}: no such key", key));
      }
    }
    return paceline::bench_allreduce(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "paceline_allreduce: {}\n", error.what());
    return 2;
  }
}
