// SPDX-License-Identifier: Apache-2.0
#include "experiments/bench_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "common/base/buffer.h"
#include "common/base/median.h"
#include "common/core/arena_optimizer.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "common/core/gpu/gpu_stopwatch.h"
#include "experiments/bench_table.h"
#include "experiments/copy_rates.h"

namespace paceline {

namespace {

constexpr float kBenchRate = 0.01F;
constexpr int kGradientByte = 0x3C;  ///< four of them are 0.0115

/// Throws ConfigError for a name that is none of the benchmark's.
OptimizerSpec bench_spec(const std::string& name) {
  constexpr float kMomentum = 0.9F;
  OptimizerSpec spec;
  require_flag(name == "sgd" || name == "momentum" || name == "nesterov" || name == "adam",
               fmt::format("--optimizer {}: allowed: sgd, momentum, nesterov, adam", name));
  spec.kind = name == "adam" ? OptimizerKind::adam : OptimizerKind::sgd;
  spec.momentum = name == "momentum" || name == "nesterov" ? kMomentum : 0.0F;
  spec.nesterov = name == "nesterov";
  return spec;
}

/// Weights and moments are read and written, gradients read.
std::size_t bytes_per_element(const OptimizerSpec& spec) {
  return 3 * sizeof(float) + 2 * optimizer_state_bytes(spec, 1);
}

BucketPlan bench_plan(const OptimizerBenchOptions& options) {
  const std::size_t each = std::max<std::size_t>(1, options.bucket_bytes / sizeof(float));
  std::vector<std::size_t> counts;
  for (std::size_t begin = 0; begin < options.elements; begin += each) {
    counts.push_back(std::min(each, options.elements - begin));
  }
  return BucketPlan(counts);
}

void check_optimizer_bench(const OptimizerBenchOptions& options) {
  require_flag(options.device == "cuda" || options.device == "cpu",
               fmt::format("--device {}: allowed: cuda, cpu", options.device));
  require_flag(!options.optimizers.empty(), "--optimizer: allowed: one and more names");
  for (const std::string& name : options.optimizers) {
    static_cast<void>(bench_spec(name));
  }
  constexpr std::size_t kMost = std::size_t{1} << 34;
  require_flag(options.elements >= 1 && options.elements <= kMost,
               fmt::format("--elements {}: allowed: 1..{}", options.elements, kMost));
  require_flag(options.bucket_bytes >= sizeof(float),
               fmt::format("--bucket {}: allowed: 4 or more", options.bucket_bytes));
  require_flag(options.iters >= 1, fmt::format("--iters {}: allowed: 1 or more", options.iters));
  require_flag(options.warmup >= 0, fmt::format("--warmup {}: allowed: 0 or more", options.warmup));
}

/// Of what the updates are held to, in bytes read and written per second.
struct Ceilings {
  std::string where;  ///< the card's name, or what updates on the CPU
  double copy = 0.0;
  double nominal = 0.0;  ///< 0: not known
};

/// Seconds of each timed step on the GPU, whose buckets are queued while an untimed step runs.
std::vector<double> gpu_steps(Gpu& gpu, const OptimizerBenchOptions& options,
                              const OptimizerSpec& spec, const BucketPlan& plan) {
  OwnRanges own;
  for (BucketId b = 0; b < plan.count(); ++b) {
    own.push_back({plan[b]});
  }
  const auto weights = gpu.allocate(options.elements, "weights");
  const auto gradients = gpu.allocate(options.elements, "gradients");
  gpu.check(gpu.api().fill(gradients->values().data(), kGradientByte,
                           gradients->values().size_bytes(), gpu.stream().native()),
            "filling memory");
  GpuOptimizer optimizer(gpu, gpu.stream(), spec, own);
  GpuStopwatch watch(gpu, gpu.stream());
  const auto step = [&] {
    for (BucketId b = 0; b < plan.count(); ++b) {
      optimizer.update(b, weights->values(), gradients->values(), kBenchRate, 1.0F);
    }
  };
  for (int i = 0; i < options.warmup; ++i) {
    step();
  }
  gpu.stream().synchronize("the end of untimed updates");
  std::vector<double> times;
  for (int i = 0; i < options.iters; ++i) {
    step();
    watch.start();
    step();
    watch.stop();
    gpu.stream().synchronize("the end of timed updates");
    times.push_back(watch.take_seconds());
  }
  return times;
}

Ceilings gpu_ceilings(const CudaModule& module, const OptimizerBenchOptions& options) {
  constexpr double kReadAndWritten = 2.0;
  const CopyRates rates =
      measure_copies(module, 1, options.elements * sizeof(float), options.timeout);
  const cuda::DeviceInfo& info = module.devices().at(0);
  return {info.name, kReadAndWritten * rates.within.at(0), info.memory_bytes_per_second};
}

/// Seconds of `work`, timed `iters` times after `warmup` times.
template <typename Work>
std::vector<double> host_times(const OptimizerBenchOptions& options, Work work) {
  std::vector<double> times;
  for (int i = -options.warmup; i < options.iters; ++i) {
    const std::int64_t begin = now_ns();
    work();
    if (i >= 0) {
      times.push_back(seconds(std::max<std::int64_t>(1, now_ns() - begin)));
    }
  }
  return times;
}

/// Memory of the host, written once so that it is there.
Buffer host_arena(std::size_t elements, int byte) {
  Buffer memory(elements * sizeof(float));
  std::memset(memory.as<float>().data(), byte, memory.size());
  return memory;
}

std::vector<double> host_steps(const OptimizerBenchOptions& options, const OptimizerSpec& spec,
                               const BucketPlan& plan) {
  Buffer weights = host_arena(options.elements, 0);
  Buffer gradients = host_arena(options.elements, kGradientByte);
  ArenaOptimizer optimizer(spec, plan);
  return host_times(options, [&] {
    for (BucketId b = 0; b < plan.count(); ++b) {
      optimizer.apply_bucket(b, weights.as<float>(), gradients.as<float>(), kBenchRate, 1.0F);
    }
  });
}

Ceilings host_ceilings(const OptimizerBenchOptions& options) {
  constexpr double kReadAndWritten = 2.0;
  Buffer from = host_arena(options.elements, kGradientByte);
  Buffer to = host_arena(options.elements, 0);
  const std::vector<double> times = host_times(
      options, [&] { std::memcpy(to.as<float>().data(), from.as<float>().data(), from.size()); });
  return {"one thread", kReadAndWritten * static_cast<double>(from.size()) / median(times), 0.0};
}

void print_optimizer_header(const OptimizerBenchOptions& options, const Ceilings& ceilings,
                            int launches) {
  fmt::print(
      "# paceline bench optimizer: device {} ({}), {} elements in fp32, {} {} a step, median of {} "
      "timed {}\n",
      options.device, ceilings.where, options.elements, launches,
      options.device == "cuda" ? "launches" : "buckets", options.iters,
      options.device == "cuda" ? "by events on the stream" : "by the host's clock");
  fmt::print("# a plain copy: {:.1f} GB/s, read and written; nominal: {}\n", ceilings.copy * 1e-9,
             ceilings.nominal > 0.0 ? fmt::format("{:.1f} GB/s", ceilings.nominal * 1e-9)
                                    : std::string("not known"));
  fmt::print("#{:>12} {:>12} {:>11} {:>10} {:>8} {:>11}\n", "optimizer", "bytes", "time", "rate",
             "of copy", "of nominal");
  fmt::print("#{:>12} {:>12} {:>11} {:>10} {:>8} {:>11}\n", "", "(B)", "(us)", "(GB/s)", "(%)",
             "(%)");
}

/// Null for 0, which stands for what is not known.
nlohmann::json known_or_null(double value) {
  return value > 0.0 ? nlohmann::json(value) : nlohmann::json();
}

/// Prints the row too.
nlohmann::json optimizer_row(const std::string& name, std::size_t bytes,
                             const std::vector<double>& times, const Ceilings& ceilings) {
  constexpr double kMicro = 1e6;
  constexpr double kPercent = 100.0;
  const double rate = static_cast<double>(bytes) / median(times);
  const double of_nominal = ceilings.nominal > 0.0 ? rate / ceilings.nominal : 0.0;
  fmt::print(" {:>12} {:>12} {:>11.1f} {:>10.1f} {:>8.1f} {:>11}\n", name, bytes,
             median(times) * kMicro, rate * 1e-9, kPercent * rate / ceilings.copy,
             of_nominal > 0.0 ? fmt::format("{:.1f}", kPercent * of_nominal) : "-");
  const auto [least, most] = std::ranges::minmax(times);
  return {{"optimizer", name},
          {"bytes", bytes},
          {"time_us", median(times) * kMicro},
          {"min_us", least * kMicro},
          {"max_us", most * kMicro},
          {"bytes_per_s", rate},
          {"of_copy", rate / ceilings.copy},
          {"of_nominal", known_or_null(of_nominal)}};
}

}  // namespace

int bench_optimizer(const CudaModule& module, const OptimizerBenchOptions& options) {
  check_optimizer_bench(options);
  const bool on_gpu = options.device == "cuda";
  const BucketPlan plan = bench_plan(options);
  std::optional<Gpu> gpu;
  if (on_gpu) {
    gpu.emplace(module, GpuOptions{.index = 0, .timeout = options.timeout});
  }
  const Ceilings ceilings = on_gpu ? gpu_ceilings(module, options) : host_ceilings(options);
  print_optimizer_header(options, ceilings, plan.count());
  nlohmann::json results = nlohmann::json::array();
  for (const std::string& name : options.optimizers) {
    const OptimizerSpec spec = bench_spec(name);
    const std::vector<double> times =
        on_gpu ? gpu_steps(*gpu, options, spec, plan) : host_steps(options, spec, plan);
    results.push_back(
        optimizer_row(name, bytes_per_element(spec) * options.elements, times, ceilings));
  }
  if (!options.json.empty()) {
    write_bench_json(options.json, {{"device", options.device},
                                    {"where", ceilings.where},
                                    {"elements", options.elements},
                                    {"bucket_bytes", options.bucket_bytes},
                                    {"buckets", plan.count()},
                                    {"iters", options.iters},
                                    {"copy_bytes_per_s", ceilings.copy},
                                    {"nominal_bytes_per_s", known_or_null(ceilings.nominal)},
                                    {"results", results}});
  }
  return 0;
}

}  // namespace paceline
