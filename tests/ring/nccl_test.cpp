// SPDX-License-Identifier: Apache-2.0
// sync=nccl on doubles of the CUDA module and of NCCL (threads as ranks, tests/support): the same
// trajectory as sync=ring, the order of waits and calls, and an end with one line whatever fails.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ring/nccl_backend.h"
#include "ring/ring_backend.h"
#include "tests/ring/gpu_double.h"
#include "tests/ring/ring_steps.h"

namespace paceline {
namespace {

using testing::check_backend;
using testing::conformance_cases;
using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::nccl_on_double;
using testing::run_backend;

Config nccl_config() {
  Config config;
  config.sync = "nccl";
  config.device = "cuda";
  return config;
}

TEST(Nccl, Conforms) {
  for (const ConformanceCase& test : conformance_cases(nccl_config(), 1, 4)) {
    check_backend(nccl_on_double(), test);
  }
}

}  // namespace
}  // namespace paceline
