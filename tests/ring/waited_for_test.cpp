// SPDX-License-Identifier: Apache-2.0
// Whom the others waited for: the rank that is late, not the neighbour that waits for it as well.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ring/ring_backend.h"
#include "tests/support/backend_conformance.h"

namespace paceline {
namespace {

using testing::ConformanceCase;
using testing::ConformanceWorker;

constexpr int kWaitingWorld = 3;
constexpr std::size_t kWaitingElements = 600;

struct LateCase {
  std::string sync;
  std::string algorithm;
};

Backend late_backend(const std::string& sync) {
  return sync == "ring"      ? ring_backend()
         : sync == "sharded" ? sharded_backend()
                             : hierarchical_backend();
}

/// Rank `late` hands bucket `late_bucket` over when the others already wait for it, and 60 ms
/// later: far over what a busy machine adds.
std::vector<StepReport> reports_with_late_rank(const LateCase& late_case, int late,
                                               BucketId late_bucket) {
  ConformanceCase test;
  test.config.sync = late_case.sync;
  test.config.ring.algorithm = late_case.algorithm;
  test.config.topology.ranks_per_node = late_case.sync == "hierarchical" ? 2 : 0;
  test.config.world = kWaitingWorld;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {kWaitingElements, kWaitingElements, kWaitingElements, kWaitingElements};
  std::atomic<int> waiting = 0;
  std::vector<StepReport> reports(kWaitingWorld);
  const auto outcome = run_backend(late_backend(late_case.sync), test, [&](auto& worker) {
    const std::size_t begin = worker.plan[late_bucket].begin;
    take_step(
        worker, {0, 0.125F, 1, kWaitingWorld},
        [&](std::size_t j) {
          if (worker.rank == late && j == begin) {
            while (waiting.load() < kWaitingWorld - 1 && !worker.abort.requested()) {
              std::this_thread::yield();
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(60));
          }
          return testing::known_gradient(j, worker.rank, 0);
        },
        [](const Range&) {});
    ++waiting;
    worker.synchronizer.quiesce();
    reports[static_cast<std::size_t>(worker.rank)] = worker.synchronizer.commit();
    return StepReport{};
  });
  expect_no_errors(outcome);
  return reports;
}

class WaitedFor : public ::testing::TestWithParam<LateCase> {};

TEST_P(WaitedFor, IsTheRankThatIsLate) {
  for (int late = 0; late < kWaitingWorld; ++late) {
    for (const BucketId bucket : {0, 1}) {
      const auto reports = reports_with_late_rank(GetParam(), late, bucket);
      for (int rank = 0; rank < kWaitingWorld; ++rank) {
        const StepReport& report = reports[static_cast<std::size_t>(rank)];
        EXPECT_LE(report.waited_for_s, report.wait_s);
        if (rank == late) continue;
        EXPECT_EQ(report.waited_for, late) << "rank " << rank << ", bucket " << bucket;
        EXPECT_GT(report.waited_for_s, 0.0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Collectives, WaitedFor,
                         ::testing::Values(LateCase{"ring", "auto"}, LateCase{"ring", "ring"},
                                           LateCase{"ring", "tree"}, LateCase{"sharded", "ring"},
                                           LateCase{"hierarchical", "auto"}),
                         [](const auto& each) {
                           return each.param.sync + "_" + each.param.algorithm;
                         });

}  // namespace
}  // namespace paceline
