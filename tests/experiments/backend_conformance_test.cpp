// SPDX-License-Identifier: Apache-2.0
// The conformance suite on every row of the backend table, so that a new row is tested by being
// there.
#include <gtest/gtest.h>

#include "experiments/backends.h"
#include "tests/support/backend_conformance.h"
#include "tests/support/replica_reference.h"

namespace paceline {
namespace {

using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;

#ifdef __SANITIZE_THREAD__
constexpr int kLargestWorld = 4;  // larger ones take a minute there and are no other threads
#else
constexpr int kLargestWorld = 8;
#endif

class BackendConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(BackendConformance, FollowsTheReference) {
  const Backend backend = find_backend(GetParam());
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

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Backend& backend : all_backends()) {
    names.emplace_back(backend.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, BackendConformance, ::testing::ValuesIn(backend_names()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace paceline
