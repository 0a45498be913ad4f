// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/config/value_text.h"
#include "experiments/bench_allreduce.h"
#include "experiments/bench_nccl.h"
#include "experiments/bench_optimizer.h"
#include "experiments/bench_pushpull.h"
#include "experiments/commands.h"

namespace paceline {

namespace {

constexpr const char* kAllreduceExamples = R"(
Examples:
  paceline bench allreduce                                          shm, 2 ranks
  paceline bench allreduce --transport=shm,tcp --world=2,4 --algorithm=ring,tree --max=16MiB
  paceline bench allreduce --transport=tcp --link-inter=1gbit,50us --ranks-per-node=1 --world=4
  paceline bench allreduce --transport=nccl --world=1,2,4 --type=bf16 --max=256MiB --json=nccl.json
      rank r on GPU r, beside the GPUs' plain copies ("of copy": busbw over the slowest copy between
      two of them; with one GPU algbw over the copy within it))";

constexpr const char* kPushPullExamples = R"(
Examples:
  paceline bench pushpull                          1 worker, 1 server, 1 key in flight
  paceline bench pushpull --keys=10 --min=1MiB     ten keys in flight
  paceline bench pushpull --workers=2 --servers=2 --json=pushpull.json)";

constexpr const char* kOptimizerExamples = R"(
Examples:
  paceline bench optimizer                                        on the first GPU
  paceline bench optimizer --optimizer=adam --bucket=100MiB --json=optimizer.json
  paceline bench optimizer --device=cpu --elements=10000000       one thread, beside memcpy)";

/// "64KiB" as bytes.
std::size_t read_size(const std::string& name, const std::string& text) {
  const auto size = parse_size(text);
  if (!size || *size < 1) {
    throw ConfigError(
        fmt::format("{} = \"{}\": allowed: a size such as 4096, 64KiB, 16MiB", name, text));
  }
  return static_cast<std::size_t>(*size);
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::size_t& bytes,
                      const std::string& help) {
  return command.add_option_function<std::string>(
      name, [&bytes, name](const std::string& text) { bytes = read_size(name, text); }, help);
}

template <typename Options>
void add_common(CLI::App& command, Options& options) {
  add_size(command, "--min", options.min_bytes, "Smallest size [4KiB]");
  add_size(command, "--max", options.max_bytes, "Largest size");
  command.add_option("--factor", options.factor, "Each size is the one before times this")
      ->capture_default_str();
  command.add_option("--iters", options.iters, "Timed runs of a size")->capture_default_str();
  command.add_option("--warmup", options.warmup, "Runs before them")->capture_default_str();
  command.add_option("--json", options.json, "File to write the results to as well");
  command.add_option("--host", options.host, "Address to listen on")->capture_default_str();
}

/// What to run the allreduce benchmark over: all combinations.
struct AllreduceSweep {
  AllreduceBenchOptions options;
  std::vector<std::string> transports{"shm"};
  std::vector<std::string> algorithms{"auto"};
  std::vector<int> worlds{2};
};

int run_sweep(const AllreduceSweep& sweep) {
  const bool many = sweep.transports.size() * sweep.algorithms.size() * sweep.worlds.size() > 1;
  int status = 0;
  for (const std::string& transport : sweep.transports) {
    for (const int world : sweep.worlds) {
      for (const std::string& algorithm : sweep.algorithms) {
        AllreduceBenchOptions options = sweep.options;
        options.transport = transport;
        options.world = world;
        options.algorithm = algorithm;
        if (many && !options.json.empty()) {
          std::filesystem::path path(options.json);
          path.replace_filename(fmt::format("{}-{}-{}-{}{}", path.stem().string(), transport,
                                            algorithm, world, path.extension().string()));
          options.json = path.string();
        }
        status |= transport == "nccl" ? bench_nccl(options) : bench_allreduce(options);
      }
    }
  }
  return status;
}

void add_allreduce(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("allreduce", "Our collectives: size, time, algbw, busbw");
  auto sweep = std::make_shared<AllreduceSweep>();
  add_common(*command, sweep->options);
  command
      ->add_option("--transport", sweep->transports,
                   "inproc, shm, tcp, auto; nccl: between GPUs [shm]")
      ->delimiter(',');
  command
      ->add_option("--algorithm", sweep->algorithms,
                   "auto, ring, tree, halving_doubling, hierarchical, ... [auto]")
      ->delimiter(',');
  command->add_option("--world", sweep->worlds, "Ranks [2]")->delimiter(',');
  command
      ->add_option_function<std::vector<std::string>>(
          "--sizes",
          [sweep](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              sweep->options.sizes.push_back(read_size("--sizes", text));
            }
          },
          "These sizes instead of --min, --max and --factor: 4KiB,1MiB,100MiB")
      ->delimiter(',');
  command->add_option("--type", sweep->options.type, "f32 or i64; nccl: f32, f16 or bf16")
      ->capture_default_str();
  command->add_option("--ranks-per-node", sweep->options.ranks_per_node, "0: all on one node")
      ->capture_default_str();
  command->add_option("--link-inter", sweep->options.link_inter, "Emulated link between nodes")
      ->capture_default_str();
  command->add_option("--link-intra", sweep->options.link_intra, "Emulated link within a node")
      ->capture_default_str();
  command->add_option("--connections", sweep->options.tcp_connections, "TCP connections per pair")
      ->capture_default_str();
  command->footer(kAllreduceExamples);
  command->callback([sweep, &action] { action = [sweep] { return run_sweep(*sweep); }; });
}

void add_pushpull(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("pushpull", "The parameter server's push + pull");
  auto options = std::make_shared<PushPullOptions>();
  add_common(*command, *options);
  command->add_option("--workers", options->workers)->capture_default_str();
  command->add_option("--servers", options->servers)->capture_default_str();
  command->add_option("--keys", options->keys, "Keys in flight at a time")->capture_default_str();
  command->add_option("--transport", options->transport, "auto, tcp, ipc")->capture_default_str();
  command->footer(fmt::format("\n{}\n{}", kPushPullLegend, kPushPullExamples));
  command->callback(
      [options, &action] { action = [options] { return bench_pushpull(*options); }; });
}

void add_optimizer(CLI::App& bench, Action& action) {
  auto* command =
      bench.add_subcommand("optimizer", "Updates of weights beside the memory's bandwidth");
  auto options = std::make_shared<OptimizerBenchOptions>();
  command->add_option("--device", options->device, "cuda, cpu")->capture_default_str();
  command
      ->add_option("--optimizer", options->optimizers,
                   "sgd, momentum, nesterov, adam [sgd,momentum,adam]")
      ->delimiter(',');
  command->add_option("--elements", options->elements, "Weights")->capture_default_str();
  add_size(*command, "--bucket", options->bucket_bytes,
           "Weights that one launch updates, as bucket.size [25MiB]");
  command->add_option("--iters", options->iters, "Timed steps")->capture_default_str();
  command->add_option("--warmup", options->warmup, "Steps before them")->capture_default_str();
  command->add_option("--json", options->json, "File to write the results to as well");
  command->footer(fmt::format("\n{}\n{}", kOptimizerBenchLegend, kOptimizerExamples));
  command->callback([options, &action] {
    action = [options] { return bench_optimizer(cuda_module(), *options); };
  });
}

}  // namespace

void add_bench_command(CLI::App& program, Action& action) {
  auto* bench =
      program.add_subcommand("bench", "Measures collectives, the parameter server and updates");
  bench->require_subcommand(1);
  add_allreduce(*bench, action);
  add_pushpull(*bench, action);
  add_optimizer(*bench, action);
}

}  // namespace paceline
