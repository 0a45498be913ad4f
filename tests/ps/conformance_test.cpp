// SPDX-License-Identifier: Apache-2.0
// The backend conformance suite on the parameter server and asgd.
#include <gtest/gtest.h>

#include "async/asgd_backend.h"
#include "ps/ps_backend.h"
#include "tests/support/backend_conformance.h"

namespace paceline {
namespace {

using testing::check_asynchronous;
using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;

Config ps_config(int servers) {
  Config config;
  config.sync = "ps";
  config.ps.servers = servers;
  return config;
}

TEST(ParameterServer, Conforms) {
  for (const int servers : {1, 2, 3}) {
    for (const ConformanceCase& test : conformance_cases(ps_config(servers))) {
      check_backend(ps_backend(), test);
    }
  }
}

TEST(ParameterServer, ConformsInsideTheRanksWithoutOverlap) {
  Config config = ps_config(2);
  config.ps.placement = "colocated";
  config.ps.transport = "tcp";
  config.sync_options.overlap = false;
  for (const ConformanceCase& test : conformance_cases(config, 2, 5)) {
    check_backend(ps_backend(), test);
  }
}

TEST(ParameterServer, ConformsWithExactSums) {
  Config config = ps_config(2);
  config.sync_options.exact = true;
  for (const ConformanceCase& test : conformance_cases(config, 1, 5)) {
    check_backend(ps_backend(), test);
  }
}

TEST(ParameterServer, BoundedStalenessConforms) {
  Config config = ps_config(2);
  config.ps.consistency = "ssp";
  config.ps.staleness = 1;
  for (const ConformanceCase& test : conformance_cases(config, 1, 4)) {
    const auto outcome = check_asynchronous(ps_backend(), test);
    // A push meets at most what the others applied since: 2s+1 updates of each.
    EXPECT_LE(outcome.staleness.max, 3 * (test.config.world - 1));
  }
}

TEST(Asgd, Conforms) {
  for (const int servers : {1, 3}) {
    for (const ConformanceCase& test : conformance_cases(ps_config(servers), 1, 6)) {
      check_backend(asgd_backend(), test);
    }
  }
}

}  // namespace
}  // namespace paceline
