// SPDX-License-Identifier: Apache-2.0
// `paceline bench optimizer` on the CPU and on the double of the CUDA module: its formulas, what it
// launches and what it refuses. Its times are no GPU's.
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "experiments/bench_optimizer.h"
#include "tests/support/host_module.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

OptimizerBenchOptions small(const std::string& device) {
  OptimizerBenchOptions options;
  options.device = device;
  options.optimizers = {"sgd", "momentum", "nesterov", "adam"};
  options.elements = 2500;
  options.bucket_bytes = 4000;
  options.iters = 3;
  options.warmup = 1;
  return options;
}

struct OptimizerBenchDone {
  std::string out;
  nlohmann::json result;
};

OptimizerBenchDone run_optimizer_bench(const cuda::Api& api, OptimizerBenchOptions options) {
  const TemporaryFolder folder;
  const CudaModule module(api);
  options.json = (folder.path() / "result.json").string();
  testing::internal::CaptureStdout();
  const int status = bench_optimizer(module, options);
  OptimizerBenchDone done{testing::internal::GetCapturedStdout(), {}};
  EXPECT_EQ(status, 0);
  std::ifstream file(options.json);
  done.result = nlohmann::json::parse(file);
  return done;
}

/// Elements of every launch of an update, in order; one thread launches.
std::vector<std::int64_t>& launches() {
  static std::vector<std::int64_t> all;
  return all;
}

/// The double, with 2 ms between any two events, and a card that states 1 MB/s.
cuda::Api made_up_times() {
  cuda::Api api = test::host_module();
  api.elapsed_ms = [](float* ms, void*, void*) {
    *ms = 2.0F;
    return cuda::kSuccess;
  };
  api.device_info = [](int device, cuda::DeviceInfo* info) {
    const int status = test::host_module().device_info(device, info);
    info->memory_bytes_per_second = 1e6;
    return status;
  };
  api.update = [](const OptimizerSpec* spec, const UpdateInfo* info,
                  const kernels::UpdateOperands* operands, std::int64_t elements, void* stream) {
    launches().push_back(elements);
    return test::host_module().update(spec, info, operands, elements, stream);
  };
  return api;
}

TEST(BenchOptimizer, RatesFollowTheFormulas) {
  launches().clear();
  const OptimizerBenchDone done = run_optimizer_bench(made_up_times(), small("cuda"));
  EXPECT_EQ(test::host_module_bytes(), 0U) << "device memory was left behind";
  constexpr double kSeconds = 2e-3;
  const double copy = 2.0 * 8 * 4 * 2500 / kSeconds;  // eight copies between two events
  EXPECT_NEAR(done.result.at("copy_bytes_per_s").get<double>(), copy, 1e-6 * copy);
  EXPECT_EQ(done.result.at("nominal_bytes_per_s").get<double>(), 1e6);
  EXPECT_EQ(done.result.at("buckets").get<int>(), 3);
  const nlohmann::json& rows = done.result.at("results");
  ASSERT_EQ(rows.size(), 4U);
  const std::vector<int> per_element{12, 20, 20, 28};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double bytes = 2500.0 * per_element[i];
    EXPECT_EQ(rows[i].at("bytes").get<double>(), bytes);
    EXPECT_NEAR(rows[i].at("time_us").get<double>(), 2000.0, 1e-3);
    EXPECT_NEAR(rows[i].at("of_copy").get<double>(), bytes / kSeconds / copy, 1e-6);
    EXPECT_NEAR(rows[i].at("of_nominal").get<double>(), bytes / kSeconds / 1e6, 1e-3);
  }
  // Per optimizer an untimed step, then three pairs of an untimed and a timed one.
  ASSERT_EQ(launches().size(), 4U * 7 * 3);
  EXPECT_EQ(launches()[0], 1000);
  EXPECT_EQ(launches()[2], 500);
  EXPECT_NE(done.out.find("2500 elements in fp32, 3 launches a step"), std::string::npos)
      << done.out;
}

TEST(BenchOptimizer, ACardThatStatesNoRateHasNoShareOfIt) {
  cuda::Api api = made_up_times();
  api.device_info = [](int device, cuda::DeviceInfo* info) {
    const int status = test::host_module().device_info(device, info);
    info->memory_bytes_per_second = 0.0;
    return status;
  };
  const OptimizerBenchDone done = run_optimizer_bench(api, small("cuda"));
  EXPECT_TRUE(done.result.at("nominal_bytes_per_s").is_null());
  EXPECT_TRUE(done.result.at("results").at(0).at("of_nominal").is_null());
  EXPECT_NE(done.out.find("nominal: not known"), std::string::npos) << done.out;
}

TEST(BenchOptimizer, RunsOnTheCpu) {
  const OptimizerBenchDone done = run_optimizer_bench(test::host_module(), small("cpu"));
  EXPECT_EQ(done.result.at("device").get<std::string>(), "cpu");
  for (const nlohmann::json& row : done.result.at("results")) {
    EXPECT_GT(row.at("of_copy").get<double>(), 0.0);
    EXPECT_LE(row.at("min_us").get<double>(), row.at("time_us").get<double>());
  }
}

std::string refused(const CudaModule& module, const OptimizerBenchOptions& options) {
  try {
    static_cast<void>(bench_optimizer(module, options));
    return "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(BenchOptimizer, WhatMakesNoSenseIsRefusedInOneLine) {
  const CudaModule module(test::host_module());
  const auto changed = [&](auto change) {
    OptimizerBenchOptions options = small("cuda");
    change(options);
    return refused(module, options);
  };
  EXPECT_EQ(changed([](auto& o) {
              o.optimizers = {"sgd", "lamb"};
            }),
            "--optimizer lamb: allowed: sgd, momentum, nesterov, adam");
  EXPECT_EQ(changed([](auto& o) { o.device = "gpu"; }), "--device gpu: allowed: cuda, cpu");
  EXPECT_EQ(changed([](auto& o) { o.elements = 0; }), "--elements 0: allowed: 1..17179869184");
  EXPECT_EQ(changed([](auto& o) { o.bucket_bytes = 3; }), "--bucket 3: allowed: 4 or more");
  EXPECT_EQ(changed([](auto& o) { o.iters = 0; }), "--iters 0: allowed: 1 or more");
  EXPECT_EQ(changed([](auto& o) { o.warmup = -1; }), "--warmup -1: allowed: 0 or more");
  EXPECT_EQ(refused(CudaModule(CudaSearch{false, {}}), small("cuda")),
            "device = \"cuda\" cannot be used here: this program was built without CUDA "
            "(PACELINE_CUDA); allowed: cpu");
}

}  // namespace
}  // namespace paceline
