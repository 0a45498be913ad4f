// SPDX-License-Identifier: Apache-2.0
// Transports between processes: the bytes arrive, a killed rank ends every wait, nothing is left.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <string>

#include "tests/comm/process_harness.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class BetweenProcesses : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { before_ = shared_memory_files(); }
  void TearDown() override { EXPECT_EQ(shared_memory_files(), before_); }

  static std::unique_ptr<Transport> connect(Communicator& workers, AbortToken& abort) {
    TransportOptions options;
    options.kind = GetParam();
    options.timeout = kTestTimeout;
    return make_transport(options, workers, Topology(workers.size(), 0, 0), nullptr, abort);
  }

 private:
  std::set<std::string> before_;
};

TEST_P(BetweenProcesses, EveryPairExchangesOwnAndAllocatedMemory) {
  const auto results = fork_ranks(3, [](Communicator& workers, AbortToken& abort) {
    const auto transport = connect(workers, abort);
    const Deadline deadline = Deadline::after(kTestTimeout);
    for (const std::size_t size : {0, 1, 1000, 1'000'003}) {
      std::vector<std::byte> own(size);
      fill_bytes(own, workers.rank());
      const auto allocated = transport->allocate(size + 1);
      std::ranges::copy(own, allocated->bytes().begin());
      for (int round = 1; round < workers.size(); ++round) {
        const int to = (workers.rank() + round) % workers.size();
        const int from = (workers.rank() + workers.size() - round) % workers.size();
        for (const std::span<const std::byte> source :
             {std::span<const std::byte>(own),
              std::span<const std::byte>(allocated->bytes().first(size))}) {
          std::vector<std::byte> in(size);
          const Ticket receiving = transport->irecv(from, in, Arrival::copy());
          const Ticket sending = transport->isend(to, source);
          transport->wait(receiving, deadline);
          transport->wait(sending, deadline);
          if (first_wrong(in, from) >= 0) {
            throw Error(fmt::format("byte {} of {} from rank {} is wrong", first_wrong(in, from),
                                    size, from));
          }
        }
      }
      workers.barrier();
    }
  });
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    EXPECT_EQ(results[rank].status, 0) << "rank " << rank << ": " << results[rank].message;
  }
}

TEST_P(BetweenProcesses, AKilledRankEndsTheOthersWaits) {
  constexpr int kVictim = 1;
  constexpr Nanoseconds kTimeout = 2s;
  const auto results = fork_ranks(3, [&](Communicator& workers, AbortToken& abort) {
    const auto transport = connect(workers, abort);
    std::vector<std::byte> data(4 << 20);
    if (workers.rank() == kVictim) {
      // In the middle of a message to rank 0, and owing rank 2 one.
      static_cast<void>(transport->isend(0, data));
      transport->progress();
      kill(getpid(), SIGKILL);
    }
    // Without a control plane, a wait for shared memory ends at its deadline.
    const Ticket first = transport->irecv(kVictim, data, Arrival::copy());
    transport->wait(first, Deadline::after(kTimeout));
    std::vector<std::byte> more(8);
    transport->wait(transport->irecv(kVictim, more, Arrival::copy()), Deadline::after(kTimeout));
  });
  EXPECT_EQ(results[kVictim].signal, SIGKILL);
  for (const std::size_t survivor : {0U, 2U}) {
    EXPECT_EQ(results[survivor].status, 1) << "rank " << survivor;
    EXPECT_NE(results[survivor].message.find("rank 1"), std::string::npos)
        << results[survivor].message;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BetweenProcesses, testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Inproc, ThreadsOnlyTransportIsRefusedByName) {
  const auto results = fork_ranks(2, [](Communicator& workers, AbortToken& abort) {
    TransportOptions options;
    options.kind = "inproc";
    static_cast<void>(
        make_transport(options, workers, Topology(workers.size(), 0, 0), nullptr, abort));
  });
  for (const ProcessResult& result : results) {
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.message.find("comm.transport=inproc"), std::string::npos) << result.message;
  }
}

}  // namespace
}  // namespace paceline
