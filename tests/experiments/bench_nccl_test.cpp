// SPDX-License-Identifier: Apache-2.0
// `paceline bench allreduce --transport=nccl` on the doubles of the CUDA module and of NCCL,
// threads as ranks: what it calls right, wrong and an error, and its formulas. Its times are no
// GPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/half.h"
#include "common/base/median.h"
#include "experiments/bench_nccl.h"
#include "experiments/bench_ranks.h"
#include "experiments/bench_table.h"
#include "experiments/sum_pattern.h"
#include "tests/support/host_module.h"
#include "tests/support/host_nccl.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

AllreduceBenchOptions few(int world) {
  AllreduceBenchOptions options;
  options.transport = "nccl";
  options.world = world;
  options.sizes = {1, 4096, 9'000};
  options.iters = 1;
  options.warmup = 1;
  options.timeout = std::chrono::seconds(20);
  return options;
}

struct Finished {
  int status = 0;
  std::string out;
  std::string err;
  nlohmann::json result;  ///< what was written; null: nothing
};

Finished run_bench(const cuda::Api& api, AllreduceBenchOptions options) {
  const TemporaryFolder folder;
  const CudaModule module(api);
  options.json = (folder.path() / "result.json").string();
  const CopyRates copies = nccl_ceiling(module, options, 4096);
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Finished finished;
  finished.status = run_thread_ranks(options.world, options.timeout,
                                     [&](Communicator& workers, AbortToken& abort) {
                                       bench_nccl_rank(module, options, copies, workers, abort);
                                     });
  finished.out = testing::internal::GetCapturedStdout();
  finished.err = testing::internal::GetCapturedStderr();
  if (std::ifstream file(options.json); file) {
    finished.result = nlohmann::json::parse(file);
  }
  return finished;
}

class BenchNccl : public testing::Test {
 protected:
  void TearDown() override {
    test::set_nccl_fault(std::nullopt);
    test::set_nccl_version(22809);
    EXPECT_EQ(test::live_nccl_communicators(), 0) << "a communicator was left behind";
    EXPECT_EQ(test::host_module_bytes(), 0U) << "device memory was left behind";
  }
};

TEST_F(BenchNccl, SumsAreRightInEveryFormat) {
  for (const int world : {1, 2, 3}) {
    for (const auto& [type, size] : {std::pair("f32", 4U), {"f16", 2U}, {"bf16", 2U}}) {
      AllreduceBenchOptions options = few(world);
      options.type = type;
      const Finished done = run_bench(test::host_module(), options);
      ASSERT_EQ(done.status, 0) << done.err;
      const nlohmann::json& rows = done.result.at("results");
      ASSERT_EQ(rows.size(), 3U);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t count = std::max<std::size_t>(1, options.sizes[i] / size);
        EXPECT_EQ(rows[i].at("count").get<std::size_t>(), count);
        EXPECT_EQ(rows[i].at("size").get<std::size_t>(), count * size);
        EXPECT_EQ(rows[i].at("wrong").get<int>(), 0);
        EXPECT_GT(rows[i].at("time_us").get<double>(), 0.0);
      }
      EXPECT_NE(done.out.find("transport nccl (NCCL 2.28.9), out of place"), std::string::npos);
    }
  }
}

/// Every element of a sum but for one is right on every rank.
int sum_and_spoil(const void* from, void* to, std::size_t count, Precision format,
                  cuda::NcclSum sum, void* comm, void* stream) {
  const int status = test::host_nccl().all_reduce(from, to, count, format, sum, comm, stream);
  constexpr std::size_t kOneElement = sizeof(float);
  return status != cuda::kSuccess ? status
                                  : test::host_module().fill(to, 0x11, kOneElement, stream);
}

TEST_F(BenchNccl, CorruptedSumsAreCountedOverRanks) {
  cuda::Api api = test::host_module();
  api.nccl.all_reduce = sum_and_spoil;
  const Finished done = run_bench(api, few(3));
  EXPECT_EQ(done.status, 1);
  EXPECT_EQ(done.err, "paceline: 9 elements of the results are wrong\n");
  for (const nlohmann::json& row : done.result.at("results")) {
    EXPECT_EQ(row.at("wrong").get<int>(), 3);
  }
}

TEST_F(BenchNccl, ASumThatWritesNothingIsWrongThroughout) {
  cuda::Api api = test::host_module();
  api.nccl.all_reduce = [](auto...) { return cuda::kSuccess; };
  const Finished done = run_bench(api, few(1));
  EXPECT_EQ(done.status, 1);
  EXPECT_EQ(done.result.at("results").at(1).at("wrong").get<int>(), 1024);
}

/// Adds in rank order, rounding to the format after every rank as NCCL's rings may.
std::vector<std::byte> add_parts(const SumPattern& pattern, Precision format, int world,
                                 std::size_t count, int left_out) {
  std::vector<float> sums(count, 0.0F);
  for (int rank = 0; rank < world; ++rank) {
    const std::vector<std::byte> part = pattern.part(rank, count);
    for (std::size_t j = 0; j < count && rank != left_out; ++j) {
      std::uint16_t bits = 0;
      float value = 0.0F;
      if (format == Precision::fp32) {
        std::memcpy(&value, &part[j * sizeof value], sizeof value);
      } else {
        std::memcpy(&bits, &part[j * sizeof bits], sizeof bits);
        value = format == Precision::fp16 ? from_half(bits) : from_bfloat(bits);
      }
      sums[j] += value;
    }
    if (format == Precision::fp16) round_to_half(sums);
    if (format == Precision::bf16) round_to_bfloat(sums);
  }
  std::vector<std::byte> bytes(count * pattern.element_bytes());
  for (std::size_t j = 0; j < count; ++j) {
    const std::uint16_t bits = format == Precision::fp16 ? to_half(sums[j]) : to_bfloat(sums[j]);
    const void* from = format == Precision::fp32 ? static_cast<const void*>(&sums[j]) : &bits;
    std::memcpy(&bytes[j * pattern.element_bytes()], from, pattern.element_bytes());
  }
  return bytes;
}

TEST(SumPattern, IsExactAndShowsWhatIsMissingOrShifted) {
  constexpr std::size_t kCount = 17'000;
  for (const Precision format : {Precision::fp32, Precision::fp16, Precision::bf16}) {
    for (const int world : {1, 2, 7, 16}) {
      const SumPattern pattern(format, world);
      std::vector<std::byte> sum = add_parts(pattern, format, world, kCount, -1);
      EXPECT_EQ(pattern.wrong(sum), 0) << world;
      const auto element = static_cast<std::ptrdiff_t>(pattern.element_bytes());
      std::rotate(sum.begin(), sum.begin() + element, sum.end());
      EXPECT_GT(pattern.wrong(sum), static_cast<std::int64_t>(kCount / 2)) << world;
      EXPECT_GT(pattern.wrong(add_parts(pattern, format, world, kCount, world - 1)),
                static_cast<std::int64_t>(kCount / 2))
          << world;
    }
  }
}

TEST_F(BenchNccl, RatesFollowTheFormulas) {
  cuda::Api api = test::host_module();
  api.elapsed_ms = [](float* ms, void*, void*) {
    *ms = 2.0F;
    return cuda::kSuccess;
  };
  constexpr double kSeconds = 2e-3;
  constexpr double kGiga = 1e9;
  for (const auto& [world, factor] : {std::pair(1, 0.0), {2, 1.0}, {4, 1.5}}) {
    AllreduceBenchOptions options = few(world);
    options.sizes = {4096};
    if (world == 2) options.sizes.push_back(524'288);
    const Finished done = run_bench(api, options);
    ASSERT_EQ(done.status, 0) << done.err;
    const nlohmann::json& copies = done.result.at("copies");
    const double within = 8 * 4096 / kSeconds / kGiga;  // eight copies between two events
    const double between = 4096 / kSeconds / kGiga;
    EXPECT_NEAR(copies.at("within_gbps").at(0).get<double>(), within, 1e-9 * within);
    EXPECT_NEAR(copies.at("ceiling_gbps").get<double>(), world == 1 ? within : between,
                1e-9 * within);
    for (const nlohmann::json& row : done.result.at("results")) {
      const int sums = row.at("size").get<int>() == 4096 ? 50 : 32;  // in a row: 16 MiB at most
      const double algbw = row.at("size").get<double>() * sums / kSeconds / kGiga;
      EXPECT_NEAR(row.at("algbw_gbps").get<double>(), algbw, 1e-6 * algbw);
      EXPECT_NEAR(row.at("busbw_gbps").get<double>(), algbw * factor, 1e-6 * algbw);
      const double share = world == 1 ? algbw / within : algbw * factor / between;
      EXPECT_NEAR(row.at("of_ceiling").get<double>(), share, 1e-6 * share);
    }
  }
  EXPECT_EQ(bus_bandwidth(8.0, 1), 0.0);
  EXPECT_EQ(bus_bandwidth(8.0, 8), 14.0);
  EXPECT_EQ(median(std::vector{5.0, 1.0, 3.0}), 3.0);
}

/// What copy_to_peer was asked for; one thread copies.
std::vector<std::pair<int, int>>& peer_copies() {
  static std::vector<std::pair<int, int>> all;
  return all;
}

TEST_F(BenchNccl, CopiesGoFromEveryGpuToEveryOther) {
  cuda::Api api = test::host_module();
  api.copy_to_peer = [](void* to, int to_device, const void* from, int from_device,
                        std::size_t bytes, void* stream) {
    peer_copies().emplace_back(from_device, to_device);
    return test::host_module().copy(to, from, bytes, stream);
  };
  api.peer_access = [](int device, int peer, int* possible) {
    *possible = device == 0 && peer == 1 ? 1 : 0;
    return cuda::kSuccess;
  };
  const CudaModule module(api);
  peer_copies().clear();
  const CopyRates rates = measure_copies(module, 3, 1000, std::chrono::seconds(20));
  auto& pairs = peer_copies();
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  const std::vector<std::pair<int, int>> expected{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}};
  EXPECT_EQ(pairs, expected);
  EXPECT_EQ(rates.bytes, 1000U);
  EXPECT_EQ(rates.within.size(), 3U);
  EXPECT_TRUE(rates.direct[0][1]);
  EXPECT_FALSE(rates.direct[1][0]);
  const CopyRates known{1, {9.0, 9.0}, {{0.0, 3.0}, {2.0, 0.0}}, {}};
  EXPECT_EQ(known.slowest(), 2.0);
  EXPECT_EQ(known.fastest(), 3.0);
}

TEST_F(BenchNccl, AnErrorOfNcclIsOneLine) {
  for (const auto kind : {test::NcclFaultKind::error, test::NcclFaultKind::async_error}) {
    test::set_nccl_fault(test::NcclFault{kind, 1, 60, 2});
    const Finished done = run_bench(test::host_module(), few(3));
    EXPECT_EQ(done.status, 1);
    EXPECT_EQ(done.err.find("paceline: rank 1: NCCL failed while "), 0U) << done.err;
    EXPECT_EQ(std::ranges::count(done.err, '\n'), 1) << done.err;
  }
}

TEST_F(BenchNccl, ASumThatNeverEndsTimesOut) {
  test::set_nccl_fault(test::NcclFault{test::NcclFaultKind::hang, 1, 60, 0});
  AllreduceBenchOptions options = few(2);
  options.timeout = std::chrono::milliseconds(400);
  const Finished done = run_bench(test::host_module(), options);
  EXPECT_EQ(done.status, 1);
  EXPECT_NE(done.err.find("waited more than 0.4 s for the other ranks in NCCL's allreduce of 4 "
                          "bytes"),
            std::string::npos)
      << done.err;
}

TEST_F(BenchNccl, ARankThatFailsEndsTheOthers) {
  const CudaModule module(test::host_module());
  const CopyRates copies{1, {1.0, 1.0}, {{0.0, 1.0}, {1.0, 0.0}}, {}};
  testing::internal::CaptureStderr();
  const int status =
      run_thread_ranks(2, std::chrono::seconds(20), [&](Communicator& workers, AbortToken& abort) {
        if (workers.rank() == 1) throw Error("rank 1 is out of luck");
        bench_nccl_rank(module, few(2), copies, workers, abort);
      });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "paceline: rank 1 is out of luck\n");
  EXPECT_EQ(status, 1);
}

template <typename Call>
std::string refusal(Call call) {
  try {
    call();
    return "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST_F(BenchNccl, WhatCannotRunIsRefusedInOneLine) {
  const CudaModule module(test::host_module());
  const auto ceiling = [](const CudaModule& gpus, int world) {
    return refusal([&] { static_cast<void>(nccl_ceiling(gpus, few(world), 64)); });
  };
  EXPECT_EQ(ceiling(module, 8), "none");
  EXPECT_EQ(
      ceiling(module, 9),
      "world = 9 with --transport=nccl: this machine has 8 GPUs, and NCCL refuses two ranks on one "
      "GPU; use --transport=auto, or at most 8 ranks");
  EXPECT_EQ(ceiling(CudaModule(CudaSearch{false, {}}), 1),
            "--transport=nccl cannot be used here: this program was built without CUDA "
            "(PACELINE_CUDA); allowed: inproc, shm, tcp, auto");
  test::set_nccl_version(0);
  EXPECT_NE(ceiling(module, 1).find("NCCL is missing"), std::string::npos);

  const auto options = [](auto change) {
    AllreduceBenchOptions changed = few(2);
    change(changed);
    return refusal([&] { check_nccl_bench(changed); });
  };
  EXPECT_EQ(options([](auto&) {}), "none");
  EXPECT_EQ(options([](auto& o) { o.type = "i64"; }),
            "--type i64 with --transport=nccl: allowed: f32, f16, bf16");
  EXPECT_NE(options([](auto& o) { o.algorithm = "ring"; }).find("--algorithm ring with"),
            std::string::npos);
  EXPECT_NE(options([](auto& o) { o.link_inter = "1gbit,50us"; }).find("--link-inter"),
            std::string::npos);
  EXPECT_NE(options([](auto& o) { o.ranks_per_node = 1; }).find("--ranks-per-node 1"),
            std::string::npos);
  EXPECT_NE(options([](auto& o) { o.iters = 0; }).find("--iters 0"), std::string::npos);
}

}  // namespace
}  // namespace paceline
