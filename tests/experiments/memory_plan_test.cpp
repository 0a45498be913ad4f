// SPDX-License-Identifier: Apache-2.0
// What `paceline memory` says of whole configurations; that its parts are those that runs count is
// compatibility_test.cpp's and core/model_test.cpp's.
#include "experiments/memory_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/base/error.h"
#include "common/config/config_file.h"

namespace paceline {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

MemoryPlan plan_of(const std::vector<std::string>& settings, const MemoryOptions& options) {
  Config config;
  config.world = 8;
  config.model = "resnet50";
  const std::vector<std::string> imagenet{"data.name=synthetic", "data.shape=224x224x3",
                                          "data.classes=1000"};
  apply_overrides(config, imagenet);
  apply_overrides(config, settings);
  return plan_memory(config, options);
}

double bytes_per_parameter(const MemoryPlan& plan) {
  const MemoryUse& w = plan.use.worker;
  return static_cast<double>(w.weights + w.gradients + w.optimizer) /
         static_cast<double>(plan.parameters);
}

bool advises(const MemoryPlan& plan, std::string_view part) {
  for (const std::string& line : memory_advice(plan)) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(MemoryPlan, SixteenBytesAParameterWithAdamWhateverThePrecision) {
  for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
    const MemoryPlan plan = plan_of({"optimizer.name=adam", precision}, {});
    EXPECT_EQ(plan.parameters, 25'557'032U);
    EXPECT_EQ(bytes_per_parameter(plan), 16.0);
  }
  EXPECT_EQ(bytes_per_parameter(plan_of({}, {})), 12.0) << "momentum";
  EXPECT_NEAR(bytes_per_parameter(plan_of({"sync=sharded", "optimizer.name=adam"}, {})),
              8.0 + 8.0 / 8, 1e-3);
}

TEST(MemoryPlan, FitsUpToItsLargestBatch) {
  MemoryOptions options;
  options.bytes = 40 * kGiB;
  options.ranks_here = 1;
  const MemoryPlan small = plan_of({"train.batch=64"}, options);
  EXPECT_TRUE(small.fits().value());
  EXPECT_TRUE(memory_advice(small).empty());
  const std::int64_t largest = small.largest_batch.value();
  const auto with = [&](std::int64_t batch) {
    return plan_of({"train.batch=" + std::to_string(batch)}, options);
  };
  EXPECT_TRUE(with(largest).fits().value());
  const MemoryPlan large = with(largest + 1);
  EXPECT_FALSE(large.fits().value());
  EXPECT_TRUE(advises(large, "train.batch=" + std::to_string(largest) + " is the largest"));
  EXPECT_TRUE(advises(large, "train.accumulate=2"));
  EXPECT_TRUE(advises(large, "sync=sharded"));
}

TEST(MemoryPlan, WithoutRoomForTheArenas) {
  MemoryOptions options;
  options.bytes = 100 << 20;
  EXPECT_TRUE(advises(plan_of({}, options), "model parallelism"));
  options.bytes = 4 * kGiB;
  EXPECT_TRUE(advises(plan_of({}, options), "leave too little for train.batch=1"));
}

/// Evaluation, whose test set is larger than any of these batches, adds nothing.
TEST(MemoryPlan, ActivationsAreThoseOfTheTrainingBatch) {
  const auto outputs = [](std::int64_t batch) {
    Config config;
    config.world = 1;
    config.sync = "single";
    config.train.batch = batch;
    const std::vector<std::string> text{"model=gpt", "data.name=text", "data.path=none.txt",
                                        "data.context=1024"};
    apply_overrides(config, text);
    return plan_memory(config, {}).activations.outputs;
  };
  EXPECT_EQ(outputs(8), 8 * outputs(1));
  EXPECT_EQ(outputs(64), 8 * outputs(8));
}

TEST(MemoryPlan, GpuHoldsHalfTheActivationsAndTheHostTheRest) {
  MemoryOptions options;
  options.bytes = 80 * kGiB;
  const auto on_gpu = [&](const char* precision) {
    return plan_of({"device=cuda", "train.batch=256", "optimizer.name=adam", precision}, options);
  };
  const MemoryPlan wide = on_gpu("precision.compute=fp32");
  const MemoryPlan half = on_gpu("precision.compute=bf16");
  EXPECT_EQ(half.activations.outputs * 2, wide.activations.outputs);
  EXPECT_EQ(half.arena_bytes(), 8 * half.parameters) << "weights and gradients";
  EXPECT_EQ(half.host_bytes() - half.batches, 16 * half.parameters)
      << "their copies and the optimizer's state";
  options.bytes = 20 * kGiB;
  EXPECT_TRUE(advises(on_gpu("precision.compute=fp32"), "precision.compute=bf16"));
}

TEST(MemoryPlan, ServersHaveARowOfTheirOwn) {
  const MemoryPlan plan = plan_of({"sync=ps", "ps.servers=2", "optimizer.name=adam"}, {});
  EXPECT_EQ(plan.use.worker.optimizer, 0U);
  EXPECT_NEAR(static_cast<double>(plan.use.server->weights), 2.0 * 25'557'032, 2e6);
  EXPECT_EQ(plan.use.server->optimizer, 2 * plan.use.server->weights);
  EXPECT_EQ(plan.needed_bytes(), 8 * plan.rank_bytes() + 2 * plan.use.server->total());
  const auto json = nlohmann::json::parse(memory_json(plan));
  EXPECT_EQ(json["server"]["total"].get<std::size_t>(), plan.use.server->total());
  EXPECT_NE(memory_text(plan).find("largest of 2 servers"), std::string::npos);
}

TEST(MemoryPlan, RefusesWhatARunWould) {
  EXPECT_THROW(static_cast<void>(plan_of({"sync=single"}, {})), ConfigError);
  EXPECT_THROW(static_cast<void>(plan_of({"norm.kind=none"}, {})), ConfigError);
}

TEST(MemoryPlan, BytesAsPeopleReadThem) {
  EXPECT_EQ(binary_bytes(312), "312 B");
  EXPECT_EQ(binary_bytes(1536), "1.5 KiB");
  EXPECT_EQ(binary_bytes(std::size_t{80} << 30), "80.0 GiB");
}

}  // namespace
}  // namespace paceline
