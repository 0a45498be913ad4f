// SPDX-License-Identifier: Apache-2.0
// The order in which NCCL's sums wait, sum and update, and how a run ends when NCCL, a rank or the
// job fails: on the doubles of the CUDA module and of NCCL.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "ring/nccl_backend.h"
#include "ring/nccl_monitor.h"
#include "tests/ring/gpu_double.h"
#include "tests/ring/ring_steps.h"
#include "tests/support/host_log.h"
#include "tests/support/host_module.h"
#include "tests/support/host_nccl.h"

namespace paceline {
namespace {

using testing::ConformanceCase;
using testing::ConformanceOutcome;
using testing::ConformanceWorker;
using testing::double_module;
using testing::known_gradient;
using testing::nccl_on_double;
using testing::one_sample_step;
using testing::run_backend;

constexpr int kGroupAborts = 22809;   // all communicators of a rank end together
constexpr int kThreadAborts = 22105;  // each by a thread

ConformanceCase small_case(int world) {
  ConformanceCase test;
  test.config.sync = "nccl";
  test.config.world = world;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {40, 9, 17};
  test.optimizer.momentum = 0.5F;
  return test;
}

/// Two nodes of two ranks. A bucket's first three collectives of rank 1 are within the node,
/// between the nodes and within the node; its 13 of three buckets are done before step 0.
ConformanceCase by_nodes() {
  ConformanceCase test = small_case(4);
  test.config.sync = "hierarchical";
  test.config.topology.ranks_per_node = 2;
  return test;
}

constexpr int kWarmUpByNodes = 13;

class NcclFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    test::set_nccl_fault(std::nullopt);
    test::set_nccl_version(kGroupAborts);
    EXPECT_EQ(test::live_nccl_communicators(), 0) << "a communicator was left behind";
  }
};

/// What was queued on each stream during a step.
using Streams = std::map<const void*, std::vector<test::HostCall>>;

Streams calls_of_step_1(const ConformanceCase& test) {
  const ConformanceOutcome outcome =
      run_backend(nccl_on_double(), test, [&](ConformanceWorker& worker) {
        const int world = test.config.world;
        one_sample_step(worker, 0, world, known_gradient);
        worker.synchronizer.quiesce();
        worker.workers.barrier();
        if (worker.rank == 0) test::host_log().start();
        worker.workers.barrier();
        one_sample_step(worker, 1, world, known_gradient);
        for (BucketId b = worker.plan.count() - 1; b >= 0; --b) {
          Stream unused;
          worker.synchronizer.parameters_needed(b, unused);
        }
        worker.workers.barrier();
        return StepReport{};
      });
  expect_no_errors(outcome);
  Streams streams;
  for (const test::HostCall& call : test::host_log().take()) {
    streams[call.stream].push_back(call);
  }
  return streams;
}

bool communicates(const std::vector<test::HostCall>& calls) {
  return std::ranges::any_of(calls, [](const auto& call) { return call.what == "all_reduce"; });
}

/// Events that some stream records, in its order.
std::vector<const void*> recorded(const std::vector<test::HostCall>& calls) {
  std::vector<const void*> events;
  for (const test::HostCall& call : calls) {
    if (call.what == "record") events.push_back(call.object);
  }
  return events;
}

/// With a flat sum.
void expect_order_of_calls(int world, bool overlap) {
  ConformanceCase test = small_case(world);
  test.config.sync_options.overlap = overlap;
  test.config.sync_options.priority = false;
  const Streams streams = calls_of_step_1(test);
  std::vector<std::vector<std::size_t>> orders;
  std::vector<std::vector<const void*>> gradients;  // events of the compute streams
  std::vector<std::vector<const void*>> waits;
  for (const auto& [stream, calls] : streams) {
    if (communicates(calls)) continue;
    gradients.push_back(recorded(calls));
    auto& waited = waits.emplace_back();
    for (const test::HostCall& call : calls) {
      if (call.what == "wait") waited.push_back(call.object);
    }
  }
  for (const auto& [stream, calls] : streams) {
    if (!communicates(calls)) continue;
    std::string text;
    std::vector<const void*> waited;
    std::vector<const void*> updated;
    std::vector<std::size_t>& counts = orders.emplace_back();
    for (const test::HostCall& call : calls) {
      text += std::string(call.what) + " ";
      if (call.what == "wait") waited.push_back(call.object);
      if (call.what == "all_reduce") counts.push_back(call.count);
      if (call.what == "update") {
        EXPECT_EQ(call.count, counts.back()) << "of the bucket summed";
      }
    }
    const std::vector<const void*> events = recorded(calls);
    ASSERT_EQ(events.size(), 9U);
    for (const std::size_t last : {2U, 5U, 8U}) updated.push_back(events[last]);
    const std::string bucket = "record all_reduce record update record ";
    const std::string wait = "wait ";
    EXPECT_EQ(text, overlap ? wait + bucket + wait + bucket + wait + bucket
                            : wait + wait + wait + bucket + bucket + bucket);
    EXPECT_EQ(std::ranges::count(gradients, waited), 1) << "not the buckets' own events, in order";
    // Forward of step 1 waits for the updates of step 0, then that of step 2 for those of step 1.
    std::vector<const void*> needed(updated.rbegin(), updated.rend());
    needed.insert(needed.end(), updated.rbegin(), updated.rend());
    EXPECT_EQ(std::ranges::count(waits, needed), 1);
  }
  const std::vector<std::size_t> in_order{40, 9, 17};
  EXPECT_EQ(orders, std::vector(static_cast<std::size_t>(world), in_order));
}

TEST_F(NcclFaults, EveryBucketIsWaitedForThenSummedThenUpdatedThenWaitedFor) {
  for (const int world : {1, 2, 3, 4}) {
    for (const bool overlap : {true, false}) {
      SCOPED_TRACE(world);
      expect_order_of_calls(world, overlap);
    }
  }
}

/// On each communication stream, in the order of streams' addresses.
std::vector<std::string> texts_of(const ConformanceCase& test) {
  std::vector<std::string> texts;
  for (const auto& [stream, calls] : calls_of_step_1(test)) {
    std::string text;
    for (const test::HostCall& call : calls) {
      text += fmt::format("{} ", call.what);
    }
    if (text.find("reduce") != std::string::npos) texts.push_back(std::move(text));
  }
  return texts;
}

/// Fewer elements than ranks or places, what divides leaves over, are summed everywhere.
TEST_F(NcclFaults, ShardsAndNodesTakeTheirCollectivesInOneOrder) {
  for (const int world : {1, 2, 3, 4}) {
    SCOPED_TRACE(world);
    ConformanceCase test = small_case(world);
    test.config.sync = "sharded";
    std::string expected;
    for (const std::size_t count : test.buckets) {
      const auto ranks = static_cast<std::size_t>(world);
      expected += "wait record reduce_scatter ";
      expected += count % ranks > 0 ? "all_reduce record update update " : "record update ";
      expected += "all_gather record ";
    }
    const auto texts = texts_of(test);
    EXPECT_EQ(texts, std::vector(static_cast<std::size_t>(world), expected));
  }
  const std::string halves = "wait record reduce_scatter all_reduce all_gather ";
  const std::string update = "record update record ";
  const std::string first = "all_reduce all_reduce broadcast ";
  const std::string second = "all_reduce broadcast ";
  const auto ranks_text = [&](const std::string& rest) {
    return halves + update + halves + rest + update + halves + rest + update;
  };
  auto texts = texts_of(by_nodes());
  std::ranges::sort(texts);
  EXPECT_EQ(texts, (std::vector{ranks_text(first), ranks_text(first), ranks_text(second),
                                ranks_text(second)}));
}

/// Every rank's error of `steps`, which end in seconds whatever happens.
std::vector<std::string> errors_of(const ConformanceCase& test,
                                   const std::function<StepReport(ConformanceWorker&)>& steps) {
  const Deadline soon = Deadline::after(std::chrono::seconds(20));
  const ConformanceOutcome outcome = run_backend(nccl_on_double(), test, steps);
  EXPECT_FALSE(soon.passed()) << "an abort waited for another communicator";
  return outcome.errors;
}

/// Three steps under a fault of rank 1's.
std::vector<std::string> errors_under(const test::NcclFault& fault, Nanoseconds timeout,
                                      ConformanceCase test = small_case(3)) {
  test::set_nccl_fault(fault);
  test.config.comm.timeout = timeout;
  return errors_of(test, [&](ConformanceWorker& worker) {
    for (int t = 0; t < 3; ++t) {
      one_sample_step(worker, t, test.config.world, known_gradient);
    }
    worker.synchronizer.quiesce();
    return StepReport{};
  });
}

void expect_one_line_each(const std::vector<std::string>& errors, const std::string& words) {
  for (const std::string& error : errors) {
    EXPECT_NE(error.find(words), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST_F(NcclFaults, AnErrorOfACallEndsEveryRank) {
  const auto errors = errors_under({test::NcclFaultKind::error, 1, 5, 2}, std::chrono::seconds(20));
  expect_one_line_each(errors, "rank 1: NCCL failed while starting an allreduce: ");
}

TEST_F(NcclFaults, AnAsynchronousErrorEndsEveryRank) {
  const auto errors =
      errors_under({test::NcclFaultKind::async_error, 1, 5, 6}, std::chrono::seconds(20));
  expect_one_line_each(errors, "rank 1: NCCL failed while ");
}

TEST_F(NcclFaults, ACollectiveThatNeverEndsTimesOut) {
  const auto errors =
      errors_under({test::NcclFaultKind::hang, 1, 7, 0}, std::chrono::milliseconds(300));
  expect_one_line_each(errors, "waited more than 0.3 s for the other ranks in NCCL's collective");
  expect_one_line_each(errors, "(step 1, bucket 1)");
}

void expect_timeout_where_rank_2_stops_coming(ConformanceCase test) {
  test.config.comm.timeout = std::chrono::milliseconds(300);
  const auto errors = errors_of(test, [&](ConformanceWorker& worker) {
    one_sample_step(worker, 0, test.config.world, known_gradient);
    while (worker.rank == 2) {
      std::this_thread::sleep_for(kAbortPollInterval);
      worker.abort.check();
    }
    one_sample_step(worker, 1, test.config.world, known_gradient);
    worker.synchronizer.quiesce();
    return StepReport{};
  });
  expect_one_line_each(errors, "waited more than 0.3 s for the other ranks in NCCL's");
  expect_one_line_each(errors, "(step 1, bucket 0)");
}

void expect_its_reason_where_rank_2_dies(const ConformanceCase& test) {
  const auto errors = errors_of(test, [&](ConformanceWorker& worker) {
    one_sample_step(worker, 0, test.config.world, known_gradient);
    if (worker.rank == 2) throw PeerLost("rank 2 is gone");
    one_sample_step(worker, 1, test.config.world, known_gradient);
    worker.synchronizer.quiesce();
    return StepReport{};
  });
  expect_one_line_each(errors, "rank 2 is gone");
}

TEST_F(NcclFaults, ARankThatStopsComingTimesOutOnTheOthers) {
  expect_timeout_where_rank_2_stops_coming(small_case(3));
}

TEST_F(NcclFaults, ARankThatDiesEndsTheOthersWithItsReason) {
  expect_its_reason_where_rank_2_dies(small_case(3));
}

/// Wherever rank 1 is stuck, collectives of its other communicators are queued behind it, and the
/// other ranks wait in one of theirs.
TEST_F(NcclFaults, ByNodesEveryFaultEndsEveryRankToo) {
  for (const int version : {kGroupAborts, kThreadAborts}) {
    test::set_nccl_version(version);
    for (const int into : {0, 1, 2}) {
      const int after = kWarmUpByNodes + into;
      const std::string call =
          std::vector<std::string>{"a reduce-scatter", "an allreduce", "an all-gather"}.at(
              static_cast<std::size_t>(into));
      expect_one_line_each(errors_under({test::NcclFaultKind::error, 1, after, 2},
                                        std::chrono::seconds(20), by_nodes()),
                           "rank 1: NCCL failed while starting " + call + ": ");
      expect_one_line_each(errors_under({test::NcclFaultKind::async_error, 1, after, 6},
                                        std::chrono::seconds(20), by_nodes()),
                           "rank 1: NCCL failed while ");
      const auto errors = errors_under({test::NcclFaultKind::hang, 1, after, 0},
                                       std::chrono::milliseconds(300), by_nodes());
      expect_one_line_each(errors, "waited more than 0.3 s for the other ranks in NCCL's");
      expect_one_line_each(errors, "(step 0, bucket ");
    }
    test::set_nccl_fault(std::nullopt);
    expect_timeout_where_rank_2_stops_coming(by_nodes());
    expect_its_reason_where_rank_2_dies(by_nodes());
  }
}

/// What the aborts hold is left to the process's end, here to the test's.
TEST_F(NcclFaults, AnAbortThatNeverEndsIsNotWaitedFor) {
  for (const ConformanceCase& test : {small_case(3), by_nodes()}) {
    test::let_nccl_aborts_end(false);
    const int after = test.config.sync == "hierarchical" ? kWarmUpByNodes + 1 : 4;
    const auto errors = errors_under({test::NcclFaultKind::hang, 1, after, 0},
                                     std::chrono::milliseconds(300), test);
    expect_one_line_each(errors, "waited more than 0.3 s for the other ranks in NCCL's");
    EXPECT_GT(test::live_nccl_communicators(), 0);
    EXPECT_GT(test::host_module_bytes(), 0U) << "freeing it would wait for the device";
    test::let_nccl_aborts_end(true);
    const Deadline soon = Deadline::after(std::chrono::seconds(20));
    while (test::live_nccl_communicators() > 0 && !soon.passed()) {
      std::this_thread::sleep_for(kAbortPollInterval);
    }
    test::free_host_module();
  }
}

/// `body(rank, …)` on `world` threads; what each threw. Nobody tells the others.
std::vector<std::string> on_threads(
    int world, const std::function<void(int rank, Communicator&, AbortToken&)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  AbortToken nobody;
  auto workers =
      make_thread_communicators(world, Nanoseconds(std::chrono::seconds(20)).count(), nobody);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      try {
        body(rank, *workers[index], nobody);
      } catch (const Error& error) {
        errors[index] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

constexpr NcclOptions kShort{{0, 0}, std::chrono::milliseconds(300)};

TEST_F(NcclFaults, ARankThatNeverJoinsTimesOutOnTheOthers) {
  const auto errors = on_threads(3, [](int rank, Communicator& workers, AbortToken& abort) {
    if (rank == 2) {
      static_cast<void>(workers.broadcast(0, {}));
      return;
    }
    Gpu gpu(double_module(), {.index = rank});
    const NcclCommunicators comms(gpu, workers, kShort, abort);
  });
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_NE(errors[rank].find("waited more than 0.3 s for the other ranks while joining"),
              std::string::npos)
        << errors[rank];
  }
}

TEST_F(NcclFaults, CountsThatDifferTimeOutOnEveryRankByItself) {
  const auto errors = on_threads(3, [](int rank, Communicator& workers, AbortToken& abort) {
    Gpu gpu(double_module(), {.index = rank});
    GpuStream stream(gpu, "of a test", true);
    GpuMemory memory(gpu, 64, "a test");
    NcclCommunicators comms(gpu, workers, kShort, abort);
    NcclMonitor monitor(comms, gpu, stream, kShort.timeout);
    monitor.begin(4, 2);
    comms.all_reduce(NcclCommunicators::kWorld, memory.as<void>(), rank == 1 ? 3 : 4,
                     Precision::fp32, stream);
    monitor.end();
    while (!monitor.idle()) std::this_thread::sleep_for(kAbortPollInterval);
    comms.check();
  });
  expect_one_line_each(errors, "in NCCL's collective (step 2, bucket 4)");
}

TEST_F(NcclFaults, PlansThatDifferAreRefusedBeforeNcclStarts) {
  const auto errors = on_threads(3, [](int rank, Communicator& workers, AbortToken& abort) {
    const Config config;
    const Topology topology(3, 0, 0);
    Gpu gpu(double_module(), {.index = rank});
    const auto synchronizer =
        make_nccl_synchronizer({rank, config, topology, workers, workers, nullptr, abort});
    const std::vector<std::size_t> counts{5, rank == 1 ? std::size_t{8} : std::size_t{7}};
    const BucketPlan plan(counts);
    synchronizer->bind(plan, gpu, {}, std::vector<float>(plan.elements()));
  });
  expect_one_line_each(errors, "rank 1 has another bucket plan than rank 0: 2 buckets of 13");
}

TEST_F(NcclFaults, TwoRanksOnOneGpuAreRefused) {
  Config config;
  config.sync = "sharded";
  config.device = "cuda";
  const auto errors_of_bind = [&] {
    return on_threads(3, [&](int rank, Communicator& workers, AbortToken& abort) {
      const Topology topology(3, 0, 0);
      Gpu gpu(double_module(), {.index = rank / 2});
      const auto synchronizer =
          make_nccl_synchronizer({rank, config, topology, workers, workers, nullptr, abort});
      synchronizer->bind(BucketPlan(std::vector<std::size_t>{5}), gpu, {}, std::vector<float>(5));
    });
  };
  expect_one_line_each(errors_of_bind(),
                       "sync = sharded: ranks 0 and 1 have the same GPU (0000:00:00.0), and NCCL "
                       "refuses two ranks on one GPU; use cuda.collectives = host");
  test::set_nccl_version(21705);
  expect_one_line_each(errors_of_bind(), "is needed; use cuda.collectives = host");
}

TEST_F(NcclFaults, BadInputIsOneLine) {
  Config config;
  config.sync = "nccl";
  config.device = "cuda";
  const auto refusal = [&](int world) {
    try {
      check_nccl(double_module(), world, nccl_user(config));
      return std::string("none");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal(8), "none");
  EXPECT_EQ(
      refusal(9),
      "world = 9 with sync = nccl: this machine has 8 GPUs, and NCCL refuses two ranks on one "
      "GPU; use sync = ring, which goes through the host, or at most 8 ranks");
  test::set_nccl_version(21705);
  EXPECT_NE(refusal(2).find("NCCL 2.17.5 ("), std::string::npos) << refusal(2);
  EXPECT_NE(refusal(2).find(") is too old: 2.18.0 or newer is needed; use sync = ring"),
            std::string::npos);
  test::set_nccl_version(0);
  EXPECT_NE(refusal(2).find("NCCL is missing"), std::string::npos) << refusal(2);
  EXPECT_NE(refusal(2).find("/usr/local/cuda/lib64"), std::string::npos) << refusal(2);
  config.sync = "hierarchical";
  EXPECT_TRUE(refusal(2).starts_with("sync = hierarchical: NCCL is missing")) << refusal(2);
  EXPECT_TRUE(refusal(2).ends_with("; use cuda.collectives = host")) << refusal(2);
  EXPECT_NE(refusal(9).find("use cuda.collectives = host, or at most 8 ranks"), std::string::npos);
}

}  // namespace
}  // namespace paceline
