// SPDX-License-Identifier: Apache-2.0
// The conformance suite on every row of the backend table, so that a new row is tested by being
// there.
#include <gtest/gtest.h>

#include "common/core/gpu/host_staging.h"
#include "experiments/backends.h"
#include "tests/ring/ring_steps.h"
#include "tests/support/backend_conformance.h"
#include "tests/support/host_module.h"
#include "tests/support/replica_reference.h"
#include "tests/support/seen_from_host.h"

namespace paceline {
namespace {

const CudaModule& host_double() {
  static const CudaModule module(test::host_module());
  return module;
}

std::unique_ptr<Synchronizer> made_on_double(const WorkerContext& context) {
  const Backend backend = find_backend(context.config.sync);
  auto synchronizer = backend.make(context);
  return std::make_unique<test::SeenFromHost>(host_double(), context.rank % 8,
                                              backend.takes_gpu(context.config)
                                                  ? std::move(synchronizer)
                                                  : make_host_staged(std::move(synchronizer)));
}

/// With its replicas on the double, seen from the host.
Backend on_double(Backend backend) {
  backend.make = made_on_double;
  return backend;
}

using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;

#ifdef __SANITIZE_THREAD__
constexpr int kLargestWorld = 4;  // larger ones take a minute there and are no other threads
#else
constexpr int kLargestWorld = 8;
#endif

class BackendConformance : public ::testing::TestWithParam<std::string> {};
class ReplicasOnAGpu : public ::testing::TestWithParam<std::string> {};

TEST_P(BackendConformance, FollowsTheReference) {
  Backend backend = find_backend(GetParam());
  if (backend.name == "nccl") {
    backend = on_double(backend);
  }
  Config config;
  config.sync = GetParam();
  int smallest = 1;
  int largest = kLargestWorld;
  if (GetParam() == "hierarchical") {
    config.topology.ranks_per_node = 2;
    smallest = 3;
  }
  if (GetParam() == "single") {
    largest = 1;
  }
  if (GetParam() == "gossip") {
    smallest = 2;
  }
  config.local.steps = config.easgd.period = 2;
  for (const ConformanceCase& test : conformance_cases(config, smallest, largest)) {
    if (testing::has_replicas(backend.name)) {
      testing::check_replicas(backend, test);
    } else {
      check_backend(backend, test);
    }
  }
}

/// Replicas on a GPU's double (streams are threads), the backend's own on the host.
TEST_P(ReplicasOnAGpu, FollowTheReference) {
  const Backend backend = find_backend(GetParam());
  ConformanceCase test;
  test.config.sync = GetParam();
  test.config.world = GetParam() == "single" ? 1 : 3;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.config.local.steps = test.config.easgd.period = 2;
  if (GetParam() == "hierarchical") {
    test.config.topology.ranks_per_node = 2;
  }
  test.buckets = {5, 0, 1000, 17};
  test.optimizer.momentum = 0.5F;
  if (testing::has_replicas(backend.name)) {
    testing::check_replicas(on_double(backend), test);
  } else {
    check_backend(on_double(backend), test);
  }
}

ConformanceCase on_gpus_case(const char* sync, int world) {
  ConformanceCase test;
  test.config.sync = sync;
  test.config.device = "cuda";
  test.config.world = world;
  test.config.topology.ranks_per_node = 2;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {5, 0, 1000, 17};
  test.optimizer.momentum = 0.5F;
  return test;
}

/// Its sums depend on their order.
float third_gradient(std::size_t j, int rank, int t) {
  return testing::known_gradient(j, rank, t) / 3.0F;
}

/// What is done by NCCL sends nothing itself.
TEST(CollectivesOnAGpu, AreThoseThatTheConfigurationChose) {
  for (const char* sync : {"hierarchical", "sharded"}) {
    for (const int world : {3, 4}) {
      SCOPED_TRACE(std::string(sync) + " " + std::to_string(world));
      ConformanceCase test = on_gpus_case(sync, world);
      const auto outcome_of = [&](const Backend& backend) {
        auto outcome = testing::run_one_sample_steps(backend, test, third_gradient);
        for (const std::string& error : outcome.errors) EXPECT_EQ(error, "");
        return outcome;
      };
      const Backend backend = find_backend(sync);
      check_backend(on_double(backend), test);
      const auto by_nccl = outcome_of(on_double(backend));
      EXPECT_EQ(by_nccl.bytes_sent, 0U);
      test.config.cuda.collectives = "host";
      check_backend(on_double(backend), test);
      const auto by_host = outcome_of(on_double(backend));
      EXPECT_GT(by_host.bytes_sent, 0U);
      test.config.device = "cpu";
      const auto on_cpu = outcome_of(backend);
      EXPECT_EQ(by_host.weights, on_cpu.weights) << "not bit for bit";
      EXPECT_EQ(by_host.bytes_sent, on_cpu.bytes_sent);
      for (std::size_t j = 0; j < on_cpu.weights[0].size(); ++j) {
        ASSERT_NEAR(by_nccl.weights[0][j], on_cpu.weights[0][j], 1e-6F) << j;
      }
    }
  }
}

/// Sums without rounding, which NCCL cannot make: auto takes the host.
TEST(CollectivesOnAGpu, ExactSumsAreTheCpus) {
  for (const char* sync : {"hierarchical", "sharded"}) {
    ConformanceCase test = on_gpus_case(sync, 4);
    test.config.sync_options.exact = true;
    const Backend backend = find_backend(sync);
    const auto on_gpu = testing::run_one_sample_steps(on_double(backend), test, third_gradient);
    test.config.device = "cpu";
    test.config.sync = "ring";
    const auto on_cpu = testing::run_one_sample_steps(find_backend("ring"), test, third_gradient);
    EXPECT_EQ(on_gpu.weights, on_cpu.weights);
  }
}

std::vector<std::string> backend_names(bool with_shared_weights) {
  std::vector<std::string> names;
  for (const Backend& backend : all_backends()) {
    if (with_shared_weights || !backend.traits.shared_weights) {
      names.emplace_back(backend.name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, BackendConformance, ::testing::ValuesIn(backend_names(true)),
                         [](const auto& tested) { return tested.param; });
/// Workers that share weights have no replicas to stage.
INSTANTIATE_TEST_SUITE_P(Table, ReplicasOnAGpu, ::testing::ValuesIn(backend_names(false)),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace paceline
