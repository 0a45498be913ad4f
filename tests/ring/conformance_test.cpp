// SPDX-License-Identifier: Apache-2.0
// The backend conformance suite on the collectives' backends.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ring/ring_backend.h"
#include "tests/support/backend_conformance.h"

namespace paceline {
namespace {

using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;

class RingAlgorithms : public ::testing::TestWithParam<std::string> {};

TEST_P(RingAlgorithms, Conforms) {
  Config config;
  config.sync = "ring";
  config.ring.algorithm = GetParam();
  for (const ConformanceCase& test : conformance_cases(config)) {
    check_backend(ring_backend(), test);
  }
}

TEST_P(RingAlgorithms, ConformsWithoutOverlapAndWithExactSums) {
  Config config;
  config.sync = "ring";
  config.ring.algorithm = GetParam();
  config.sync_options.overlap = false;
  config.sync_options.exact = true;
  for (const ConformanceCase& test : conformance_cases(config, 2, 5)) {
    check_backend(ring_backend(), test);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RingAlgorithms,
                         ::testing::Values("auto", "ring", "tree", "halving_doubling"),
                         [](const auto& each) { return each.param; });

TEST(Sharded, Conforms) {
  for (const bool exact : {false, true}) {
    Config config;
    config.sync = "sharded";
    config.sync_options.overlap = !exact;
    config.sync_options.exact = exact;
    config.ring.algorithm = exact ? "ring" : "auto";
    for (const ConformanceCase& test : conformance_cases(config, exact ? 2 : 1, exact ? 5 : 8)) {
      check_backend(sharded_backend(), test);
    }
  }
}

TEST(Hierarchical, Conforms) {
  for (const int ranks_per_node : {2, 3}) {
    Config config;
    config.sync = "hierarchical";
    config.topology.ranks_per_node = ranks_per_node;
    for (const ConformanceCase& test : conformance_cases(config, 4, 8)) {
      check_backend(hierarchical_backend(), test);
    }
  }
}

TEST(Single, Conforms) {
  Config config;
  config.sync = "single";
  ConformanceCase test;
  test.buckets = {0, 1, 3, 1000};
  test.config = config;
  check_backend(single_backend(), test);
}

}  // namespace
}  // namespace paceline
