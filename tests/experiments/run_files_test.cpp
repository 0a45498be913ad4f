// SPDX-License-Identifier: Apache-2.0
// What a run of the program leaves in its folder, as observe.* asks.
#include <nlohmann/json.hpp>

#include <map>

#include "tests/experiments/program.h"

namespace paceline::test {
namespace {

class RunFiles : public ProgramTest {
 protected:
  /// The folder of a complete run with these observe.* switches all on or all off.
  std::filesystem::path run(bool on) {
    std::vector<std::string> arguments{"--sync=ring", "--world=2", "train.eval_every=160",
                                       "bucket.first_size=40"};
    for (const char* kind : {"steps", "trace", "csv", "mllog", "tensorboard"}) {
      arguments.push_back(fmt::format("observe.{}={}", kind, on));
    }
    Program program(folder(), {train(arguments)});
    EXPECT_EQ(program.wait(), 0) << program.err();
    EXPECT_EQ(finished_runs(), 1);
    return std::filesystem::directory_iterator(runs())->path();
  }
  static std::set<std::string> names(const std::filesystem::path& where) {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(where)) {
      all.insert(entry.path().filename().string());
    }
    return all;
  }
};

TEST_F(RunFiles, EverythingThatIsAskedFor) {
  const std::filesystem::path where = run(true);
  EXPECT_EQ(names(where), (std::set<std::string>{"config.toml", "environment.json", "steps.jsonl",
                                                 "steps.csv", "trace.json", "mllog.txt",
                                                 "tensorboard", "summary.json", "DONE"}));
  EXPECT_EQ(names(where / "tensorboard"), (std::set<std::string>{"rank0", "rank1"}));
  std::map<std::string, std::map<int, std::set<std::string>>> spans;  // by lane and rank
  const auto trace = nlohmann::json::parse(read_all(where / "trace.json"));
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"].get<std::string>() != "X") continue;
    spans[event["cat"].get<std::string>()][event["pid"].get<int>()].insert(
        event["name"].get<std::string>());
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(spans["compute"][rank], (std::set<std::string>{"forward", "backward"}));
    EXPECT_EQ(spans["communication"][rank], (std::set<std::string>{"bucket 0", "bucket 1"}));
  }
  const std::string csv = read_all(where / "steps.csv");
  const std::string lines = read_all(where / "steps.jsonl");
  EXPECT_EQ(std::ranges::count(csv, '\n'), std::ranges::count(lines, '\n') + 1);
  EXPECT_NE(read_all(where / "mllog.txt").find(R"("status": "success")"), std::string::npos);
}

TEST_F(RunFiles, NothingMoreThanIsAskedFor) {
  EXPECT_EQ(names(run(false)),
            (std::set<std::string>{"config.toml", "environment.json", "summary.json", "DONE"}));
}

TEST_F(RunFiles, TunePrintsACommandThatRuns) {
  std::vector<std::string> arguments = train({"--world=2", "--steps=8", "--rounds=1"});
  arguments.front() = "tune";
  Program tune(folder(), {arguments});
  ASSERT_EQ(tune.wait(), 0) << tune.err();
  EXPECT_TRUE(tune.nobody_left());
  const auto json = nlohmann::json::parse(read_all(runs() / "tune" / "tune.json"));
  EXPECT_EQ(json["steps"][0]["stage"].get<std::string>(), "naive baseline");
  const std::string out = tune.out();
  EXPECT_NE(out.find("hierarchical: refused: topology.ranks_per_node"), std::string::npos) << out;
  const std::size_t start = out.rfind("paceline train ");
  ASSERT_NE(start, std::string::npos) << out;
  std::istringstream words(out.substr(start));
  EXPECT_EQ(out.substr(start), json["command"].get<std::string>() + "\n");
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  command.front() = "--quiet";
  std::swap(command[0], command[1]);
  Program best(folder(), {command});
  EXPECT_EQ(best.wait(), 0) << best.err();
}

}  // namespace
}  // namespace paceline::test
