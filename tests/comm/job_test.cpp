// SPDX-License-Identifier: Apache-2.0
// The control plane with threads as members: rendezvous, collectives, refusals, failures.
#include "common/comm/job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>

#include "tests/comm/job_harness.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

const std::string kHost = "127.0.0.1";

TEST(Job, EveryMemberSeesEveryBlob) {
  for (const int world : {1, 2, 5}) {
    const JobSpec spec = job_spec(world, 2, 10s);
    const JobHub hub(spec, kHost, 0);
    const auto outcomes =
        run_members(spec, kHost, hub.port(), [&](JobMember& job, int member, AbortToken&) {
          EXPECT_EQ(job.everyone().rank(), member);
          EXPECT_EQ(job.everyone().size(), world + 2);
          EXPECT_EQ(job.workers() == nullptr, member >= world);
          for (int round = 0; round < 20; ++round) {
            const auto all = job.everyone().allgather(fmt::format("{}:{}", member, round));
            ASSERT_EQ(all.size(), static_cast<std::size_t>(world + 2));
            for (int peer = 0; peer < world + 2; ++peer) {
              EXPECT_EQ(all[static_cast<std::size_t>(peer)], fmt::format("{}:{}", peer, round));
            }
            if (member < world) {
              const std::vector<double> mine{static_cast<double>(member), 1.0};
              const auto sum = job.workers()->sum(mine);
              EXPECT_EQ(sum, (std::vector<double>{world * (world - 1) / 2.0, 1.0 * world}));
              EXPECT_EQ(job.workers()->broadcast(world - 1, fmt::format("from {}", member)),
                        fmt::format("from {}", world - 1));
            }
          }
        });
    for (const std::string& outcome : outcomes) {
      EXPECT_EQ(outcome, "done");
    }
    EXPECT_EQ(hub.failure(), "");
  }
}

TEST(Job, LargeBlobsOfUnequalSizes) {
  const JobSpec spec = job_spec(3, 0, 20s);
  const JobHub hub(spec, kHost, 0);
  const auto blob_of = [](int member) {
    std::string blob(static_cast<std::size_t>(member) * 5'000'011, '\0');
    std::iota(blob.begin(), blob.end(), static_cast<char>(member));
    return blob;
  };
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [&](JobMember& job, int member, AbortToken&) {
        const auto all = job.everyone().allgather(blob_of(member));
        for (int peer = 0; peer < 3; ++peer) {
          EXPECT_TRUE(all[static_cast<std::size_t>(peer)] == blob_of(peer)) << peer;
        }
      });
  EXPECT_EQ(outcomes, (std::vector<std::string>(3, "done")));
}

TEST(Job, TooLargeABlobIsRefusedByItsSender) {
  const JobSpec spec = job_spec(1, 0, 5s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes = run_members(spec, kHost, hub.port(), [](JobMember& job, int, AbortToken&) {
    static_cast<void>(job.everyone().allgather(std::string((64 << 20) + 1, 'x')));
  });
  EXPECT_EQ(outcomes[0],
            "error: a member's part of a collective is 67108865 bytes, at most 67108864 are "
            "allowed");
}

TEST(Job, WorksOverIpv6) {
  const JobSpec spec = job_spec(2, 0, 5s);
  std::unique_ptr<JobHub> hub;
  try {
    hub = std::make_unique<JobHub>(spec, "::1", 0);
  } catch (const ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  const auto outcomes = run_members(
      spec, "::1", hub->port(), [](JobMember& job, int, AbortToken&) { job.everyone().barrier(); });
  EXPECT_EQ(outcomes, (std::vector<std::string>(2, "done")));
}

TEST(Job, PortInUseNamesTheEndpoint) {
  const JobSpec spec = job_spec(1, 0, 1s);
  const JobHub first(spec, kHost, 0);
  const std::string outcome = outcome_of([&] { const JobHub second(spec, kHost, first.port()); });
  EXPECT_EQ(outcome.rfind(fmt::format("config: cannot listen on 127.0.0.1:{}: Address already in "
                                      "use",
                                      first.port()),
                          0),
            0U)
      << outcome;
}

TEST(Job, MemberWaitsForAHubThatStartsLater) {
  const JobSpec spec = job_spec(1, 0, 5s);
  std::uint16_t port = 0;
  {
    const JobHub probe(spec, kHost, 0);
    port = probe.port();
  }
  std::string outcome;
  std::thread member([&] {
    outcome = outcome_of([&] {
      AbortToken abort;
      JobMember job(spec, 0, kHost, port, abort);
      job.everyone().barrier();
    });
  });
  std::this_thread::sleep_for(150ms);
  {
    const JobHub hub(spec, kHost, port);
    member.join();
  }
  EXPECT_EQ(outcome, "done");
}

TEST(Job, NoHubWithinTheTimeoutIsALossOfIt) {
  const JobSpec spec = job_spec(2, 0, 300ms);
  std::uint16_t port = 0;
  {
    const JobHub probe(spec, kHost, 0);
    port = probe.port();
  }
  const std::string outcome = outcome_of([&] {
    AbortToken abort;
    const JobMember job(spec, 1, kHost, port, abort);
  });
  EXPECT_EQ(outcome, fmt::format("hub: rank 1 could not reach the job's hub at 127.0.0.1:{} "
                                 "within 0.3 s: Connection refused",
                                 port));
}

TEST(Job, MissingMembersAreNamed) {
  const JobSpec spec = job_spec(3, 1, 500ms);
  const JobHub hub(spec, kHost, 0);
  const std::string outcome = outcome_of([&] {
    AbortToken abort;
    const JobMember job(spec, 1, kHost, hub.port(), abort);
  });
  EXPECT_EQ(outcome, "timeout: rank 0, rank 2 and server 0 did not join within 0.5 s");
  EXPECT_EQ(hub.failure(), "rank 0, rank 2 and server 0 did not join within 0.5 s");
}

/// A member of `spec` that joins against `hub` as `other` says; `peer` is rank 0 of the job.
struct Refused {
  std::string intruder;
  std::string peer;
};
Refused join_wrongly(const JobSpec& spec, const JobSpec& other, int member) {
  const JobHub hub(spec, kHost, 0);
  Refused refused;
  std::thread peer([&] {
    refused.peer = outcome_of([&] {
      AbortToken abort;
      const JobMember job(spec, 0, kHost, hub.port(), abort);
    });
  });
  std::this_thread::sleep_for(50ms);
  refused.intruder = outcome_of([&] {
    AbortToken abort;
    const JobMember job(other, member, kHost, hub.port(), abort);
  });
  peer.join();
  return refused;
}

TEST(Job, TwoWithTheSameNumberEndTheJob) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const Refused refused = join_wrongly(spec, spec, 0);
  // Which of the two came first is open; both must hear the same.
  EXPECT_EQ(refused.intruder,
            "config: rank 0 joined twice: every process needs a number of its own");
  EXPECT_EQ(refused.peer, "config: rank 0 joined twice: every process needs a number of its own");
}

TEST(Job, AnotherConfigurationEndsTheJob) {
  const JobSpec spec = job_spec(2, 0, 5s);
  JobSpec other = spec;
  other.config_digest = "something-else";
  const Refused refused = join_wrongly(spec, other, 1);
  EXPECT_EQ(refused.intruder,
            "config: rank 1 runs another configuration (digest something-else instead of "
            "digest-of-the-te)");
  EXPECT_EQ(refused.peer, refused.intruder);
}

TEST(Job, AnotherWorldSizeEndsTheJob) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const Refused refused = join_wrongly(spec, job_spec(3, 0, 5s), 1);
  EXPECT_EQ(refused.intruder, "config: rank 1 expects 3 ranks and 0 servers, the job has 2 and 0");
  EXPECT_EQ(refused.peer, refused.intruder);
}

TEST(Job, AMemberNumberOutsideTheJobEndsIt) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const Refused refused = join_wrongly(spec, spec, 7);
  EXPECT_EQ(refused.intruder, "config: member number 7 is outside 0..1");
  EXPECT_EQ(refused.peer, refused.intruder);
}

TEST(Job, ALeftoverOfAnotherJobIsRefusedAndHarmsNothing) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const JobHub hub(spec, kHost, 0);
  JobSpec stale = spec;
  stale.nonce = 0x77;
  const std::string outcome = outcome_of([&] {
    AbortToken abort;
    const JobMember job(stale, 0, kHost, hub.port(), abort);
  });
  EXPECT_EQ(outcome, fmt::format("hub: the job at port {} is another one: its nonce is not 0x77",
                                 hub.port()));
  const auto outcomes = run_members(
      spec, kHost, hub.port(), [](JobMember& job, int, AbortToken&) { job.everyone().barrier(); });
  EXPECT_EQ(outcomes, (std::vector<std::string>(2, "done")));
}

TEST(Job, ADuplicateInARunningJobIsRefusedAlone) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [&](JobMember& job, int member, AbortToken&) {
        if (member == 1) {
          EXPECT_EQ(outcome_of([&] {
                      AbortToken abort;
                      const JobMember again(spec, 0, kHost, hub.port(), abort);
                    }),
                    "config: rank 0 joined twice: every process needs a number of its own");
        }
        job.everyone().barrier();
      });
  EXPECT_EQ(outcomes, (std::vector<std::string>(2, "done")));
}

TEST(Job, WhoDoesNotReachACollectiveIsNamed) {
  const JobSpec spec = job_spec(4, 0, 500ms);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken& abort) {
        if (member != 3) {
          job.everyone().barrier();
        }
        while (true) {  // alive, but elsewhere
          abort.check();
          std::this_thread::sleep_for(5ms);
        }
      });
  for (const std::string& outcome : outcomes) {
    EXPECT_EQ(outcome, "timeout: rank 3 did not reach the collective within 0.5 s");
  }
}

TEST(Job, AMemberThatLeavesEndsTheCollectiveThatNeedsIt) {
  const JobSpec spec = job_spec(2, 1, 10s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken&) {
        if (member != 2) {
          job.everyone().barrier();
        }
      });
  EXPECT_EQ(outcomes[0], "lost: server 0 ended while the others waited for it in a collective");
  EXPECT_EQ(outcomes[1], outcomes[0]);
  EXPECT_EQ(outcomes[2], "done");
}

TEST(Job, CollectivesOutOfStepAreAnErrorNotAMixUp) {
  const JobSpec spec = job_spec(2, 0, 1s);
  const JobHub hub(spec, kHost, 0);
  // Rank 0 calls the workers' collective, rank 1 everyone's: neither may get the other's blob.
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken&) {
        Communicator& group = member == 0 ? *job.workers() : job.everyone();
        static_cast<void>(group.allgather(std::to_string(member)));
      });
  for (const std::string& outcome : outcomes) {
    EXPECT_NE(outcome.find("did not reach the collective within 1.0 s"), std::string::npos)
        << outcome;
  }
}

TEST(Job, TheFirstReasonWinsEverywhere) {
  const JobSpec spec = job_spec(4, 0, 5s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken&) {
        if (member == 2) {
          throw Error("the loss is nan at step 17");
        }
        job.everyone().barrier();
      });
  EXPECT_EQ(outcomes[2], "error: the loss is nan at step 17");
  for (const int member : {0, 1, 3}) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(member)],
              "error: rank 2 failed: the loss is nan at step 17");
  }
  EXPECT_EQ(hub.failure(), "rank 2 failed: the loss is nan at step 17");
}

TEST(Job, AFailureThatFollowsFromALossGivesWayToIt) {
  const JobSpec spec = job_spec(3, 0, 4s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken&) {
        job.everyone().barrier();
        if (member == 0) {
          job.fail(PeerLost("rank 1 closed its connection"));  // noticed before the hub did
        } else if (member == 1) {
          std::this_thread::sleep_for(20ms);
          job.fail(std::string("out of memory"));
          return;
        }
        job.everyone().barrier();
      });
  EXPECT_EQ(hub.failure(), "rank 1 failed: out of memory");
  EXPECT_EQ(outcomes[2], "error: rank 1 failed: out of memory");
}

TEST(Job, AFailureWithoutAnotherCauseIsReportedAfterAWhile) {
  const JobSpec spec = job_spec(2, 0, 2s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken&) {
        if (member == 0) {
          throw TimeoutError("rank 0 got no gradients within 2.0 s");
        }
        job.everyone().barrier();
      });
  EXPECT_EQ(outcomes[1], "error: rank 0 failed: rank 0 got no gradients within 2.0 s");
}

TEST(Job, UnwindingWithoutAReasonIsALoss) {
  const JobSpec spec = job_spec(2, 0, 5s);
  const JobHub hub(spec, kHost, 0);
  std::vector<std::string> outcomes(2);
  std::vector<std::thread> threads;
  for (int member = 0; member < 2; ++member) {
    threads.emplace_back([&, member] {
      outcomes[static_cast<std::size_t>(member)] = outcome_of([&] {
        AbortToken abort;
        JobMember job(spec, member, kHost, hub.port(), abort);
        if (member == 1) {
          throw Error("nobody hears of this");
        }
        job.everyone().barrier();
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(outcomes[0], "lost: rank 1 lost: connection closed");
}

TEST(Job, AbortReachesEveryToken) {
  const JobSpec spec = job_spec(3, 0, 5s);
  JobHub hub(spec, kHost, 0);
  std::thread launcher([&] {
    std::this_thread::sleep_for(100ms);
    hub.abort("rank 2 was killed by signal 9 (SIGKILL)");
  });
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember&, int, AbortToken& abort) {
        while (true) {
          abort.check();
          std::this_thread::sleep_for(5ms);
        }
      });
  launcher.join();
  EXPECT_EQ(outcomes,
            (std::vector<std::string>(3, "error: rank 2 was killed by signal 9 (SIGKILL)")));
}

TEST(Job, AMembersOwnTokenEndsItsWaits) {
  const JobSpec spec = job_spec(2, 0, 10s);
  const JobHub hub(spec, kHost, 0);
  const auto outcomes =
      run_members(spec, kHost, hub.port(), [](JobMember& job, int member, AbortToken& abort) {
        if (member == 0) {
          abort.request(std::make_exception_ptr(Interrupted("interrupted by SIGINT", 2)));
        }
        job.everyone().barrier();
      });
  EXPECT_EQ(outcomes[0], "interrupted: interrupted by SIGINT");
  EXPECT_EQ(outcomes[1], "error: rank 0 failed: interrupted by SIGINT");
}

// A timer that fires while its hub or member is being destroyed must not keep it alive.
TEST(Job, ManyShortJobsEnd) {
  const JobSpec spec = job_spec(2, 0, 100ms);  // a tick every 2.5 ms
  for (int job = 0; job < 200; ++job) {
    const JobHub hub(spec, kHost, 0);
    static_cast<void>(run_members(spec, kHost, hub.port(), [job](JobMember&, int, AbortToken&) {
      std::this_thread::sleep_for(std::chrono::microseconds(job * 50));
    }));
  }
}

TEST(Job, NamesMembers) {
  EXPECT_EQ(member_name(0, 2), "rank 0");
  EXPECT_EQ(member_name(1, 2), "rank 1");
  EXPECT_EQ(member_name(2, 2), "server 0");
  EXPECT_EQ(member_name(4, 2), "server 2");
}

}  // namespace
}  // namespace paceline
