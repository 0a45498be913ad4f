// SPDX-License-Identifier: Apache-2.0
// The order in which sync=nccl waits, sums and updates, and how it ends when NCCL, a rank or the
// job fails: on the doubles of the CUDA module and of NCCL.
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

ConformanceCase small_case(int world) {
  ConformanceCase test;
  test.config.sync = "nccl";
  test.config.world = world;
  test.config.comm.timeout = std::chrono::seconds(20);
  test.buckets = {40, 9, 17};
  test.optimizer.momentum = 0.5F;
  return test;
}

class NcclFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    test::set_nccl_fault(std::nullopt);
    test::set_nccl_version(22809);
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

TEST_F(NcclFaults, EveryBucketIsWaitedForThenSummedThenUpdatedThenWaitedFor) {
  for (const bool overlap : {true, false}) {
    ConformanceCase test = small_case(2);
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
      EXPECT_EQ(std::ranges::count(gradients, waited), 1)
          << "not the buckets' own events, in order";
      // Forward of step 1 waits for the updates of step 0, then that of step 2 for those of step 1.
      std::vector<const void*> needed(updated.rbegin(), updated.rend());
      needed.insert(needed.end(), updated.rbegin(), updated.rend());
      EXPECT_EQ(std::ranges::count(waits, needed), 1);
    }
    ASSERT_EQ(orders.size(), 2U);
    EXPECT_EQ(orders[0], (std::vector<std::size_t>{40, 9, 17}));
    EXPECT_EQ(orders[1], orders[0]);
  }
}

/// Three steps of three ranks under a fault of rank 1's; every rank's error.
std::vector<std::string> errors_under(const test::NcclFault& fault, Nanoseconds timeout) {
  test::set_nccl_fault(fault);
  ConformanceCase test = small_case(3);
  test.config.comm.timeout = timeout;
  const ConformanceOutcome outcome =
      run_backend(nccl_on_double(), test, [&](ConformanceWorker& worker) {
        for (int t = 0; t < 3; ++t) {
          one_sample_step(worker, t, 3, known_gradient);
        }
        worker.synchronizer.quiesce();
        return StepReport{};
      });
  return outcome.errors;
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

TEST_F(NcclFaults, ARankThatStopsComingTimesOutOnTheOthers) {
  ConformanceCase test = small_case(3);
  test.config.comm.timeout = std::chrono::milliseconds(300);
  const ConformanceOutcome outcome =
      run_backend(nccl_on_double(), test, [&](ConformanceWorker& worker) {
        one_sample_step(worker, 0, 3, known_gradient);
        while (worker.rank == 2) {
          std::this_thread::sleep_for(kAbortPollInterval);
          worker.abort.check();
        }
        one_sample_step(worker, 1, 3, known_gradient);
        worker.synchronizer.quiesce();
        return StepReport{};
      });
  expect_one_line_each(outcome.errors, "waited more than 0.3 s for the other ranks in NCCL's");
  expect_one_line_each(outcome.errors, "(step 1, bucket 0)");
}

TEST_F(NcclFaults, ARankThatDiesEndsTheOthersWithItsReason) {
  const ConformanceOutcome outcome =
      run_backend(nccl_on_double(), small_case(3), [&](ConformanceWorker& worker) {
        one_sample_step(worker, 0, 3, known_gradient);
        if (worker.rank == 2) throw PeerLost("rank 2 is gone");
        one_sample_step(worker, 1, 3, known_gradient);
        worker.synchronizer.quiesce();
        return StepReport{};
      });
  expect_one_line_each(outcome.errors, "rank 2 is gone");
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
  const auto errors = on_threads(3, [](int rank, Communicator& workers, AbortToken&) {
    const Gpu gpu(double_module(), {.index = rank / 2});
    check_own_gpu(gpu, workers);
  });
  expect_one_line_each(errors, "ranks 0 and 1 have the same GPU (0000:00:00.0), and NCCL refuses");
}

TEST_F(NcclFaults, BadInputIsOneLine) {
  const auto refusal = [](int world) {
    try {
      check_nccl(double_module(), world);
      return std::string("none");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refusal(8), "none");
  EXPECT_NE(refusal(9).find("this machine has 8 GPUs, and NCCL refuses two ranks on one GPU; use "
                            "sync=ring (host-staged)"),
            std::string::npos);
  test::set_nccl_version(21705);
  EXPECT_NE(refusal(2).find("NCCL 2.17.5 ("), std::string::npos) << refusal(2);
  EXPECT_NE(refusal(2).find(") is too old: sync = nccl needs 2.18.0"), std::string::npos);
  test::set_nccl_version(0);
  EXPECT_NE(refusal(2).find("NCCL is missing"), std::string::npos) << refusal(2);
  EXPECT_NE(refusal(2).find("/usr/local/cuda/lib64"), std::string::npos) << refusal(2);
}

}  // namespace
}  // namespace paceline
