// SPDX-License-Identifier: Apache-2.0
// Every transport between threads as ranks: bytes, order, sums, errors, abort.
#include "common/comm/transport.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/error.h"
#include "tests/comm/transport_harness.h"

namespace paceline {
namespace {

struct Case {
  const char* name;
  const char* kind;
  const char* host;
  int connections;
  const char* intra;  ///< emulated link
};

class EveryTransport : public testing::TestWithParam<Case> {
 protected:
  static RankOptions options() {
    RankOptions options;
    options.transport.kind = GetParam().kind;
    options.transport.host = GetParam().host;
    options.transport.tcp_connections = GetParam().connections;
    options.transport.timeout = kTestTimeout;
    options.intra = GetParam().intra;
    return options;
  }
};

Deadline soon() {
  return Deadline::after(kTestTimeout);
}

constexpr std::size_t kSizes[] = {0, 1, 3, 1000, 65'537, 1'000'003};

TEST_P(EveryTransport, DeliversToEveryPeerInBothDirectionsAtOnce) {
  for (int world = 1; world <= 4; ++world) {
    run_ranks(world, options(), [](RankContext& context) {
      const int self = context.rank();
      for (const std::size_t size : kSizes) {
        std::vector<std::byte> mine(size);
        fill_bytes(mine, self);
        std::vector<std::vector<std::byte>> theirs(static_cast<std::size_t>(context.size()),
                                                   std::vector<std::byte>(size));
        std::vector<Ticket> tickets;
        for (int peer = 0; peer < context.size(); ++peer) {
          if (peer != self) {
            tickets.push_back(context.transport.irecv(peer, theirs[static_cast<std::size_t>(peer)],
                                                      Arrival::copy()));
            tickets.push_back(context.transport.isend(peer, mine));
          }
        }
        for (const Ticket& ticket : tickets) {
          context.transport.wait(ticket, soon());
        }
        for (int peer = 0; peer < context.size(); ++peer) {
          if (peer != self) {
            ASSERT_EQ(first_wrong(theirs[static_cast<std::size_t>(peer)], peer), -1)
                << "rank " << self << " from " << peer << ", " << size << " bytes";
          }
        }
      }
    });
  }
}

/// dst = own pattern + the peer's, in its own or the transport's memory.
template <typename T>
void exchange_sum(RankContext& context, std::size_t count, DataType type, bool allocated) {
  const int peer = 1 - context.rank();
  std::vector<T> own_memory(2 * count + 2);
  std::unique_ptr<CommBuffer> buffer;
  T* memory = own_memory.data();
  if (allocated) {
    buffer = context.transport.allocate(own_memory.size() * sizeof(T));
    memory = reinterpret_cast<T*>(buffer->bytes().data());
  }
  const std::span<T> sent(memory, count);
  const std::span<T> sum(memory + count + 1, count);
  fill_pattern(sent, context.rank());
  fill_pattern(sum, context.rank());
  const Ticket receiving =
      context.transport.irecv(peer, std::as_writable_bytes(sum), Arrival::sum(type));
  const Ticket sending = context.transport.isend(peer, std::as_bytes(sent));
  context.transport.wait(receiving, soon());
  context.transport.wait(sending, soon());
  for (std::size_t j = 0; j < count; ++j) {
    ASSERT_EQ(sum[j], static_cast<T>(2 * ((j % 100'000) * kStride) + 1)) << "element " << j;
  }
  context.workers.barrier();  // the memory may still be read by the peer until here
}

TEST_P(EveryTransport, AddsWhatArrives) {
  run_ranks(2, options(), [](RankContext& context) {
    for (const std::size_t count : {0, 1, 3, 1000, 100'003}) {
      for (const bool allocated : {false, true}) {
        exchange_sum<float>(context, count, DataType::f32, allocated);
        exchange_sum<std::int64_t>(context, count, DataType::i64, allocated);
      }
    }
  });
}

TEST_P(EveryTransport, KeepsTheOrderOfManyMessagesInFlight) {
  run_ranks(2, options(), [](RankContext& context) {
    constexpr std::size_t kMessages = 300;
    const auto length = [](std::size_t k) { return k * 37 % 5000; };
    const int peer = 1 - context.rank();
    std::vector<std::vector<std::byte>> out(kMessages);
    std::vector<std::vector<std::byte>> in(kMessages);
    std::vector<Ticket> tickets;
    for (std::size_t k = 0; k < kMessages; ++k) {
      out[k].assign(length(k), static_cast<std::byte>(k + static_cast<std::size_t>(peer)));
      in[k].resize(length(k));
      tickets.push_back(context.transport.isend(peer, out[k]));
    }
    for (auto& message : in) {
      tickets.push_back(context.transport.irecv(peer, message, Arrival::copy()));
    }
    for (const Ticket& ticket : tickets) {
      context.transport.wait(ticket, soon());
    }
    for (std::size_t k = 0; k < kMessages; ++k) {
      const auto wanted = static_cast<std::byte>(k + static_cast<std::size_t>(context.rank()));
      ASSERT_TRUE(std::ranges::all_of(in[k], [&](std::byte b) { return b == wanted; }))
          << "message " << k;
    }
  });
}

TEST_P(EveryTransport, CountsWhatItSent) {
  run_ranks(2, options(), [](RankContext& context) {
    constexpr std::size_t kBytes = 100'000;
    std::vector<std::byte> data(kBytes);
    const std::uint64_t before = context.transport.bytes_sent();
    if (context.rank() == 0) {
      context.transport.wait(context.transport.isend(1, data), soon());
      const std::uint64_t sent = context.transport.bytes_sent() - before;
      EXPECT_GE(sent, kBytes);
      EXPECT_LT(sent, kBytes + kBytes / 50) << "framing";
    } else {
      context.transport.wait(context.transport.irecv(0, data, Arrival::copy()), soon());
      EXPECT_EQ(context.transport.bytes_sent(), before);
    }
    context.workers.barrier();
  });
}

TEST_P(EveryTransport, AMessageOfAnotherLengthIsAnErrorThatNamesBoth) {
  const auto errors = run_ranks_caught(2, options(), [](RankContext& context) {
    std::vector<std::byte> data(context.rank() == 0 ? 40 : 24);
    const Ticket ticket = context.rank() == 0 ? context.transport.isend(1, data)
                                              : context.transport.irecv(0, data, Arrival::copy());
    context.transport.wait(ticket, soon());
    if (context.rank() == 0) {
      context.workers.barrier();  // ends with the loss of rank 1
    }
  });
  EXPECT_NE(errors[1].find("40"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("24"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0], "");
}

TEST_P(EveryTransport, AWaitEndsAtItsDeadlineAndNamesThePeer) {
  run_ranks(2, options(), [](RankContext& context) {
    if (context.rank() == 0) {
      std::vector<std::byte> data(8);
      const Ticket ticket = context.transport.irecv(1, data, Arrival::copy());
      try {
        context.transport.wait(ticket, Deadline::after(std::chrono::milliseconds(60)));
        ADD_FAILURE() << "nothing was sent";
      } catch (const TimeoutError& error) {
        EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      }
      context.workers.barrier();
    } else {
      context.workers.barrier();
    }
  });
}

TEST_P(EveryTransport, AbortEndsAWait) {
  const auto errors = run_ranks_caught(2, options(), [](RankContext& context) {
    if (context.rank() == 0) {
      std::vector<std::byte> data(8);
      context.transport.wait(context.transport.irecv(1, data, Arrival::copy()), soon());
    } else {
      sleep_until_ns(now_ns() + 50'000'000);
      context.abort.request(std::make_exception_ptr(Error("enough")));
    }
  });
  EXPECT_EQ(errors[0], "enough");
}

TEST_P(EveryTransport, APeerThatLeavesEndsAWait) {
  const auto errors = run_ranks_caught(2, options(), [](RankContext& context) {
    if (context.rank() == 0) {
      std::vector<std::byte> data(8);
      context.transport.wait(context.transport.irecv(1, data, Arrival::copy()), soon());
    }
  });
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryTransport,
    testing::Values(Case{"inproc", "inproc", "127.0.0.1", 1, "none"},
                    Case{"shm", "shm", "127.0.0.1", 1, "none"},
                    Case{"tcp4", "tcp", "127.0.0.1", 1, "none"},
                    Case{"tcp6", "tcp", "::1", 1, "none"},
                    Case{"tcp_three_connections", "tcp", "127.0.0.1", 3, "none"},
                    Case{"inproc_shaped", "inproc", "127.0.0.1", 1, "10gbit,20us"},
                    Case{"shm_shaped", "shm", "127.0.0.1", 1, "10gbit,20us"},
                    Case{"tcp_shaped", "tcp", "127.0.0.1", 1, "10gbit,20us"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(MakeTransport, RefusesAnUnknownNameOnEveryRank) {
  RankOptions options;
  options.transport.kind = "carrier-pigeon";
  const auto errors = run_ranks_caught(2, options, [](RankContext&) {});
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("carrier-pigeon"), std::string::npos) << error;
    EXPECT_NE(error.find("inproc"), std::string::npos) << error;
  }
}

TEST(MakeTransport, RefusesConnectionsOutOfRangeAndHostsOfOthers) {
  RankOptions options;
  options.transport.tcp_connections = 65;
  EXPECT_NE(run_ranks_caught(1, options, [](RankContext&) {})[0].find("1 to 64"),
            std::string::npos);
  options.transport.tcp_connections = 1;
  options.transport.host = "192.0.2.1";  // reserved for documentation (RFC 5737)
  EXPECT_NE(run_ranks_caught(1, options, [](RankContext&) {})[0].find("192.0.2.1"),
            std::string::npos);
}

}  // namespace
}  // namespace paceline
