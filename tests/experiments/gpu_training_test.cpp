// SPDX-License-Identifier: Apache-2.0
// Whole jobs with device=cuda on the host's double of the CUDA module: trainer, model, backends and
// staging as on a GPU, streams as threads. They follow the CPU's trajectory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/core/model_options.h"
#include "experiments/backends.h"
#include "experiments/compute.h"
#include "tests/support/host_layers.h"
#include "tests/support/host_log.h"
#include "tests/support/host_module.h"
#include "tests/support/host_nccl.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

const CudaModule& training_double() {
  static const CudaModule module(test::host_module());
  return module;
}

Config gpu_job(const char* sync, int world) {
  Config config;
  config.sync = sync;
  config.model = "softmax";
  config.device = "cuda";
  config.world = world;
  config.train.batch = 4;
  config.train.samples = 6 * 4 * world;
  config.bucket.size = 512;
  config.bucket.first_size = 256;
  config.optimizer.lr = 0.05;
  config.optimizer.momentum = 0.9;
  config.comm.timeout = std::chrono::seconds(60);
  return config;
}

/// `wrap` may put something between trainer and backend.
using Wrap = std::function<std::unique_ptr<Synchronizer>(std::unique_ptr<Synchronizer>,
                                                         const WorkerContext&)>;

testing::ThreadJobResult run(const Config& config, const Wrap& wrap = {}) {
  const auto train_set = make_synthetic(200, {6, 6, 1}, 5, 7, Split::train);
  const auto test_set = make_synthetic(40, {6, 6, 1}, 5, 7, Split::test);
  testing::RankParts parts;
  if (config.device == "cuda") {
    parts.device = [](const WorkerContext& context) {
      return make_device(context, training_double());
    };
    parts.model = make_model_on;
    parts.synchronizer = [&](const Device& device, const Backend& backend,
                             const WorkerContext& context) {
      auto synchronizer = make_synchronizer_on(device, backend, context);
      return wrap ? wrap(std::move(synchronizer), context) : std::move(synchronizer);
    };
  }
  return testing::run_thread_job(config, find_backend(config.sync), *train_set, *test_set, parts);
}

/// The same job on the CPU (of sync=nccl: sync=ring), weight by weight.
void expect_follows_the_cpu(Config config, double tolerance) {
  const auto on_gpu = run(config);
  config.device = "cpu";
  if (config.sync == "nccl") config.sync = "ring";
  const auto on_cpu = run(config);
  ASSERT_EQ(on_gpu.losses.size(), on_cpu.losses.size());
  for (std::size_t t = 0; t < on_cpu.losses.size(); ++t) {
    EXPECT_NEAR(on_gpu.losses[t], on_cpu.losses[t], tolerance * on_cpu.losses[0]) << "step " << t;
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < on_cpu.weights[0].size(); ++i) {
    worst =
        std::max(worst, static_cast<double>(std::abs(on_gpu.weights[0][i] - on_cpu.weights[0][i])));
  }
  EXPECT_LE(worst, tolerance);
  for (const auto& weights : on_gpu.weights) {
    EXPECT_EQ(weights, on_gpu.weights[0]);
  }
  EXPECT_EQ(on_gpu.outcome.evaluations.size(), on_cpu.outcome.evaluations.size());
}

TEST(GpuTraining, SynchronousBackendsFollowTheCpu) {
  for (const char* sync : {"single", "ring", "ps"}) {
    SCOPED_TRACE(sync);
    expect_follows_the_cpu(gpu_job(sync, sync == std::string("single") ? 1 : 2), 2e-5);
  }
}

/// The fixed point of exact sums is the host's.
TEST(GpuTraining, OneWorkerUpdatesOnTheGpuUnlessItSumsExactly) {
  Config config = gpu_job("single", 1);
  for (const bool exact : {false, true}) {
    config.sync_options.exact = exact;
    test::host_log().start();
    expect_follows_the_cpu(config, 2e-5);
    const auto calls = test::host_log().take();
    const auto updates = std::ranges::count(calls, "update", &test::HostCall::what);
    EXPECT_EQ(updates >= 6, !exact) << updates << " of six steps";
  }
}

std::int64_t collectives_of_nccl(const Config& config) {
  test::host_log().start();
  expect_follows_the_cpu(config, 2e-5);
  const std::vector<test::HostCall> calls = test::host_log().take();
  return std::ranges::count_if(calls, [](const test::HostCall& call) {
    return std::string_view(call.what).starts_with("reduce_scatter");
  });
}

TEST(GpuTraining, NcclOrTheHostSumsNodesAndShards) {
  for (const char* sync : {"hierarchical", "sharded"}) {
    SCOPED_TRACE(sync);
    Config config = gpu_job(sync, 4);
    config.topology.ranks_per_node = 2;
    EXPECT_GT(collectives_of_nccl(config), 0);
    config.sync_options.exact = true;
    EXPECT_EQ(collectives_of_nccl(config), 0);
    config.sync_options.exact = false;
    config.cuda.collectives = "host";
    EXPECT_EQ(collectives_of_nccl(config), 0);
  }
}

TEST(GpuTraining, AKeyTunesConvolutions) {
  Config config = gpu_job("ring", 2);
  for (const bool tune : {false, true}) {
    config.cuda.tune = tune;
    test::host_log().start();
    expect_follows_the_cpu(config, 2e-5);
    const auto calls = test::host_log().take();
    EXPECT_EQ(std::ranges::count(calls, "tuned math", &test::HostCall::what), tune ? 2 : 0);
  }
}

TEST(GpuTraining, KeysGiveNormsAndPoolsToCudnn) {
  Config config = gpu_job("ring", 2);
  config.model = "cnn";
  config.norm.kind = "batch";
  config.train.samples = 2 * 4 * 2;
  const auto calls = [&](const char* norm, const char* pool) {
    config.cuda.norm = norm;
    config.cuda.pool = pool;
    const std::int64_t before = test::host_layer_calls();
    expect_follows_the_cpu(config, 1e-4);
    return test::host_layer_calls() - before;
  };
  EXPECT_EQ(calls("own", "own"), 0);
  const std::int64_t norms = calls("cudnn", "own");
  const std::int64_t pools = calls("own", "cudnn");
  EXPECT_GT(norms, 0);
  EXPECT_GT(pools, 0);
  EXPECT_EQ(calls("auto", "auto"), norms + pools);
}

/// NCCL, too, is a double: threads as ranks.
TEST(GpuTraining, NcclFollowsTheCpu) {
  for (const bool sharded : {false, true}) {
    Config config = gpu_job(sharded ? "sharded" : "nccl", 3);
    expect_follows_the_cpu(config, 2e-5);
    config.optimizer.name = "adam";
    config.optimizer.lr = 1e-3;
    config.optimizer.clip_norm = 0.5;
    expect_follows_the_cpu(config, 2e-4);
    for (const char* by_tensor : {"lars", "lamb"}) {
      config.optimizer.name = by_tensor;
      config.optimizer.lr = 0.01;
      expect_follows_the_cpu(config, 1e-4);
    }
  }
  Config config = gpu_job("nccl", 2);
  config.precision.compute = "fp16";
  config.precision.initial_scale = 1024.0;
  expect_follows_the_cpu(config, 2e-3);
}

TEST(GpuTraining, NcclSumsTheStatisticsOfNormsWithoutTheHost) {
  Config config = gpu_job("nccl", 3);
  config.model = "cnn";
  config.norm.kind = "sync_batch";
  config.train.samples = 4 * 4 * 3 - 5;  // the last step leaves a rank without samples
  config.train.accumulate = 2;
  for (const bool sharded : {false, true}) {
    config.sync = sharded ? "sharded" : "nccl";
    const std::int64_t before = test::host_nccl_double_sums();
    expect_follows_the_cpu(config, 1e-4);
    EXPECT_GT(test::host_nccl_double_sums(), before);
  }
  config.sync = "hierarchical";
  config.topology.ranks_per_node = 2;
  expect_follows_the_cpu(config, 1e-4);
}

/// Alone it is plain SGD; beside another, updates may be lost, never more applied than made.
TEST(GpuTraining, HogwildSharesOneArena) {
  expect_follows_the_cpu(gpu_job("hogwild", 1), 2e-5);
#ifndef __SANITIZE_THREAD__  // the race is the algorithm
  Config config = gpu_job("hogwild", 2);
  config.train.samples = 400;
  const auto result = run(config);
  EXPECT_EQ(result.weights[0], result.weights[1]);
  EXPECT_LT(result.outcome.evaluations.back().loss, result.losses.front());
  EXPECT_EQ(result.outcome.staleness.updates, 100);
#endif
}

TEST(GpuTraining, SeveralLayersAndBuckets) {
  Config config = gpu_job("ring", 2);
  config.model = "mlp";
  config.train.samples = 3 * 4 * 2;
  config.bucket.size = 64 << 10;
  expect_follows_the_cpu(config, 2e-5);
}

TEST(GpuTraining, MicroBatchesAddUpOnTheDevice) {
  Config config = gpu_job("ring", 2);
  config.train.accumulate = 6;  // more batches than the model keeps results of
  config.train.samples *= 3;
  expect_follows_the_cpu(config, 2e-5);
}

TEST(GpuTraining, AConvolutionalModelWithBatchNormAndEvaluations) {
  Config config = gpu_job("ring", 2);
  config.model = "cnn";
  config.norm.kind = "batch";
  config.train.samples = 3 * 4 * 2;
  config.train.eval_every = 8;
  expect_follows_the_cpu(config, 2e-4);
}

TEST(GpuTraining, SixteenBitsAndAScaledLoss) {
  for (const char* format : {"bf16", "fp16"}) {
    Config config = gpu_job("ring", 2);
    config.precision.compute = format;
    config.precision.initial_scale = 1024.0;
    expect_follows_the_cpu(config, 2e-3);
  }
}

/// The device leaves the same steps out as the host does where gradients are staged, and the scale
/// moves alike. (The CPU's overflow elsewhere: it stores no gradient of an activation in fp16.)
TEST(GpuTraining, ScaledLossesThatOverflowFollowTheHostsUpdates) {
  for (const char* sync : {"single", "nccl", "sharded"}) {
    for (const char* optimizer : {"sgd", "adam"}) {
      SCOPED_TRACE(std::string(sync) + " " + optimizer);
      Config config = gpu_job(sync, sync == std::string("single") ? 1 : 2);
      config.optimizer.name = optimizer;
      config.optimizer.lr = optimizer == std::string("adam") ? 1e-3 : 0.05;
      config.precision.compute = "fp16";
      config.precision.initial_scale = 1 << 20;
      config.precision.growth_every = 3;
      config.train.samples *= 4;
      const auto on_gpu = run(config);
      config.sync = "ring";
      const auto on_host = run(config);
      EXPECT_GT(on_host.outcome.skipped, 1);
      EXPECT_EQ(on_gpu.outcome.skipped, on_host.outcome.skipped);
      ASSERT_EQ(on_gpu.losses.size(), on_host.losses.size());
      for (std::size_t t = 0; t < on_host.losses.size(); ++t) {
        EXPECT_NEAR(on_gpu.losses[t], on_host.losses[t], 1e-3) << "step " << t;
      }
    }
  }
}

/// A whole job with CUDA graphs, bit by bit that without. Returns how many were launched.
std::int64_t expect_same_with_graphs(Config config) {
  const auto plain = run(config);
  config.cuda.graph = true;
  test::host_log().start();
  const auto with_graphs = run(config);
  const auto launched = std::ranges::count(test::host_log().take(), "graph", &test::HostCall::what);
  EXPECT_GT(launched, static_cast<std::int64_t>(plain.losses.size()));
  EXPECT_EQ(with_graphs.losses, plain.losses);
  EXPECT_EQ(with_graphs.weights, plain.weights);
  const auto last_loss = [](const auto& result) {
    return result.outcome.evaluations.empty() ? 0.0 : result.outcome.evaluations.back().loss;
  };
  EXPECT_GT(last_loss(plain), 0.0);
  EXPECT_EQ(last_loss(with_graphs), last_loss(plain));
  return launched;
}

TEST(GpuTraining, GraphsGiveTheBitsOfPlainSteps) {
  Config config = gpu_job("single", 1);
  config.model = "cnn";
  config.norm.kind = "batch";
  config.train.samples = 12 * 4;
  config.bucket.size = config.bucket.first_size = 64 << 20;
  EXPECT_EQ(expect_same_with_graphs(config), 10 * 2) << "to the loss, and from there: one bucket";
  config.train.accumulate = 2;
  EXPECT_EQ(expect_same_with_graphs(config), 5 * 2 * 2) << "six steps";
  config.train.accumulate = 1;
  config.train.eval_every = 20;
  config.bucket.size = config.bucket.first_size = 4 << 10;
  static_cast<void>(expect_same_with_graphs(config));
}

TEST(GpuTraining, GraphsOfRanksGiveTheBitsOfPlainSteps) {
  Config config = gpu_job("nccl", 2);
  config.model = "cnn";
  static_cast<void>(expect_same_with_graphs(config));
  config = gpu_job("nccl", 2);
  config.train.accumulate = 2;
  config.train.samples = 230;  // 200 are an epoch: its last step is smaller
  static_cast<void>(expect_same_with_graphs(config));
  config = gpu_job("ring", 2);  // staged through the host
  static_cast<void>(expect_same_with_graphs(config));
  config = gpu_job("nccl", 2);
  config.precision.compute = "fp16";
  config.precision.initial_scale = 1 << 20;  // overflows, and grows again
  config.precision.growth_every = 3;
  config.train.samples *= 4;
  static_cast<void>(expect_same_with_graphs(config));
}

constexpr auto kLate = std::chrono::milliseconds(20);

/// Its host sleeps at each step's begin, before the seam, or in the seam's commit.
class Late final : public Synchronizer {
 public:
  Late(std::unique_ptr<Synchronizer> inner, bool in_seam)
      : inner_(std::move(inner)), in_seam_(in_seam) {}
  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }
  [[nodiscard]] MemoryUse memory() const noexcept override { return inner_->memory(); }
  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    return inner_->bind(plan, device, optimizer, init);
  }
  void begin_step(const StepInfo& info) override {
    std::this_thread::sleep_for(in_seam_ ? Nanoseconds(0) : kLate);
    inner_->begin_step(info);
  }
  void parameters_needed(BucketId b, Stream& stream) override {
    inner_->parameters_needed(b, stream);
  }
  void gradient_ready(BucketId b, const Event& done) override { inner_->gradient_ready(b, done); }
  StepReport commit() override {
    std::this_thread::sleep_for(in_seam_ ? kLate : Nanoseconds(0));
    return inner_->commit();
  }
  void quiesce() override { inner_->quiesce(); }
  void save(StateWriter& writer) const override { inner_->save(writer); }
  void load(StateReader& reader) override { inner_->load(reader); }

 private:
  std::unique_ptr<Synchronizer> inner_;
  bool in_seam_;
};

/// The mean of both ranks, per step.
void expect_exposed(const TrainOutcome& outcome, double least) {
  EXPECT_GE(outcome.exposed_comm_s, least);
  EXPECT_GE(outcome.compute_s, 0.0);
  EXPECT_LE(outcome.compute_s + outcome.exposed_comm_s + outcome.wait_s,
            1.001 * outcome.train_s / static_cast<double>(outcome.steps));
}

/// Nothing of it passes on the host: NCCL's ranks only queue.
TEST(GpuTraining, AStreamThatWaitsForALateRankIsExposedCommunication) {
  const auto result = run(gpu_job("nccl", 2), [](auto inner, const WorkerContext& context) {
    return context.rank == 1 ? std::make_unique<Late>(std::move(inner), false) : std::move(inner);
  });
  expect_exposed(result.outcome, 0.2 * seconds(Nanoseconds(kLate).count()));
}

/// The device is at its gradients only for a little of the time that the host sleeps.
TEST(GpuTraining, ADeviceLeftWithoutWorkByTheSeamIsExposedCommunication) {
  const auto result = run(gpu_job("ring", 2), [](auto inner, const WorkerContext&) {
    return std::make_unique<Late>(std::move(inner), true);
  });
  expect_exposed(result.outcome, 0.5 * seconds(Nanoseconds(kLate).count()));
}

/// Before a process starts the CPU's model stands for it.
TEST(GpuTraining, SixteenBitsOfAGptAreTheGpusAlone) {
  Config config = gpu_job("single", 1);
  config.model = "gpt";
  config.data.name = "text";
  config.precision.compute = "bf16";
  EXPECT_NO_THROW(check_model_options(config));
  config.device = "cpu";
  EXPECT_THROW(check_model_options(config), ConfigError);
}

TEST(GpuTraining, ALossThatIsNotFiniteNamesItsStep) {
  Config config = gpu_job("ring", 2);
  config.model = "mlp";
  config.optimizer.lr = 1e30;
  try {
    run(config);
    FAIL() << "a loss should have left fp32";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("at step"), std::string::npos) << error.what();
  }
}

TEST(GpuTraining, SaysWhyThereIsNoCuda) {
  const CudaModule none({.built = false, .folders = {}});
  const auto error = [&](const Config& config) -> std::string {
    try {
      check_gpus(config, none);
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return {};
  };
  Config config;
  config.device = "cuda";
  const std::string rest = " = \"cuda\" cannot be used here: " + none.reason() + "; allowed: cpu";
  EXPECT_EQ(error(config), "device" + rest);
  config.device = "cpu";
  config.ps.device = "cuda";
  EXPECT_EQ(error(config), "ps.device" + rest);
}

TEST(GpuTraining, AGpuForServersNeedsServers) {
  const auto error = [](const char* sync) -> std::string {
    Config config = gpu_job(sync, 2);
    config.device = "cpu";
    config.ps.device = "cuda";
    try {
      validate_elsewhere(config);
    } catch (const ConfigError& refused) {
      return refused.what();
    }
    return {};
  };
  EXPECT_EQ(error("ring"), "ps.device = \"cuda\": sync = ring has no servers; allowed: cpu");
  EXPECT_EQ(error("ps"), "");
  EXPECT_EQ(error("asgd"), "");
}

TEST(GpuTraining, NothingIsLeftOnTheDevice) {
  EXPECT_EQ(test::host_module_bytes(), 0U);
}

}  // namespace
}  // namespace paceline
