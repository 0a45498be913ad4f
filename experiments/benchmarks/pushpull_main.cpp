// SPDX-License-Identifier: Apache-2.0
// `paceline bench pushpull` as a program of its own, for the benchmarks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/base/error.h"
#include "experiments/bench_pushpull.h"

int main(int argc, char** argv) {
  paceline::PushPullOptions options;
  CLI::App program(paceline::kPushPullLegend);
  program.add_option("--min", options.min_bytes, "smallest size in bytes");
  program.add_option("--max", options.max_bytes, "largest size in bytes");
  program.add_option("--factor", options.factor, "each size is the one before times this");
  program.add_option("--iters", options.iters, "timed rounds of a size");
  program.add_option("--warmup", options.warmup, "rounds before them");
  program.add_option("--workers", options.workers, "worker processes");
  program.add_option("--servers", options.servers, "server processes");
  program.add_option("--keys", options.keys, "keys in flight");
  program.add_option("--transport", options.transport, "auto | tcp | ipc");
  program.add_option("--host", options.host, "address to listen on");
  program.add_option("--json", options.json, "file for the results");
  CLI11_PARSE(program, argc, argv);
  try {
    return paceline::bench_pushpull(options);
  } catch (const paceline::ConfigError& error) {
    fmt::print(stderr, "paceline: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "paceline: {}\n", error.what());
    return 1;
  }
}
