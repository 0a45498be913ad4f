// SPDX-License-Identifier: Apache-2.0
// What `paceline memory` says of device=cuda and ps.device=cuda, against what is held on the host's
// double of the CUDA module.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "common/core/gpu/gpu_model.h"
#include "common/core/gpu/planning_module.h"
#include "common/core/model_options.h"
#include "common/core/optimizer.h"
#include "common/core/trainer.h"
#include "experiments/backends.h"
#include "experiments/compute.h"
#include "experiments/memory_plan.h"
#include "ps/gpu_shard.h"
#include "ps/partition.h"
#include "ps/ps_backend.h"
#include "ps/ps_synchronizer.h"
#include "tests/support/host_module.h"
#include "tests/support/thread_job.h"

namespace paceline {
namespace {

using Settings = std::vector<std::string>;

const CudaModule& memory_double() {
  static const CudaModule module(test::host_module());
  return module;
}

const CudaModule& no_module() {
  static const CudaModule module(CudaSearch{.built = false, .folders = {}});
  return module;
}

Config gpu_run(const Settings& settings) {
  Config config;
  config.world = 1;
  config.sync = "single";
  config.device = "cuda";
  apply_overrides(config, settings);
  return config;
}

MemoryPlan plan_with(const CudaModule& module, const Settings& settings) {
  MemoryOptions options;
  options.module = &module;
  return plan_memory(gpu_run(settings), options);
}

SampleShape shape_of(const Config& config) {
  return config.data.name == "text" ? SampleShape{config.data.context, 1, 1}
                                    : parse_image_shape(config.data.shape);
}

/// After two batches and an evaluation of more samples than theirs, on the double.
std::size_t held_by_model(const Config& config, Fusing attention) {
  GpuOptions options;
  options.attention = attention;
  options.norm = layer_engine(config.cuda.norm);
  options.pool = layer_engine(config.cuda.pool);
  Gpu gpu(memory_double(), options);
  const SampleShape shape = shape_of(config);
  const auto model = make_gpu_model(config.model, shape, config.model == "gpt" ? 256 : 10,
                                    model_options(config, 0, nullptr), gpu);
  const auto weights = gpu.allocate(model->parameter_elements(), "weights");
  const auto gradients = gpu.allocate(model->parameter_elements(), "gradients");
  const std::int64_t samples = config.train.batch;
  const std::int64_t tested = 3 * samples + 1;
  const std::vector<float> inputs(static_cast<std::size_t>(tested * shape.elements()));
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(tested * model->positions()));
  const auto first = [&](std::int64_t n) {
    return Batch{std::span(inputs).first(static_cast<std::size_t>(n * shape.elements())),
                 std::span(labels).first(static_cast<std::size_t>(n * model->positions())), n};
  };
  for (int batch = 0; batch < 2; ++batch) {
    static_cast<void>(
        model->train_batch(first(samples), weights->values(), gradients->values(), nullptr));
    static_cast<void>(model->take_result());
  }
  static_cast<void>(model->evaluate_batch(first(tested), weights->values()));
  return model->activation_bytes() - model->unplanned_bytes();
}

Settings images(const char* model, const char* precision) {
  return {std::string("model=") + model, std::string("precision.compute=") + precision,
          "data.name=synthetic",         "data.shape=8x8x1",
          "data.test_limit=3",           "train.batch=3"};
}

Settings text(const char* precision, const char* attention) {
  return {"model=gpt",
          std::string("precision.compute=") + precision,
          std::string("cuda.attention=") + attention,
          "data.name=text",
          "data.path=none.txt",
          "data.context=12",
          "data.test_limit=3",
          "train.batch=3",
          "gpt.width=16",
          "gpt.heads=2",
          "gpt.layers=2"};
}

TEST(GpuMemory, PlansWhatAModelOfTheGpuHolds) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* model : {"softmax", "mlp", "cnn", "resnet20"}) {
      SCOPED_TRACE(std::string(model) + " " + precision);
      const Settings settings = images(model, precision);
      const MemoryPlan plan = plan_with(no_module(), settings);
      EXPECT_EQ(plan.activations.total(), held_by_model(gpu_run(settings), Fusing::ordered));
      EXPECT_FALSE(plan.attention.has_value());
    }
  }
}

TEST(GpuMemory, PlansNormsAndPoolsOfCudnn) {
  const auto held_and_planned = [](const char* norm, const char* pool) {
    Settings settings = images("resnet20", "bf16");
    settings.push_back(std::string("cuda.norm=") + norm);
    settings.push_back(std::string("cuda.pool=") + pool);
    return std::pair(held_by_model(gpu_run(settings), Fusing::ordered),
                     plan_with(no_module(), settings).activations.total());
  };
  const auto own = held_and_planned("own", "own");
  const auto dnn = held_and_planned("cudnn", "cudnn");
  const auto either = held_and_planned("auto", "auto");
  EXPECT_EQ(own.first, own.second);
  EXPECT_EQ(dnn.first, dnn.second);
  EXPECT_LT(dnn.first, own.first) << "without the scratch of own statistics";
  EXPECT_EQ(either.first, dnn.first) << "the double computes them all";
  EXPECT_EQ(either.second, own.second) << "a bound from above";
  EXPECT_NE(memory_text(plan_with(no_module(), {"model=resnet20", "data.name=synthetic",
                                                "data.shape=8x8x1", "cuda.norm=auto"}))
                .find("known on the GPU alone"),
            std::string::npos);
}

struct AttentionCase {
  const char* precision;
  const char* attention;
  const CudaModule& module;
  bool fused;
  Fusing in_run;
};

TEST(GpuMemory, PlansAttentionAsItWillBeComputed) {
  const AttentionCase cases[] = {{"fp32", "fused", no_module(), false, Fusing::always},
                                 {"bf16", "products", memory_double(), false, Fusing::never},
                                 {"bf16", "fused", no_module(), true, Fusing::always},
                                 {"bf16", "auto", memory_double(), true, Fusing::ordered},
                                 {"bf16", "auto", no_module(), false, Fusing::never}};
  std::vector<std::size_t> totals;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(std::string(c.precision) + " " + c.attention);
    const Settings settings = text(c.precision, c.attention);
    const MemoryPlan plan = plan_with(c.module, settings);
    EXPECT_EQ(plan.activations.total(), held_by_model(gpu_run(settings), c.in_run));
    EXPECT_EQ(plan.attention.value().fused, c.fused);
    totals.push_back(plan.activations.total());
  }
  EXPECT_GT(totals[1], totals[2]);
  const std::string unknown = memory_text(plan_with(no_module(), text("bf16", "auto")));
  EXPECT_NE(unknown.find("attention is computed by products: whether cuda.attention=auto"),
            std::string::npos)
      << unknown;
}

TEST(GpuMemory, AdvisesFusedAttentionWhereItDoesNotFit) {
  MemoryOptions options;
  options.bytes = 1000;
  options.module = &no_module();
  const auto advised = [&](const char* attention) {
    return memory_text(plan_memory(gpu_run(text("bf16", attention)), options))
               .find("  - cuda.attention=fused") != std::string::npos;
  };
  EXPECT_TRUE(advised("products"));
  EXPECT_FALSE(advised("fused"));
}

/// What the double refuses for this batch alone is planned as refused.
TEST(GpuMemory, AsksTheGpuWhetherItFuses) {
  test::refuse_host_samples(3);
  const MemoryPlan plan = plan_with(memory_double(), text("bf16", "auto"));
  EXPECT_FALSE(plan.attention.value().fused);
  EXPECT_EQ(plan.attention.value().why, "the double was told to refuse");
  test::refuse_host_samples(0);
}

TEST(GpuMemory, TheModuleThatPlansComputesNothing) {
  Gpu gpu(planning_module(), {});
  const auto model = make_gpu_model("mlp", {2, 2, 1}, 10, {}, gpu);
  std::vector<float> weights(model->parameter_elements());
  std::vector<float> gradients(weights.size());
  const std::vector<float> inputs(4);
  const std::vector<std::int32_t> labels(1);
  const Batch batch{inputs, labels, 1};
  EXPECT_THROW(static_cast<void>(model->train_batch(batch, weights, gradients, nullptr)), Error);
  EXPECT_THROW(static_cast<void>(model->evaluate_batch(batch, weights)), Error);
  EXPECT_THROW(gpu.download(weights, gradients), Error);
  EXPECT_THROW(gpu.multiply(weights, 2.0F), Error);
  try {
    static_cast<void>(gpu.allocate(4, "weights"));
    ADD_FAILURE() << "an arena of nowhere";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("plans memory and computes nothing"),
              std::string::npos)
        << error.what();
  }
}

TEST(GpuMemory, WhatARunHasInHostMemoryIsNotTheGpus) {
  Settings settings = images("cnn", "fp32");
  settings.emplace_back("sync=ring");
  const MemoryPlan plan = plan_with(no_module(), settings);
  EXPECT_EQ(plan.rank_bytes(), plan.use.worker.weights + plan.use.worker.gradients +
                                   plan.activations.total() + cuda::kProductWorkspace);
  EXPECT_EQ(plan.host_bytes(), plan.batches + plan.use.worker.optimizer + plan.use.worker.staging);
}

TEST(GpuMemory, RanksShareTheGpuThatIsNamed) {
  Settings settings = images("cnn", "fp32");
  settings.insert(settings.end(), {"sync=ring", "world=4"});
  EXPECT_EQ(plan_with(memory_double(), settings).ranks_here, 1);
  settings.emplace_back("cuda.device=1");
  const MemoryPlan plan = plan_with(memory_double(), settings);
  EXPECT_EQ(plan.ranks_here, 4);
  EXPECT_EQ(plan.needed_bytes(), 4 * plan.rank_bytes());
  EXPECT_EQ(plan.limit.source, "a Double 1 (no GPU)");
}

TEST(GpuMemory, PlansWhatARankHoldsByWhoSums) {
  const auto data = make_synthetic(24, {8, 8, 1}, 10, 7, Split::train);
  testing::RankParts parts;
  parts.device = [](const WorkerContext& context) { return make_device(context, memory_double()); };
  parts.model = make_model_on;
  parts.synchronizer = make_synchronizer_on;
  for (const char* sync : {"hierarchical", "sharded"}) {
    for (const char* who : {"auto", "host"}) {
      SCOPED_TRACE(std::string(sync) + " " + who);
      Settings settings = images("softmax", "fp32");
      settings.insert(settings.end(), {std::string("sync=") + sync, "world=3", "train.samples=24",
                                       "topology.ranks_per_node=2", "optimizer.name=adam",
                                       "sync.wire=fp16", std::string("cuda.collectives=") + who});
      const PlannedUse plan = plan_with(memory_double(), settings).use;
      EXPECT_EQ(plan.staged, who == std::string("host"));
      const Config config = gpu_run(settings);
      const MemoryUse held =
          testing::run_thread_job(config, find_backend(sync), *data, *data, parts).memory;
      EXPECT_EQ(held.weights, plan.worker.weights);
      EXPECT_EQ(held.gradients, plan.worker.gradients);
      EXPECT_EQ(held.optimizer, plan.worker.optimizer);
      EXPECT_GE(held.staging, plan.worker.staging);
    }
  }
}

// Servers

Settings with_servers(const char* device, const char* servers_device, const char* placement) {
  Settings settings = images("softmax", "fp32");
  settings.insert(settings.end(),
                  {"sync=ps", "world=2", "train.samples=24", std::string("device=") + device,
                   std::string("ps.device=") + servers_device,
                   std::string("ps.placement=") + placement, "optimizer.name=adam"});
  return settings;
}

TEST(GpuMemory, PlansWhatAServerHoldsOnItsGpu) {
  Config config = gpu_run(with_servers("cpu", "cuda", "process"));
  const auto model = make_model("cnn", {8, 8, 1}, 10, {});
  const BucketPlan buckets = make_bucket_plan(*model, config);
  const OptimizerSpec spec = make_optimizer_spec(config.optimizer);
  for (const int servers : {1, 3}) {
    config.ps.servers = servers;
    const PlannedServer planned =
        plan_backend(config, find_backend("ps"), buckets, spec).server.value();
    const Partition partition(buckets, servers);
    const auto fullest = std::ranges::max_element(partition.bytes_per_server());
    std::vector<std::size_t> keys;
    for (const KeyRange& key : partition.keys()) {
      const bool mine = key.server == fullest - partition.bytes_per_server().begin();
      keys.push_back(mine ? key.elements() : 0);
    }
    const std::size_t before = test::host_module_bytes();
    const auto shard = gpu_shard_maker(memory_double(), {})(spec, keys);
    EXPECT_EQ(planned.on_gpu, test::host_module_bytes() - before);
    EXPECT_EQ(planned.weights, shard->memory().weights);
    EXPECT_EQ(planned.optimizer, shard->memory().optimizer);
    EXPECT_EQ(planned.gradients, shard->memory().gradients);
    EXPECT_LE(shard->memory().staging, planned.versions);
  }
}

Backend servers_on_double() {
  Backend row = ps_backend();
  row.make = [](const WorkerContext& context) {
    return make_ps_synchronizer(context, ps_rule(context.config), memory_double);
  };
  return row;
}

/// The sum in summary.json.
TEST(GpuMemory, PlansWhatAColocatedServerAddsToItsRank) {
  testing::RankParts parts;
  parts.device = [](const WorkerContext& context) { return make_device(context, memory_double()); };
  parts.model = make_model_on;
  parts.synchronizer = make_synchronizer_on;
  const auto data = make_synthetic(24, {8, 8, 1}, 10, 7, Split::train);
  for (const char* device : {"cpu", "cuda"}) {
    SCOPED_TRACE(device);
    const Settings settings = with_servers("cuda", device, "colocated");
    const PlannedUse plan = plan_with(memory_double(), settings).use;
    const MemoryUse held =
        testing::run_thread_job(gpu_run(settings), servers_on_double(), *data, *data, parts).memory;
    const PlannedServer& server = plan.server.value();
    EXPECT_EQ(held.weights, plan.worker.weights + server.weights);
    EXPECT_EQ(held.gradients, plan.worker.gradients + server.gradients);
    EXPECT_EQ(held.optimizer, server.optimizer);
    EXPECT_GE(held.staging, plan.worker.staging);
    EXPECT_LE(held.staging, plan.worker.staging + server.versions);
  }
}

TEST(GpuMemory, ServersCountWhereTheyAre) {
  const auto plan = [](const char* device, const char* servers_device, const char* placement) {
    return plan_with(no_module(), with_servers(device, servers_device, placement));
  };
  const MemoryPlan colocated = plan("cuda", "cuda", "colocated");
  const PlannedServer& server = colocated.use.server.value();
  EXPECT_GT(server.on_gpu, server.weights);
  EXPECT_EQ(colocated.arena_bytes(),
            colocated.use.worker.weights + colocated.use.worker.gradients + server.on_gpu);
  EXPECT_EQ(colocated.host_bytes(),
            colocated.batches + colocated.use.worker.staging + server.on_host());
  const MemoryPlan apart = plan("cuda", "cuda", "process");
  EXPECT_EQ(apart.needed_bytes(), apart.rank_bytes() + server.on_gpu);
  EXPECT_NE(memory_text(apart).find("one, the largest, shares this GPU"), std::string::npos);
  const MemoryPlan host_ranks = plan("cpu", "cuda", "process");
  EXPECT_EQ(host_ranks.needed_bytes(), 2 * host_ranks.rank_bytes() + server.on_host());
  const auto json = nlohmann::json::parse(memory_json(host_ranks));
  EXPECT_EQ(json["server"]["on_gpu"].get<std::size_t>(), server.on_gpu);
  EXPECT_EQ(json["assumed"].size(), 1U);
  EXPECT_EQ(plan("cuda", "cpu", "process").servers(), 0);
}

}  // namespace
}  // namespace paceline
