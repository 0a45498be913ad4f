// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM, to a run and to a comparison; a comparison in which a run fails.
#include "tests/experiments/program.h"

namespace paceline::test {
namespace {

constexpr std::chrono::milliseconds kLimit = 2s;

struct Case {
  std::string name;
  std::string sync;
  int signal;
  bool group;        ///< as a terminal does it; else to the launcher alone
  std::string stop;  ///< this member stops itself there before the signal comes
};

class Interrupt : public ProgramTest, public testing::WithParamInterface<Case> {
 protected:
  /// After the signal all end in time, with one line and the status that shells know.
  void expect_interrupted(Program& program, int signal, bool group) {
    const std::int64_t sent = now_ns();
    group ? program.signal_group(signal) : program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_LT(Nanoseconds(program.end_ns() - sent), kLimit);
    EXPECT_TRUE(program.nobody_left());
    ASSERT_EQ(program.errors().size(), 1U) << program.err();
    EXPECT_EQ(program.errors()[0], "interrupted by " + signal_text(signal));
  }
  static std::string signal_text(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }
};

TEST_P(Interrupt, StopsAllInTime) {
  const Case& parameter = GetParam();
  std::vector<std::string> arguments =
      train({"--sync=" + parameter.sync, "--world=3", "train.samples=100000000",
             "train.eval_every=240", "compute.emulate=4ms", "comm.timeout=30s"},
            false);
  if (!parameter.stop.empty()) arguments.push_back("fault.stop=" + parameter.stop);
  Program program(folder(), {arguments});
  if (parameter.stop.empty()) {
    ASSERT_TRUE(program.wait_for_training()) << program.err();
  } else {
    const pid_t stopped = program.wait_for_member(parameter.stop[0] - '0');
    ASSERT_TRUE(wait_until([&] { return state_of(stopped).state == 'T'; })) << program.err();
  }
  expect_interrupted(program, parameter.signal, parameter.group);
  expect_nothing_left(program);
}

INSTANTIATE_TEST_SUITE_P(
    Runs, Interrupt,
    testing::Values(Case{"RingCtrlC", "ring", SIGINT, true, ""},
                    Case{"RingLauncherAlone", "ring", SIGINT, false, ""},
                    Case{"RingTerminated", "ring", SIGTERM, false, ""},
                    Case{"RingTerminatedAll", "ring", SIGTERM, true, ""},
                    Case{"RingStoppedBeforeItStarts", "ring", SIGINT, true, "1@start"},
                    Case{"RingStoppedInRendezvous", "ring", SIGINT, false, "2@rendezvous"},
                    Case{"RingStoppedInBackward", "ring", SIGINT, true, "1@backward:3"},
                    Case{"PsCtrlC", "ps", SIGINT, true, ""},
                    Case{"PsStoppedInBackward", "ps", SIGINT, false, "1@backward:3"},
                    Case{"PsTerminated", "ps", SIGTERM, false, ""},
                    Case{"AsgdCtrlC", "asgd", SIGINT, true, ""},
                    Case{"HogwildCtrlC", "hogwild", SIGINT, true, ""},
                    Case{"HogwildTerminated", "hogwild", SIGTERM, false, ""}),
    [](const auto& run) { return run.param.name; });

class Compare : public Interrupt {
 protected:
  /// Three runs: single, `middle`, ps.
  std::string write_file(const std::string& middle) {
    const std::filesystem::path file = folder() / "three.toml";
    std::ofstream(file) << "data.name = \"synthetic\"\ndata.train_limit = 200\n"
                           "data.test_limit = 50\nmodel = \"softmax\"\ntrain.batch = 8\n"
                           "train.samples = 320\ncomm.timeout = \"2s\"\n"
                           "[[run]]\nname = \"alone\"\nsync = \"single\"\n"
                           "[[run]]\nname = \"middle\"\nsync = \"ring\"\nworld = 2\n"
                        << middle << "[[run]]\nname = \"served\"\nsync = \"ps\"\nworld = 2\n";
    return file.string();
  }
  [[nodiscard]] std::vector<std::string> compare(const std::string& file,
                                                 std::vector<std::string> more) const {
    std::vector<std::string> arguments{"compare", file, "--dir", runs().string()};
    std::ranges::move(more, std::back_inserter(arguments));
    return arguments;
  }
};

TEST_F(Compare, ARunThatFailsKeepsItsRowAndHarmsNoOther) {
  const std::string file = write_file("fault.kill = \"1@backward:3\"\n");
  Program program(folder(), {compare(file, {"--quiet"})});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_TRUE(program.nobody_left());
  ASSERT_EQ(program.errors().size(), 1U) << program.err();
  EXPECT_EQ(program.errors()[0], "middle: rank 1 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(finished_runs(), 2);

  std::istringstream table(program.out());
  std::vector<std::string> lines;
  for (std::string line; std::getline(table, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5U) << program.out();  // heading, rule, three rows
  for (const std::size_t row : {2U, 4U}) {
    EXPECT_EQ(lines[row].find("FAILED"), std::string::npos) << program.out();
    EXPECT_NE(lines[row].find('%'), std::string::npos) << program.out();  // its accuracy
  }
  EXPECT_EQ(lines[3].rfind("middle ", 0), 0U) << program.out();
  EXPECT_NE(lines[3].find("FAILED"), std::string::npos) << program.out();
  EXPECT_EQ(lines[3].find('%'), std::string::npos) << program.out();

  Program again(folder(), {compare(file, {"--format=csv"})});
  EXPECT_EQ(again.wait(), 1);
  EXPECT_NE(again.err().find("[1/3] alone: unchanged"), std::string::npos) << again.err();
  EXPECT_NE(again.err().find("[3/3] served: unchanged"), std::string::npos) << again.err();
  EXPECT_NE(again.out().find("middle,ring,2,,,"), std::string::npos) << again.out();
}

TEST_F(Compare, CtrlCEndsItInTheMidstOfARun) {
  const std::string file =
      write_file("train.samples = 100000000\ntrain.eval_every = 160\ncompute.emulate = \"4ms\"\n");
  for (const bool group : {true, false}) {
    Program program(folder(), {compare(file, {})});
    ASSERT_TRUE(wait_until([&] {
      const std::string err = program.err();
      const std::size_t second = err.find("[2/3] middle");
      return program.ended() || (second != std::string::npos &&
                                 err.find("test accuracy", second) != std::string::npos);
    }));
    expect_interrupted(program, SIGINT, group);
    EXPECT_EQ(program.out(), "");
    EXPECT_EQ(program.err().find("[3/3]"), std::string::npos);
    EXPECT_EQ(finished_runs(), 1);
  }
}

}  // namespace
}  // namespace paceline::test
