// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_allreduce.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/comm/communicator.h"
#include "common/comm/transport.h"
#include "experiments/bench_ranks.h"
#include "ring/collective.h"

namespace paceline {

namespace {

struct Row {
  std::size_t bytes = 0;
  std::size_t count = 0;
  double seconds = 0.0;
  double algbw = 0.0;  ///< bytes per second
  double busbw = 0.0;
  std::int64_t wrong = 0;
  std::string algorithm;
};

void validate(const AllreduceBenchOptions& options) {
  const auto require = [](bool good, const std::string& problem) {
    if (!good) {
      throw ConfigError(problem);
    }
  };
  require(options.world >= 1 && options.world <= 256,
          fmt::format("--world {}: allowed are 1..256", options.world));
  require(options.factor >= 2, fmt::format("--factor {}: allowed: 2 or more", options.factor));
  require(options.iters >= 1, fmt::format("--iters {}: allowed: 1 or more", options.iters));
  require(options.warmup >= 0, fmt::format("--warmup {}: allowed: 0 or more", options.warmup));
  require(options.min_bytes >= 1 && options.min_bytes <= options.max_bytes,
          fmt::format("--min {} --max {}: allowed: 1 <= min <= max", options.min_bytes,
                      options.max_bytes));
  require(options.type == "f32" || options.type == "i64",
          fmt::format("--type {}: allowed are f32 | i64", options.type));
  if (options.algorithm != "auto") {
    static_cast<void>(parse_algorithm(options.algorithm));
  }
  static_cast<void>(parse_link("--link-inter", options.link_inter));
  static_cast<void>(parse_link("--link-intra", options.link_intra));
}

std::vector<std::size_t> sizes_of(const AllreduceBenchOptions& options) {
  std::vector<std::size_t> sizes = options.sizes;
  for (std::size_t bytes = options.min_bytes; options.sizes.empty() && bytes <= options.max_bytes;
       bytes *= options.factor) {
    sizes.push_back(bytes);
  }
  return sizes;
}

/// One rank's side of the benchmark.
class RankBench {
 public:
  RankBench(const AllreduceBenchOptions& options, Communicator& workers, AbortToken& abort)
      : options_(options),
        workers_(workers),
        topology_(options.world, options.ranks_per_node, 0),
        type_(options.type == "i64" ? DataType::i64 : DataType::f32) {
    const LinkSpec inter = parse_link("--link-inter", options.link_inter);
    const LinkSpec intra = parse_link("--link-intra", options.link_intra);
    if (inter.shaped() || intra.shaped()) {
      fabric_ = NicFabric::join(workers, topology_.nodes(), inter, intra);
    }
    TransportOptions transport;
    transport.kind = options.transport;
    transport.host = options.host;
    transport.tcp_connections = options.tcp_connections;
    transport.timeout = options.timeout;
    transport_ = make_transport(transport, workers, topology_, fabric_.get(), abort);
    CollectiveOptions collective;
    if (options.algorithm != "auto") {
      collective.algorithm = parse_algorithm(options.algorithm);
    }
    collective.chunk = options.chunk;
    collective.timeout = options.timeout;
    picks_ = collective;
    collective_ = std::make_unique<Collective>(*transport_, topology_, collective);
    CollectiveOptions barrier;
    barrier.timeout = options.timeout;
    barrier_ = std::make_unique<Collective>(*transport_, topology_, barrier);
    const std::vector<std::size_t> sizes = sizes_of(options);
    memory_ = transport_->allocate(*std::max_element(sizes.begin(), sizes.end()) + size_of(type_));
    barrier_memory_ = transport_->allocate(sizeof(float));
  }

  [[nodiscard]] std::string transport_name() const { return transport_->name(); }

  Row measure(std::size_t bytes) {
    Row row;
    row.count = std::max<std::size_t>(1, bytes / size_of(type_));
    row.bytes = row.count * size_of(type_);
    const std::span<std::byte> data = memory_->bytes().first(row.bytes);
    const int repeat =
        static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 20) / row.bytes, 1, 50));
    std::fill(data.begin(), data.end(), std::byte{0});
    for (int i = 0; i < options_.warmup * repeat; ++i) {
      collective_->allreduce(data, type_);
    }
    std::vector<double> times;
    for (int i = 0; i < options_.iters * repeat; ++i) {
      barrier_->allreduce(barrier_memory_->bytes().first(sizeof(float)), DataType::f32);
      const std::int64_t begin = now_ns();
      collective_->allreduce(data, type_);
      times.push_back(seconds(now_ns() - begin));
    }
    times = workers_.max(times);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    row.seconds = times[times.size() / 2];
    row.algbw = static_cast<double>(row.bytes) / row.seconds;
    row.busbw = row.algbw * 2.0 * (options_.world - 1) / options_.world;
    row.wrong = check(data);
    row.algorithm = algorithm_name(pick_algorithm(picks_, options_.world, row.bytes));
    return row;
  }

 private:
  /// Elements of one run's result that are wrong, on all ranks together.
  std::int64_t check(std::span<std::byte> data) {
    const double wrong[] = {type_ == DataType::f32 ? check_as<float>(data)
                                                   : check_as<std::int64_t>(data)};
    return static_cast<std::int64_t>(workers_.sum(wrong)[0]);
  }

  /// Element j on rank r is j·3 + r, small enough for exact sums.
  template <typename T>
  double check_as(std::span<std::byte> data) {
    const std::span<T> values{reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
    const auto world = static_cast<std::size_t>(options_.world);
    const auto place = [](std::size_t j) { return (j % 16'381) * 3; };
    for (std::size_t j = 0; j < values.size(); ++j) {
      values[j] = static_cast<T>(place(j) + static_cast<std::size_t>(workers_.rank()));
    }
    collective_->allreduce(data, type_);
    double wrong = 0.0;
    for (std::size_t j = 0; j < values.size(); ++j) {
      const std::size_t expected = world * place(j) + world * (world - 1) / 2;
      wrong += values[j] == static_cast<T>(expected) ? 0.0 : 1.0;
    }
    return wrong;
  }

  const AllreduceBenchOptions& options_;
  Communicator& workers_;
  Topology topology_;
  DataType type_;
  CollectiveOptions picks_;
  std::unique_ptr<NicFabric> fabric_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Collective> collective_;
  std::unique_ptr<Collective> barrier_;
  std::unique_ptr<CommBuffer> memory_;
  std::unique_ptr<CommBuffer> barrier_memory_;
};

void print_header(const AllreduceBenchOptions& options, const std::string& transport) {
  fmt::print("# paceline bench allreduce: world {}, transport {}, in place, median of {} or more\n",
             options.world, transport, options.iters);
  fmt::print("#{:>12} {:>12} {:>6} {:>6} {:>17} {:>11} {:>8} {:>8} {:>7}\n", "size", "count",
             "type", "redop", "algorithm", "time", "algbw", "busbw", "#wrong");
  fmt::print("#{:>12} {:>12} {:>6} {:>6} {:>17} {:>11} {:>8} {:>8} {:>7}\n", "(B)", "(elements)",
             "", "", "", "(us)", "(GB/s)", "(GB/s)", "");
}

void print_row(const AllreduceBenchOptions& options, const Row& row) {
  fmt::print(" {:>12} {:>12} {:>6} {:>6} {:>17} {:>11.1f} {:>8.3f} {:>8.3f} {:>7}\n", row.bytes,
             row.count, options.type, "sum", row.algorithm, row.seconds * 1e6, row.algbw * 1e-9,
             row.busbw * 1e-9, row.wrong);
  std::fflush(stdout);
}

void write_json(const AllreduceBenchOptions& options, const std::string& transport,
                const std::vector<Row>& rows) {
  nlohmann::json results = nlohmann::json::array();
  for (const Row& row : rows) {
    results.push_back({{"size", row.bytes},
                       {"count", row.count},
                       {"type", options.type},
                       {"redop", "sum"},
                       {"algorithm", row.algorithm},
                       {"time_us", row.seconds * 1e6},
                       {"algbw_gbps", row.algbw * 1e-9},
                       {"busbw_gbps", row.busbw * 1e-9},
                       {"wrong", row.wrong}});
  }
  std::ofstream file(options.json);
  file << nlohmann::json{{"collective", "allreduce"},
                         {"world", options.world},
                         {"transport", transport},
                         {"link_inter", options.link_inter},
                         {"link_intra", options.link_intra},
                         {"iters", options.iters},
                         {"results", results}}
              .dump(2)
       << '\n';
  if (!file.flush()) {
    throw ConfigError(fmt::format("--json {}: cannot be written", options.json));
  }
}

/// Where each rank can have a processor of its own it gets one, as mpirun does by default: else the
/// scheduler may leave two on one for the length of a short benchmark.
void bind_to_processor(int rank, int world) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < world) {
    return;
  }
  int index = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && index++ == rank) {
      cpu_set_t own;
      CPU_ZERO(&own);
      CPU_SET(cpu, &own);
      sched_setaffinity(0, sizeof(own), &own);
    }
  }
}

void bench_rank(const AllreduceBenchOptions& options, Communicator& workers, AbortToken& abort) {
  RankBench bench(options, workers, abort);
  const bool root = workers.rank() == 0;
  if (root) {
    print_header(options, bench.transport_name());
  }
  bind_to_processor(workers.rank(), options.world);  // after the transport saw all processors
  std::vector<Row> rows;
  std::int64_t wrong = 0;
  for (const std::size_t bytes : sizes_of(options)) {
    rows.push_back(bench.measure(bytes));
    wrong += rows.back().wrong;
    if (root) {
      print_row(options, rows.back());
    }
  }
  if (root && !options.json.empty()) {
    write_json(options, bench.transport_name(), rows);
  }
  workers.barrier();
  if (wrong > 0) {
    throw Error(fmt::format("{} elements of the results are wrong", wrong));
  }
}

}  // namespace

int bench_allreduce(const AllreduceBenchOptions& options) {
  validate(options);
  const auto body = [&](Communicator& workers, AbortToken& abort) {
    bench_rank(options, workers, abort);
  };
  return options.transport == "inproc" ? run_thread_ranks(options.world, options.timeout, body)
                                       : run_process_ranks(options.world, options.timeout, body);
}

}  // namespace paceline
