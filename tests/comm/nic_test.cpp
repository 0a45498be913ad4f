// SPDX-License-Identifier: Apache-2.0
// The emulated network card's clocks. They are virtual, so what they promise is exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/error.h"
#include "common/base/time.h"
#include "common/comm/emulated_nic.h"
#include "tests/comm/transport_harness.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

TEST(ParseLink, ReadsRatesAndLatencies) {
  EXPECT_FALSE(parse_link("link.inter", "none").shaped());
  const LinkSpec gigabit = parse_link("link.inter", "1gbit,50us");
  EXPECT_DOUBLE_EQ(gigabit.bytes_per_second, 125e6);
  EXPECT_EQ(gigabit.latency, 50us);
  EXPECT_DOUBLE_EQ(parse_link("k", "2.5gbit,1ms").bytes_per_second, 312.5e6);
  EXPECT_DOUBLE_EQ(parse_link("k", "100mbit,0us").bytes_per_second, 12.5e6);
  EXPECT_DOUBLE_EQ(parse_link("k", "800kbit,10ns").bytes_per_second, 100e3);
  EXPECT_EQ(parse_link("k", "1gbit,1s").latency, 1s);
}

TEST(ParseLink, NamesKeyAndTextOfWhatItRefuses) {
  for (const char* text :
       {"", "fast", "1gbit", "1gbit,", ",50us", "0gbit,50us", "-1gbit,50us", "1gbit,-5us",
        "1 parsec,50us", "1gbit,50", "1gbit,50us,", "nangbit,1us", "1e999gbit,1us"}) {
    try {
      static_cast<void>(parse_link("link.inter", text));
      ADD_FAILURE() << '"' << text << "\" was taken";
    } catch (const ConfigError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("link.inter"), std::string::npos) << what;
      EXPECT_NE(what.find(text), std::string::npos) << what;
    }
  }
}

/// Runs `body` with a fabric of `nodes` nodes: 1 Gbit/s, 50 us between them, 8 Gbit/s, 5 us within.
void with_fabric(int nodes, const std::function<void(NicFabric&)>& body) {
  AbortToken abort;
  const auto members = make_thread_communicators(1, kTestTimeout.count(), abort);
  const auto fabric = NicFabric::join(*members[0], nodes, parse_link("inter", "1gbit,50us"),
                                      parse_link("intra", "8gbit,5us"));
  body(*fabric);
}

constexpr std::int64_t kPieceNs = kNicPieceBytes * 8;  // at 1 Gbit/s
constexpr std::int64_t kPieces = 64;                   // 1 MiB
constexpr std::int64_t kLatencyNs = 50'000;
/// The clocks are reserved one after the other while real time passes.
constexpr std::int64_t kRounding = 2 * kPieces;

struct Transfer {
  std::int64_t first_depart = 0;
  std::int64_t last_arrive = 0;
};
Transfer send(NicFabric& fabric, int from, int to, std::int64_t pieces = kPieces) {
  Transfer transfer;
  const std::int64_t ready = now_ns();
  for (std::int64_t k = 0; k < pieces; ++k) {
    const std::int64_t depart = fabric.reserve_egress(from, to, kNicPieceBytes, ready);
    transfer.first_depart = k == 0 ? depart : transfer.first_depart;
    transfer.last_arrive = fabric.reserve_ingress(from, to, kNicPieceBytes, depart);
  }
  return transfer;
}

TEST(Nic, ATransferTakesItsBytesOverTheRatePlusTheLatency) {
  with_fabric(2, [](NicFabric& fabric) {
    const Transfer transfer = send(fabric, 0, 1);
    EXPECT_NEAR(static_cast<double>(transfer.last_arrive - transfer.first_depart),
                static_cast<double>(kPieces * kPieceNs + kLatencyNs), kRounding);
  });
}

TEST(Nic, TwoSendersShareAReceiver) {
  with_fabric(3, [](NicFabric& fabric) {
    const Transfer one = send(fabric, 1, 0);
    const Transfer two = send(fabric, 2, 0);
    EXPECT_NEAR(static_cast<double>(std::max(one.last_arrive, two.last_arrive) - one.first_depart),
                static_cast<double>(2 * kPieces * kPieceNs + kLatencyNs), kRounding);
  });
}

TEST(Nic, OneSenderSharesItsCardBetweenReceivers) {
  with_fabric(3, [](NicFabric& fabric) {
    const Transfer one = send(fabric, 0, 1);
    const Transfer two = send(fabric, 0, 2);
    EXPECT_GE(two.first_depart, one.first_depart + kPieces * kPieceNs - kRounding);
    EXPECT_NEAR(static_cast<double>(two.last_arrive - one.first_depart),
                static_cast<double>(2 * kPieces * kPieceNs + kLatencyNs), kRounding);
  });
}

TEST(Nic, BothDirectionsRunAtFullRate) {
  with_fabric(2, [](NicFabric& fabric) {
    const std::int64_t begin = now_ns();
    const Transfer there = send(fabric, 0, 1);
    const Transfer back = send(fabric, 1, 0);
    const std::int64_t reserving = now_ns() - begin;
    EXPECT_LE(std::max(there.last_arrive, back.last_arrive) - there.first_depart,
              kPieces * kPieceNs + kLatencyNs + reserving + kRounding);
  });
}

TEST(Nic, WithinANodeTheOtherLinkApplies) {
  with_fabric(2, [](NicFabric& fabric) {
    EXPECT_DOUBLE_EQ(fabric.link(1, 1).bytes_per_second, 1e9);
    EXPECT_DOUBLE_EQ(fabric.link(0, 1).bytes_per_second, 125e6);
    const Transfer inside = send(fabric, 1, 1);
    EXPECT_NEAR(static_cast<double>(inside.last_arrive - inside.first_depart),
                static_cast<double>(kPieces * kPieceNs / 8 + 5'000), kRounding);
  });
}

TEST(Nic, SmallMessagesPayTheLatencyEachAndNoMore) {
  with_fabric(2, [](NicFabric& fabric) {
    const std::int64_t depart = fabric.reserve_egress(0, 1, 125, now_ns());
    const std::int64_t arrive = fabric.reserve_ingress(0, 1, 125, depart);
    EXPECT_NEAR(static_cast<double>(arrive - depart), 1000.0 + kLatencyNs, 2.0);
  });
}

TEST(Nic, ASenderThatIsLateToBookDoesNotIdleTheWire) {
  with_fabric(3, [](NicFabric& fabric) {
    const std::int64_t ready = now_ns();
    const std::int64_t first = fabric.reserve_egress(0, 1, kNicPieceBytes, ready);
    std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kPieceNs));
    const std::int64_t second = fabric.reserve_egress(0, 1, kNicPieceBytes, ready);
    EXPECT_EQ(second, first + kPieceNs);
  });
}

TEST(Nic, AnIdleWireGivesNoCredit) {
  with_fabric(2, [](NicFabric& fabric) {
    static_cast<void>(fabric.reserve_egress(0, 1, kNicPieceBytes, now_ns()));
    std::this_thread::sleep_for(std::chrono::nanoseconds(4 * kPieceNs));
    const std::int64_t ready = now_ns();
    EXPECT_EQ(fabric.reserve_egress(0, 1, kNicPieceBytes, ready), ready);
    EXPECT_EQ(fabric.reserve_egress(0, 1, kNicPieceBytes, ready), ready + kPieceNs);
  });
}

TEST(Nic, ATransportIsNeverFasterThanTheLink) {
  RankOptions options;
  options.ranks_per_node = 1;
  options.inter = "1gbit,50us";
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  for (const char* kind : {"inproc", "shm", "tcp"}) {
    options.transport.kind = kind;
    std::atomic<std::int64_t> begin{0};  // the sender's; either rank may leave the barrier first
    run_ranks(2, options, [&](RankContext& context) {
      std::vector<std::byte> data(kBytes);
      context.workers.barrier();
      if (context.rank() == 0) {
        begin = now_ns();
      }
      const Ticket ticket = context.rank() == 0 ? context.transport.isend(1, data)
                                                : context.transport.irecv(0, data, Arrival::copy());
      context.transport.wait(ticket, Deadline::after(kTestTimeout));
      if (context.rank() == 1) {
        EXPECT_GE(now_ns() - begin, kPieces * kPieceNs + kLatencyNs) << kind;
      }
      context.workers.barrier();
    });
  }
}

}  // namespace
}  // namespace paceline
