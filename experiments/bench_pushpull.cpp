// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_pushpull.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/median.h"
#include "common/comm/communicator.h"
#include "common/config/config.h"
#include "experiments/bench_ranks.h"
#include "experiments/bench_table.h"
#include "ps/ps_backend.h"

namespace paceline {

namespace {

constexpr float kRate = 0x1p-10F;

struct Row {
  std::size_t bytes = 0;  ///< of one key
  double seconds = 0.0;
  double goodput = 0.0;  ///< bytes per second, pushed and pulled
  std::int64_t wrong = 0;
};

void validate(const PushPullOptions& options) {
  require_flag(options.workers >= 1 && options.workers <= 256,
               fmt::format("--workers {}: allowed are 1..256", options.workers));
  require_flag(options.servers >= 1 && options.servers <= 256,
               fmt::format("--servers {}: allowed are 1..256", options.servers));
  require_flag(options.keys >= 1 && options.keys <= 4096,
               fmt::format("--keys {}: allowed are 1..4096", options.keys));
  check_runs(options, sizeof(float));
}

Config make_config(const PushPullOptions& options) {
  Config config;
  config.sync = "ps";
  config.world = options.workers;
  config.ps.servers = options.servers;
  config.ps.transport = options.transport;
  config.comm.host = options.host;
  config.comm.timeout = options.timeout;
  return config;
}

/// Gradient of element j on rank r: depends on the place; sums over few ranks are exact.
float known_gradient(std::size_t j, int r) {
  return static_cast<float>(static_cast<int>((j * 31 + static_cast<std::size_t>(r) * 7) % 61) - 30);
}

/// One worker's side, for one size.
class WorkerBench {
 public:
  WorkerBench(const PushPullOptions& options, std::size_t bytes, Synchronizer& sync, int rank)
      : options_(options),
        plan_(std::vector<std::size_t>(static_cast<std::size_t>(options.keys),
                                       bytes / sizeof(float))),
        sync_(sync) {
    const std::vector<float> zeros(plan_.elements(), 0.0F);
    view_ = sync.bind(plan_, device_, OptimizerSpec{}, zeros);
    for (std::size_t j = 0; j < view_.gradients.size(); ++j) {
      view_.gradients[j] = known_gradient(j, rank);
    }
  }

  /// Median time of a round, in seconds.
  double measure(std::size_t bytes) {
    const int repeat = static_cast<int>(
        std::clamp<std::size_t>((std::size_t{1} << 20) / std::max<std::size_t>(bytes, 1), 1, 50));
    for (int i = 0; i < options_.warmup * repeat; ++i) {
      round();
    }
    std::vector<double> times;
    for (int i = 0; i < options_.iters * repeat; ++i) {
      const std::int64_t begin = now_ns();
      round();
      times.push_back(seconds(now_ns() - begin));
    }
    return median(std::move(times));
  }

  /// Weights that are not what so many equal updates make of zero.
  [[nodiscard]] std::int64_t wrong() const {
    std::int64_t count = 0;
    for (std::size_t j = 0; j < view_.weights.size(); ++j) {
      double mean = 0.0;
      for (int r = 0; r < options_.workers; ++r) {
        mean += static_cast<double>(known_gradient(j, r)) / options_.workers;
      }
      const double expected = -mean * static_cast<double>(kRate) * static_cast<double>(step_);
      const double slack = 1e-5 * std::max(1.0, std::abs(expected));
      count += std::abs(static_cast<double>(view_.weights[j]) - expected) <= slack ? 0 : 1;
    }
    return count;
  }

 private:
  void round() {
    sync_.begin_step({step_++, kRate, 1, options_.workers});
    for (BucketId b = 0; b < plan_.count(); ++b) {
      sync_.gradient_ready(b, event_);
    }
    static_cast<void>(sync_.commit());
    for (BucketId b = 0; b < plan_.count(); ++b) {
      sync_.parameters_needed(b, stream_);
    }
  }

  const PushPullOptions& options_;
  BucketPlan plan_;
  Synchronizer& sync_;
  Device device_;
  Stream stream_;
  Event event_;
  ReplicaView view_;
  std::int64_t step_ = 0;
};

void print_header(const PushPullOptions& options) {
  fmt::print(
      "# paceline bench pushpull: {} worker(s), {} server(s), {} key(s) in flight, "
      "transport {}, median of {} or more\n",
      options.workers, options.servers, options.keys, options.transport, options.iters);
  std::string legend = kPushPullLegend;
  for (std::size_t at = legend.find('\n'); at != std::string::npos;
       at = legend.find('\n', at + 3)) {
    legend.insert(at + 1, "# ");
  }
  fmt::print("# {}\n", legend);
  fmt::print("#{:>12} {:>12} {:>6} {:>11} {:>9} {:>9} {:>7}\n", "size", "count", "keys", "time",
             "goodput", "one-way", "#wrong");
  fmt::print("#{:>12} {:>12} {:>6} {:>11} {:>9} {:>9} {:>7}\n", "(B)", "(elements)", "", "(us)",
             "(GB/s)", "(GB/s)", "");
}

void print_row(const PushPullOptions& options, const Row& row) {
  fmt::print(" {:>12} {:>12} {:>6} {:>11.1f} {:>9.3f} {:>9.3f} {:>7}\n", row.bytes,
             row.bytes / sizeof(float), options.keys, row.seconds * 1e6, row.goodput * 1e-9,
             row.goodput * 0.5e-9, row.wrong);
  std::fflush(stdout);
}

void write_json(const PushPullOptions& options, const std::vector<Row>& rows) {
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    results.push_back({{"size", row.bytes},
                       {"count", row.bytes / sizeof(float)},
                       {"keys", options.keys},
                       {"time_us", row.seconds * 1e6},
                       {"goodput_gbps", row.goodput * 1e-9},
                       {"one_way_gbps", row.goodput * 0.5e-9},
                       {"wrong", row.wrong}});
  }
  write_bench_json(options.json, {{"operation", "pushpull"},
                                  {"workers", options.workers},
                                  {"servers", options.servers},
                                  {"transport", options.transport},
                                  {"iters", options.iters},
                                  {"results", results}});
}

/// One size on one member; collective.
Row bench_size(const PushPullOptions& options, std::size_t bytes, Communicator& everyone,
               AbortToken& abort) {
  const Config config = make_config(options);
  const Topology topology(options.workers, 0, options.servers);
  const Backend backend = ps_backend();
  std::array<double, 2> mine{0.0, 0.0};
  if (everyone.rank() >= options.workers) {
    backend.serve({everyone.rank() - options.workers, config, topology, everyone, nullptr, abort});
  } else {
    // Rounds keep the workers in step; nothing here needs a group of the workers alone.
    const auto alone = make_thread_communicators(1, options.timeout.count(), abort);
    const auto sync =
        backend.make({everyone.rank(), config, topology, *alone[0], everyone, nullptr, abort});
    WorkerBench bench(options, bytes, *sync, everyone.rank());
    mine[0] = bench.measure(bytes);
    mine[1] = static_cast<double>(bench.wrong());
  }
  Row row;
  row.bytes = bytes;
  row.wrong = static_cast<std::int64_t>(everyone.sum(mine)[1]);
  row.seconds = everyone.max(mine)[0];
  row.goodput = 2.0 * static_cast<double>(bytes) * options.keys * options.workers / row.seconds;
  return row;
}

void bench_member(const PushPullOptions& options, Communicator& everyone, AbortToken& abort) {
  const bool root = everyone.rank() == 0;
  if (root) {
    print_header(options);
  }
  std::vector<Row> rows;
  std::int64_t wrong = 0;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    rows.push_back(bench_size(options, bytes / sizeof(float) * sizeof(float), everyone, abort));
    wrong += rows.back().wrong;
    if (root) {
      print_row(options, rows.back());
    }
  }
  if (root && !options.json.empty()) {
    write_json(options, rows);
  }
  everyone.barrier();
  if (wrong > 0) {
    throw Error(fmt::format("{} weights are wrong", wrong));
  }
}

}  // namespace

int bench_pushpull(const PushPullOptions& options) {
  validate(options);
  ps_backend().validate(make_config(options));
  return run_process_ranks(
      options.workers + options.servers, options.timeout,
      [&](Communicator& everyone, AbortToken& abort) { bench_member(options, everyone, abort); });
}

}  // namespace paceline
