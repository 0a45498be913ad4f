// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/base/median.h"
#include "experiments/bench_ranks.h"
#include "experiments/bench_table.h"
#include "experiments/sum_pattern.h"
#include "ring/nccl_backend.h"
#include "ring/nccl_communicator.h"

namespace paceline {

namespace {

constexpr std::size_t kCopyBytes = std::size_t{256} << 20;  ///< far more than a GPU's caches hold
constexpr std::chrono::microseconds kBenchPoll{50};

Precision format_of(const std::string& type) {
  return type == "f16" ? Precision::fp16 : type == "bf16" ? Precision::bf16 : Precision::fp32;
}

NcclUser bench_user() {
  return {"--transport=nccl", "--transport=auto"};
}

/// One rank's GPU and communicator.
class NcclBench {
 public:
  NcclBench(const CudaModule& module, const AllreduceBenchOptions& options, Communicator& workers,
            AbortToken& abort)
      : options_(options),
        workers_(workers),
        format_(format_of(options.type)),
        pattern_(format_, options.world),
        gpu_(module, {.index = workers.rank(), .timeout = 2 * options.timeout, .abort = &abort}),
        stream_(gpu_, "of NCCL", true),
        begin_(gpu_, true),
        end_(gpu_, true),
        version_(open_nccl(module)) {
    check_own_gpu(bench_user(), gpu_, workers);
    const std::size_t bytes = largest();
    from_ = GpuMemory(gpu_, bytes, "a rank's part of the sum");
    to_ = GpuMemory(gpu_, bytes, "the sum");
    const std::vector<std::byte> part =
        pattern_.part(workers.rank(), bytes / pattern_.element_bytes());
    gpu_.check(gpu_.api().copy_to_device(from_.as(), part.data(), part.size(), stream_.native()),
               "copying to the device");
    stream_.synchronize("the end of a copy");
    comms_.emplace(gpu_, workers, NcclOptions{{0, 0}, options.timeout}, abort);
  }

  ~NcclBench() {
    if (gpu_.api().query_stream(stream_.native()) != cuda::kSuccess && comms_) {
      comms_->give_up();
    }
    comms_.reset();
    stream_.drain();  // nothing may run on memory that is freed
  }
  NcclBench(const NcclBench&) = delete;
  NcclBench& operator=(const NcclBench&) = delete;

  [[nodiscard]] const std::string& version() const noexcept { return version_; }

  AllreduceRow measure(std::size_t bytes) {
    AllreduceRow row;
    row.count = std::max<std::size_t>(1, bytes / pattern_.element_bytes());
    row.bytes = row.count * pattern_.element_bytes();
    row.algorithm = "nccl";
    for (int i = 0; i < options_.warmup; ++i) {
      static_cast<void>(timed(row));
    }
    std::vector<double> times;
    for (int i = 0; i < options_.iters; ++i) {
      times.push_back(timed(row));
    }
    row.seconds = median(workers_.max(times));
    row.algbw = static_cast<double>(row.bytes) / row.seconds;
    row.busbw = bus_bandwidth(row.algbw, options_.world);
    row.wrong = check(row);
    return row;
  }

 private:
  [[nodiscard]] std::size_t largest() const {
    const std::size_t size = pattern_.element_bytes();
    return std::max(size, std::ranges::max(bench_sizes(options_)) / size * size);
  }

  void sum(const AllreduceRow& row) {
    comms_->all_reduce(NcclCommunicators::kWorld, from_.as(), to_.as(), row.count, format_,
                       stream_);
  }

  /// Device seconds of a sum, of several in a row where they are small. They are queued while the
  /// first, untimed one is under way.
  double timed(const AllreduceRow& row) {
    constexpr std::size_t kRowBytes = std::size_t{16} << 20;
    const auto sums = static_cast<int>(std::clamp<std::size_t>(kRowBytes / row.bytes, 1, 50));
    sum(row);
    stream_.record(begin_);
    for (int i = 0; i < sums; ++i) {
      sum(row);
    }
    finish(row);
    return end_.seconds_since(begin_) / sums;
  }

  void finish(const AllreduceRow& row) {
    stream_.record(end_);
    const Deadline deadline = Deadline::after(options_.timeout);
    while (!end_.reached()) {
      comms_->watch("summing");
      comms_->check();
      if (deadline.passed()) {
        comms_->fail(std::make_exception_ptr(TimeoutError(
            fmt::format("rank {} waited more than {:.1f} s for the other ranks in NCCL's allreduce "
                        "of {} bytes",
                        workers_.rank(), seconds(options_.timeout.count()), row.bytes))));
      }
      std::this_thread::sleep_for(kBenchPoll);
    }
    comms_->watch("summing");
    comms_->check();
  }

  /// Elements of one more sum that are wrong, on all ranks together.
  std::int64_t check(const AllreduceRow& row) {
    constexpr int kNotANumber = 0xFF;  // in every format
    gpu_.check(gpu_.api().fill(to_.as(), kNotANumber, row.bytes, stream_.native()),
               "filling memory");
    sum(row);
    finish(row);
    std::vector<std::byte> found(row.bytes);
    gpu_.check(gpu_.api().copy_to_host(found.data(), to_.as(), found.size(), stream_.native()),
               "copying to the host");
    stream_.synchronize("the end of a copy to the host");
    const double wrong[] = {static_cast<double>(pattern_.wrong(found))};
    return static_cast<std::int64_t>(workers_.sum(wrong)[0]);
  }

  const AllreduceBenchOptions& options_;
  Communicator& workers_;
  Precision format_;
  SumPattern pattern_;
  Gpu gpu_;
  GpuStream stream_;
  GpuMemory from_;
  GpuMemory to_;
  GpuEvent begin_;
  GpuEvent end_;
  std::string version_;  ///< NCCL's
  std::optional<NcclCommunicators> comms_;
};

/// The copies that sums are held to: their busbw, or of one rank, whose busbw is 0, their algbw.
double ceiling_of(const CopyRates& copies, int world) {
  return world == 1 ? copies.within.at(0) : copies.slowest();
}

double share_of_ceiling(const AllreduceRow& row, const CopyRates& copies, int world) {
  return (world == 1 ? row.algbw : row.busbw) / ceiling_of(copies, world);
}

/// "190.1" or "190.1 to 201.3", in GB/s.
std::string range_text(double least, double most) {
  const std::string from = fmt::format("{:.1f}", least * 1e-9);
  const std::string to = fmt::format("{:.1f}", most * 1e-9);
  return from == to ? from : fmt::format("{} to {}", from, to);
}

void print_nccl_header(const AllreduceBenchOptions& options, const CopyRates& copies,
                       const std::string& version) {
  fmt::print(
      "# paceline bench allreduce: world {}, transport nccl (NCCL {}), out of place, median of {} "
      "timed by events on the communication stream\n",
      options.world, version, options.iters);
  const auto [least, most] = std::ranges::minmax(copies.within);
  fmt::print("# plain copies of {} bytes, each byte counted once: within a GPU {} GB/s",
             copies.bytes, range_text(least, most));
  if (options.world == 1) {
    fmt::print("\n# of copy: algbw over that (busbw of one rank is 0 by its formula)\n");
  } else {
    fmt::print(", between two GPUs {} GB/s\n# of copy: busbw over the slowest of those between\n",
               range_text(copies.slowest(), copies.fastest()));
  }
  print_bench_columns(fmt::format(" {:>8}", "of copy"), fmt::format(" {:>8}", "(%)"));
}

nlohmann::json copies_json(const CopyRates& copies, int world) {
  const auto gbps = [](std::vector<double> rates) {
    std::ranges::transform(rates, rates.begin(), [](double rate) { return rate * 1e-9; });
    return rates;
  };
  nlohmann::json between = nlohmann::json::array();
  for (const std::vector<double>& from : copies.between) {
    between.push_back(gbps(from));
  }
  return {{"bytes", copies.bytes},
          {"counted", "once"},
          {"within_gbps", gbps(copies.within)},
          {"between_gbps", between},
          {"direct", copies.direct},
          {"ceiling_gbps", ceiling_of(copies, world) * 1e-9},
          {"ceiling_of", world == 1 ? "algbw" : "busbw"}};
}

CopyRates parse_copies(const nlohmann::json& text) {
  CopyRates copies;
  text.at("bytes").get_to(copies.bytes);
  text.at("within").get_to(copies.within);
  text.at("between").get_to(copies.between);
  text.at("direct").get_to(copies.direct);
  return copies;
}

}  // namespace

void check_nccl_bench(const AllreduceBenchOptions& options) {
  check_bench_sizes(options);
  const auto refuse_unless = [](bool good, const std::string& flag, std::string_view allowed) {
    require_flag(good, fmt::format("{} with --transport=nccl: allowed: {}", flag, allowed));
  };
  refuse_unless(options.type == "f32" || options.type == "f16" || options.type == "bf16",
                "--type " + options.type, "f32, f16, bf16");
  refuse_unless(options.algorithm == "auto", "--algorithm " + options.algorithm,
                "auto, which is NCCL's own choice (the variable NCCL_ALGO names another)");
  refuse_unless(options.link_inter == "none" && options.link_intra == "none",
                "--link-inter or --link-intra", "none, as NCCL uses the machine's own links");
  refuse_unless(options.ranks_per_node == 0,
                fmt::format("--ranks-per-node {}", options.ranks_per_node),
                "0, all ranks on this machine");
}

CopyRates nccl_ceiling(const CudaModule& module, const AllreduceBenchOptions& options,
                       std::size_t bytes) {
  if (!module.usable()) {
    throw ConfigError(
        fmt::format("--transport=nccl cannot be used here: {}; allowed: inproc, shm, tcp, auto",
                    module.reason()));
  }
  check_nccl(module, options.world, bench_user());
  return measure_copies(module, options.world, bytes, options.timeout);
}

void bench_nccl_rank(const CudaModule& module, const AllreduceBenchOptions& options,
                     const CopyRates& copies, Communicator& workers, AbortToken& abort) {
  NcclBench bench(module, options, workers, abort);
  const bool root = workers.rank() == 0;
  if (root) {
    print_nccl_header(options, copies, bench.version());
  }
  nlohmann::json results = nlohmann::json::array();
  std::int64_t wrong = 0;
  for (const std::size_t bytes : bench_sizes(options)) {
    const AllreduceRow row = bench.measure(bytes);
    wrong += row.wrong;
    if (root) {
      const double share = share_of_ceiling(row, copies, options.world);
      print_bench_row(options, row, fmt::format(" {:>8.1f}", 100.0 * share));
      results.push_back(bench_row_json(options, row));
      results.back()["of_ceiling"] = share;
    }
  }
  if (root && !options.json.empty()) {
    write_bench_json(options.json, {{"collective", "allreduce"},
                                    {"world", options.world},
                                    {"transport", "nccl"},
                                    {"nccl", bench.version()},
                                    {"gpu", module.devices().at(0).name},
                                    {"in_place", false},
                                    {"iters", options.iters},
                                    {"copies", copies_json(copies, options.world)},
                                    {"results", results}});
  }
  workers.barrier();
  if (wrong > 0) {
    throw Error(fmt::format("{} elements of the results are wrong", wrong));
  }
}

int bench_nccl(const AllreduceBenchOptions& options) {
  check_nccl_bench(options);
  const std::string text = run_alone("looking at the GPUs", 2 * options.timeout, [&] {
    const CopyRates copies = nccl_ceiling(cuda_module(), options, kCopyBytes);
    return nlohmann::json{{"bytes", copies.bytes},
                          {"within", copies.within},
                          {"between", copies.between},
                          {"direct", copies.direct}}
        .dump();
  });
  const CopyRates copies = parse_copies(nlohmann::json::parse(text));
  return run_process_ranks(options.world, options.timeout,
                           [&](Communicator& workers, AbortToken& abort) {
                             bench_nccl_rank(cuda_module(), options, copies, workers, abort);
                           });
}

}  // namespace paceline
