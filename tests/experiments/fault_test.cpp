// SPDX-License-Identifier: Apache-2.0
// Processes of a run that die, stop or are interrupted: all others end within comm.timeout, one
// line names who was lost, nothing stays behind.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cctype>
#include <list>

#include "tests/experiments/program.h"

namespace paceline::test {
namespace {

constexpr std::chrono::milliseconds kTimeout = 2s;  // as in ProgramTest::train
// A sanitizer and a busy machine delay all; the bound shows that nothing waits for a second
// timeout.
constexpr std::chrono::milliseconds kSlack = 1s;

enum class Strike : std::uint8_t { kill, stop };

int signal_of(Strike strike) {
  return strike == Strike::kill ? SIGKILL : SIGSTOP;
}

class Fault : public ProgramTest {
 protected:
  /// Three workers (four on two nodes for hierarchical), two servers where there are servers.
  [[nodiscard]] std::vector<std::string> job(const std::string& sync,
                                             std::vector<std::string> more = {},
                                             bool quiet = true) const {
    std::vector<std::string> arguments = train({"--sync=" + sync}, quiet);
    if (sync == "hierarchical") {
      std::ranges::move(std::vector<std::string>{"--world=4", "topology.ranks_per_node=2"},
                        std::back_inserter(arguments));
    } else {
      arguments.emplace_back("--world=3");
    }
    if (has_servers(sync)) arguments.emplace_back("ps.servers=2");
    std::ranges::move(more, std::back_inserter(arguments));
    return arguments;
  }
  /// The same without end in this test's time, and with a line for every evaluation.
  [[nodiscard]] std::vector<std::string> long_job(const std::string& sync,
                                                  std::vector<std::string> more = {}) const {
    more.insert(more.begin(),
                {"train.samples=100000000", "train.eval_every=240", "compute.emulate=4ms"});
    return job(sync, std::move(more), false);
  }
  static bool has_servers(const std::string& sync) { return sync == "ps" || sync == "asgd"; }

  /// When the process was struck; the program's start if that was never seen.
  static std::int64_t wait_for_strike(Program& program, int member) {
    const pid_t victim = program.wait_for_member(member);
    const auto struck = [&] {
      const ProcessState state = state_of(victim);
      return !state.runs() || state.state == 'T';
    };
    EXPECT_TRUE(wait_until([&] { return program.ended() || struck(); }));
    return program.ended() ? program.start_ns() : now_ns();
  }
  /// Ends with status 1 in time, with one line that begins with `who`.
  void expect_lost(Program& program, std::int64_t struck_ns, const std::string& who) const {
    EXPECT_EQ(program.wait(), 1);
    EXPECT_LT(Nanoseconds(program.end_ns() - struck_ns), kTimeout + kSlack);
    expect_failed(program);
    for (const std::string& error : program.errors())
      EXPECT_EQ(error.rfind(who + " ", 0), 0U) << error;
  }
};

// ---- A rank or a server at a named point

struct Point {
  std::string sync;
  Strike strike;
  std::string where;         ///< MEMBER@PHASE[:STEP]
  std::string setting = {};  ///< a key of the run
};

std::string name_of_point(const testing::TestParamInfo<Point>& info) {
  std::string name =
      info.param.sync + (info.param.strike == Strike::kill ? "Kill" : "Stop") + info.param.where;
  name += info.param.setting;
  std::erase_if(name, [](char c) { return std::isalnum(c) == 0; });
  return name;
}

std::vector<Point> points() {
  std::vector<Point> all;
  for (const std::string sync : {"ps", "ring", "hierarchical", "asgd"}) {
    for (const std::string phase : {"start", "rendezvous", "backward:3", "last"}) {
      all.push_back({sync, Strike::kill, "1@" + phase});
    }
    all.push_back({sync, Strike::stop, "1@backward:3"});
  }
  for (const std::string phase : {"start", "rendezvous", "last"}) {
    all.push_back({"ring", Strike::stop, "1@" + phase});
  }
  all.push_back({"ps", Strike::stop, "0@last"});
  all.push_back({"ring", Strike::kill, "0@commit:2"});
  all.push_back({"local", Strike::kill, "1@backward:9"});
  all.push_back({"gossip", Strike::kill, "1@backward:3"});
  all.push_back({"gossip", Strike::stop, "1@backward:3"});
  // Rank 1 answers the two others, rank 0 calls it.
  for (const std::string where : {"1@backward:3", "0@backward:3", "0@last", "1@last"}) {
    all.push_back({"gossip", Strike::kill, where, "gossip.mode=asynchronous"});
  }
  all.push_back({"gossip", Strike::stop, "1@backward:3", "gossip.mode=asynchronous"});
  for (const std::string phase : {"start", "rendezvous"}) {
    all.push_back({"ps", Strike::kill, "4@" + phase});
    all.push_back({"ps", Strike::stop, "4@" + phase});
  }
  return all;
}

class FaultPoint : public Fault, public testing::WithParamInterface<Point> {};

TEST_P(FaultPoint, EndsTheRunAndIsNamed) {
  const Point& point = GetParam();
  const int member = point.where[0] - '0';
  const char* const key = point.strike == Strike::kill ? "fault.kill" : "fault.stop";
  std::vector<std::string> more{fmt::format("{}={}", key, point.where)};
  if (!point.setting.empty()) more.push_back(point.setting);
  Program program(folder(), {job(point.sync, more)});
  const std::int64_t struck = wait_for_strike(program, member);
  expect_lost(program, struck, member == 4 ? "server 1" : fmt::format("rank {}", member));
}

INSTANTIATE_TEST_SUITE_P(Points, FaultPoint, testing::ValuesIn(points()), name_of_point);

// ---- From outside, in the midst of training

struct Victim {
  std::string name;
  std::string sync;
  Strike strike;
  int member;
  std::string error;  ///< begins so
};

class FaultInTraining : public Fault, public testing::WithParamInterface<Victim> {};

TEST_P(FaultInTraining, EndsTheRunAndIsNamed) {
  const Victim& victim = GetParam();
  Program program(folder(), {long_job(victim.sync)});
  ASSERT_TRUE(program.wait_for_training()) << program.err();
  const pid_t pid = program.wait_for_member(victim.member);
  kill(pid, signal_of(victim.strike));
  expect_lost(program, now_ns(), victim.error);
}

INSTANTIATE_TEST_SUITE_P(
    Victims, FaultInTraining,
    testing::Values(Victim{"PsServerKilled", "ps", Strike::kill, 4, "server 1"},
                    Victim{"PsServerStopped", "ps", Strike::stop, 3, "server 0"},
                    Victim{"AsgdServerKilled", "asgd", Strike::kill, 3, "server 0"},
                    Victim{"AsgdServerStopped", "asgd", Strike::stop, 4, "server 1"},
                    Victim{"RingRankKilled", "ring", Strike::kill, 2, "rank 2"},
                    Victim{"HogwildKilled", "hogwild", Strike::kill, 0, "rank 0"},
                    Victim{"HogwildStopped", "hogwild", Strike::stop, 0, "rank 0"}),
    [](const auto& victim) { return victim.param.name; });

/// Moments that no fault point names: exchange of addresses, first connections, first steps.
class FaultAtAnyMoment : public Fault, public testing::WithParamInterface<Victim> {};

TEST_P(FaultAtAnyMoment, EndsTheRunAndIsNamed) {
  const Victim& victim = GetParam();
  std::vector<std::string> more;
  if (victim.sync == "ring") more.emplace_back("comm.transport=tcp");
  for (int delay_ms = 0; delay_ms <= 120; delay_ms += 15) {
    SCOPED_TRACE(fmt::format("{} ms after its start", delay_ms));
    Program program(folder(), {long_job(victim.sync, more)});
    const pid_t pid = program.wait_for_member(victim.member);
    ASSERT_GT(pid, 0) << program.err();
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(pid, SIGKILL);
    expect_lost(program, now_ns(), victim.error);
  }
}

INSTANTIATE_TEST_SUITE_P(Victims, FaultAtAnyMoment,
                         testing::Values(Victim{"PsServer", "ps", Strike::kill, 3, "server 0"},
                                         Victim{"PsRank", "ps", Strike::kill, 1, "rank 1"},
                                         Victim{"RingRank", "ring", Strike::kill, 2, "rank 2"},
                                         Victim{"HierarchicalRank", "hierarchical", Strike::kill, 3,
                                                "rank 3"}),
                         [](const auto& victim) { return victim.param.name; });

// ---- The launcher

TEST_F(Fault, AKilledLauncherLeavesNobody) {
  for (const std::string sync : {"ps", "ring", "hogwild"}) {
    SCOPED_TRACE(sync);
    Program program(folder(), {long_job(sync)});
    ASSERT_TRUE(program.wait_for_training()) << program.err();
    if (sync == "ring") kill(program.wait_for_member(1), SIGSTOP);
    program.signal(SIGKILL);
    EXPECT_EQ(program.wait(), 128 + SIGKILL);
    EXPECT_TRUE(wait_until([&] { return program.nobody_left(); }, kTimeout));
    expect_nothing_left(program);
  }
}

TEST_F(Fault, MembersOfAStoppedLauncherEndByThemselves) {
  Program program(folder(), {long_job("ps")});
  ASSERT_TRUE(program.wait_for_training()) << program.err();
  program.signal(SIGSTOP);
  EXPECT_TRUE(wait_until([&] { return processes_of_session(program.pid()).size() == 1; },
                         kTimeout + kSlack));
  for (const std::string& error : program.errors()) {
    EXPECT_NE(error.find("(launcher or rank 0) was lost: silent"), std::string::npos) << error;
  }
  program.signal(SIGCONT);
  EXPECT_EQ(program.wait(), 1);
  expect_nothing_left(program);
}

// ---- Ranks that were started by hand

struct ByHand {
  std::string name;
  std::vector<std::string> arguments;
  Strike strike;
  int victim;
};

std::string free_endpoint() {
  const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(probe.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return fmt::format("127.0.0.1:{}", ntohs(address.sin_port));
}

class FaultByHand : public Fault, public testing::WithParamInterface<ByHand> {
 protected:
  void start() {
    const std::string hub = free_endpoint();
    const char* const key = GetParam().strike == Strike::kill ? "fault.kill" : "fault.stop";
    for (int rank = 0; rank < 3; ++rank) {
      std::vector<std::string> arguments =
          train({fmt::format("--rank={}", rank), "--world=3", "--hub=" + hub,
                 fmt::format("{}={}@backward:3", key, GetParam().victim)});
      std::ranges::copy(GetParam().arguments, std::back_inserter(arguments));
      ranks_.emplace_back(folder(), ProgramOptions{arguments});
    }
  }
  /// The lines of all survivors, who end in time.
  std::vector<std::string> survivors_errors(std::int64_t struck_ns) {
    std::vector<std::string> errors;
    int number = 0;
    for (Program& rank : ranks_) {
      if (number++ == GetParam().victim) continue;
      EXPECT_EQ(rank.wait(), 1) << rank.err();
      EXPECT_LT(Nanoseconds(rank.end_ns() - struck_ns), kTimeout + kSlack);
      EXPECT_LE(rank.errors().size(), 1U) << rank.err();
      std::ranges::move(rank.errors(), std::back_inserter(errors));
      expect_nothing_left(rank);
    }
    return errors;
  }
  Program& victim() { return *std::next(ranks_.begin(), GetParam().victim); }

 private:
  std::list<Program> ranks_;
};

TEST_P(FaultByHand, SurvivorsEnd) {
  start();
  ASSERT_TRUE(
      wait_until([&] { return victim().ended() || state_of(victim().pid()).state == 'T'; }));
  const std::vector<std::string> errors = survivors_errors(now_ns());
  if (GetParam().victim == 0) {  // with the hub gone, everyone says so itself
    ASSERT_EQ(errors.size(), 2U);
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("(launcher or rank 0) was lost"), std::string::npos) << error;
    }
  } else {
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0].rfind("rank 1 lost: ", 0), 0U) << errors[0];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, FaultByHand,
    testing::Values(
        ByHand{"RingKilled", {"--sync=ring"}, Strike::kill, 1},
        ByHand{"RingStopped", {"--sync=ring"}, Strike::stop, 1},
        ByHand{"RingRankZeroKilled", {"--sync=ring"}, Strike::kill, 0},
        ByHand{"RingRankZeroStopped", {"--sync=ring"}, Strike::stop, 0},
        ByHand{"PsKilled", {"--sync=ps", "ps.placement=colocated"}, Strike::kill, 1},
        ByHand{"PsServersRankKilled", {"--sync=ps", "ps.placement=colocated"}, Strike::kill, 0}),
    [](const auto& ranks) { return ranks.param.name; });

}  // namespace
}  // namespace paceline::test
