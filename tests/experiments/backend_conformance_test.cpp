// SPDX-License-Identifier: Apache-2.0
// The conformance suite on every row of the backend table, so that a new row is tested by being
// there.
#include <gtest/gtest.h>

#include "common/core/gpu/host_staging.h"
#include "experiments/backends.h"
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
  return std::make_unique<test::SeenFromHost>(
      host_double(), context.rank % 8,
      backend.binds_gpu ? std::move(synchronizer) : make_host_staged(std::move(synchronizer)));
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
