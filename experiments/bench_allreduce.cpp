// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_allreduce.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "common/base/cores.h"
#include "common/base/error.h"
#include "common/base/median.h"
#include "common/comm/communicator.h"
#include "common/comm/transport.h"
#include "experiments/bench_ranks.h"
#include "experiments/bench_table.h"
#include "ring/collective.h"

namespace paceline {

namespace {

void validate(const AllreduceBenchOptions& options) {
  check_bench_sizes(options);
  if (options.type != "f32" && options.type != "i64") {
    throw ConfigError(
        fmt::format("--type {}: allowed are f32 | i64 (and f16 | bf16 with "
                    "--transport=nccl)",
                    options.type));
  }
  if (options.algorithm != "auto") {
    static_cast<void>(parse_algorithm(options.algorithm));
  }
  static_cast<void>(parse_link("--link-inter", options.link_inter));
  static_cast<void>(parse_link("--link-intra", options.link_intra));
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
    const std::vector<std::size_t> sizes = bench_sizes(options);
    memory_ = transport_->allocate(*std::max_element(sizes.begin(), sizes.end()) + size_of(type_));
    barrier_memory_ = transport_->allocate(sizeof(float));
  }

  [[nodiscard]] std::string transport_name() const { return transport_->name(); }

  AllreduceRow measure(std::size_t bytes) {
    AllreduceRow row;
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
    row.seconds = median(workers_.max(times));
    row.algbw = static_cast<double>(row.bytes) / row.seconds;
    row.busbw = bus_bandwidth(row.algbw, options_.world);
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
  print_bench_columns();
}

void write_json(const AllreduceBenchOptions& options, const std::string& transport,
                const std::vector<AllreduceRow>& rows) {
  nlohmann::json results = nlohmann::json::array();
  for (const AllreduceRow& row : rows) {
    results.push_back(bench_row_json(options, row));
  }
  write_bench_json(options.json, {{"collective", "allreduce"},
                                  {"world", options.world},
                                  {"transport", transport},
                                  {"link_inter", options.link_inter},
                                  {"link_intra", options.link_intra},
                                  {"iters", options.iters},
                                  {"results", results}});
}

/// Where each rank can have a processor of its own it gets one, as mpirun does by default: else the
/// scheduler may leave two on one for the length of a short benchmark.
void bind_to_processor(int rank, int world) {
  const std::vector<int> allowed = usable_processors();
  if (static_cast<int>(allowed.size()) < world) {
    return;
  }
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(allowed[static_cast<std::size_t>(rank)], &own);
  sched_setaffinity(0, sizeof(own), &own);
}

void bench_rank(const AllreduceBenchOptions& options, Communicator& workers, AbortToken& abort) {
  RankBench bench(options, workers, abort);
  const bool root = workers.rank() == 0;
  if (root) {
    print_header(options, bench.transport_name());
  }
  bind_to_processor(workers.rank(), options.world);  // after the transport saw all processors
  std::vector<AllreduceRow> rows;
  std::int64_t wrong = 0;
  for (const std::size_t bytes : bench_sizes(options)) {
    rows.push_back(bench.measure(bytes));
    wrong += rows.back().wrong;
    if (root) {
      print_bench_row(options, rows.back());
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
