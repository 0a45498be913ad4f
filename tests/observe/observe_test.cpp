// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/error.h"
#include "common/observe/compare_table.h"
#include "common/observe/environment.h"
#include "common/observe/files.h"
#include "common/observe/memory.h"
#include "common/observe/progress.h"
#include "common/observe/run_directory.h"
#include "common/observe/step_log.h"
#include "common/observe/trace.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string slurp(const fs::path& path) {
  return read_text_file(path, 1 << 24);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no Error";
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.samples = 64;
  metrics.loss = 0.5;
  metrics.lr = 0.05;
  metrics.compute_s = 0.012;
  metrics.bytes_sent = 1'000'000;
  metrics.staleness.add(3);
  metrics.staleness.add(4);
  return metrics;
}

TEST(StepLine, IsJsonEvenWhenNumbersAreNot) {
  StepMetrics metrics = metrics_of(7);
  const json good = json::parse(step_line(2, metrics));
  EXPECT_EQ(good["step"], 7);
  EXPECT_EQ(good["rank"], 2);
  EXPECT_EQ(good["bytes_sent"], 1'000'000);
  EXPECT_DOUBLE_EQ(good["compute_s"].get<double>(), 0.012);
  EXPECT_DOUBLE_EQ(good["staleness_mean"].get<double>(), 3.5);
  EXPECT_EQ(good["staleness_max"], 4);
  EXPECT_EQ(good["waited_for"], -1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.lr = std::numeric_limits<double>::infinity();
  const json bad = json::parse(step_line(2, metrics));
  EXPECT_TRUE(bad["loss"].is_null());
  EXPECT_TRUE(bad["lr"].is_null());
}

TEST(StepLog, MergesByStepThenRankAndDropsTornLines) {
  const TemporaryFolder folder;
  constexpr int kSteps = 1000;  // more than one buffer of 64 KiB
  for (const int rank : {0, 2}) {
    StepLog log(folder.path(), rank);
    for (int step = 0; step < kSteps; ++step) log.write(metrics_of(step));
  }
  {
    std::ofstream torn(folder.path() / "steps.1.jsonl");
    torn << step_line(1, metrics_of(0)) << '\n' << "{\"step\":1,\"ra";
  }
  merge_step_logs(folder.path(), 4);  // rank 3 wrote nothing
  const auto lines = lines_of(slurp(folder.path() / "steps.jsonl"));
  ASSERT_EQ(lines.size(), 2U * kSteps + 1);
  std::pair<int, int> last{-1, -1};
  for (const std::string& line : lines) {
    const json entry = json::parse(line);
    const std::pair<int, int> now{entry["step"].get<int>(), entry["rank"].get<int>()};
    EXPECT_LT(last, now);
    last = now;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(StepLog, NamesTheFileThatCannotBeWritten) {
  EXPECT_TRUE(has(message_of([] { StepLog log("/nonexistent", 3); }),
                  "/nonexistent/steps.3.jsonl: No such file"));
  EXPECT_TRUE(has(message_of([] { merge_step_logs("/nonexistent", 1); }), "steps.jsonl"));
}

TEST(Trace, OneProcessPerRankAndRowsForOverlaps) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) {
    Trace trace(rank);
    trace.add(Lane::compute, "conv \"1\"\n", 1'000'000, 1'002'500);
    trace.add(Lane::communication, "bucket 0", 1'000'000, 1'005'000);
    trace.add(Lane::communication, "bucket 1", 1'001'000, 1'004'000);  // overlaps
    trace.add(Lane::communication, "bucket 2", 1'005'000, 1'006'000);  // does not
    trace.add(Lane::wait, "backwards", 10, 5);
    trace.write(folder.path());
  }
  merge_traces(folder.path(), 3);
  const json trace = json::parse(slurp(folder.path() / "trace.json"));
  std::map<std::string, std::vector<json>> spans;
  std::map<int, std::string> processes;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["pid"] == 1) spans[event["name"]].push_back(event);
    if (event["name"] == "process_name")
      processes[event["pid"].get<int>()] = event["args"]["name"].get<std::string>();
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  ASSERT_EQ(spans.size(), 5U);
  const json& compute = spans["conv \"1\"\n"].at(0);
  EXPECT_DOUBLE_EQ(compute["ts"].get<double>(), 1000.0);
  EXPECT_DOUBLE_EQ(compute["dur"].get<double>(), 2.5);
  EXPECT_NE(spans["bucket 0"][0]["tid"], spans["bucket 1"][0]["tid"]);
  EXPECT_EQ(spans["bucket 0"][0]["tid"], spans["bucket 2"][0]["tid"]);
  EXPECT_DOUBLE_EQ(spans["backwards"][0]["dur"].get<double>(), 0.0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(Trace, MemoryIsBoundedAndSaysSo) {
  const TemporaryFolder folder;
  Trace trace(0, 100);
  for (int i = 0; i < 10'000; ++i) {
    trace.add(Lane::compute, "name " + std::to_string(i), i * 10, i * 10 + 5);
  }
  EXPECT_EQ(trace.spans(), 100U);
  EXPECT_EQ(trace.dropped(), 9900);
  trace.write(folder.path());
  merge_traces(folder.path(), 1);
  EXPECT_TRUE(has(slurp(folder.path() / "trace.json"), "9900 later spans left out"));
  Trace many(0);
  for (int i = 0; i < 10'000; ++i) many.add(Lane::wait, std::to_string(i), i, i);
  many.write(folder.path());
  merge_traces(folder.path(), 1);
  const std::string text = slurp(folder.path() / "trace.json");
  EXPECT_TRUE(has(text, "(other)"));
  EXPECT_TRUE(json::accept(text));
}

TEST(RunDirectory, CompleteRunIsFoundAgainAndPartialIsNot) {
  const TemporaryFolder folder;
  Config config;
  config.run.dir = (folder.path() / "deep" / "runs").string();
  config.sync = "ps";
  const RunDirectory first = RunDirectory::create(config, read_environment({{"zmq", "4.3.4"}}));
  const RunDirectory second = RunDirectory::create(config, read_environment());
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(has(first.path().filename().string(), "-ps"));
  EXPECT_FALSE(find_finished(config.run.dir, config)) << "no DONE yet";
  EXPECT_FALSE(fs::exists(first.path() / "DONE"));

  StepLog(first.path(), 0).write(metrics_of(0));
  Trace(0).write(first.path());
  Summary summary;
  summary.backend = "ps";
  first.finish(summary);
  for (const char* name :
       {"config.toml", "environment.json", "steps.jsonl", "trace.json", "summary.json", "DONE"}) {
    EXPECT_TRUE(fs::exists(first.path() / name)) << name;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(first.path()), {}), 6) << "nothing left over";
  EXPECT_EQ(find_finished(config.run.dir, config), first.path());
  Config elsewhere = config;
  elsewhere.run.name = "other";
  EXPECT_EQ(find_finished(config.run.dir, elsewhere), first.path());
  Config other = config;
  other.seed = 9;
  EXPECT_FALSE(find_finished(config.run.dir, other));
  std::ofstream(first.path() / "summary.json") << "{";
  EXPECT_FALSE(find_finished(config.run.dir, config)) << "damaged";
  EXPECT_FALSE(find_finished("/nonexistent", config));
}

TEST(RunDirectory, FailedFinishLeavesNoDone) {
  const TemporaryFolder folder;
  Config config;
  config.run.dir = folder.path().string();
  const RunDirectory run = RunDirectory::create(config, {});
  fs::create_directory(run.path() / "summary.json");  // cannot be replaced by a file
  EXPECT_TRUE(has(message_of([&] { run.finish({}); }), "summary.json"));
  EXPECT_FALSE(fs::exists(run.path() / "DONE"));
  EXPECT_FALSE(find_finished(config.run.dir, config));
}

TEST(RunDirectory, UnusablePlaceIsAConfigurationError) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  Config config;
  config.run.dir = (folder.path() / "file" / "runs").string();
  try {
    (void)RunDirectory::create(config, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "run.dir = ")) << error.what();
    EXPECT_TRUE(has(error.what(), config.run.dir)) << error.what();
    EXPECT_TRUE(has(error.what(), "Not a directory")) << error.what();
  }
}

TEST(Environment, RecordsThisMachineAndOurVariables) {
  setenv("PACELINE_TEST_VARIABLE", "x\"y", 1);
  setenv("UNRELATED_TEST_SECRET", "hidden", 1);
  const json parsed = json::parse(environment_to_json(read_environment({{"dnnl", "2.6.3"}})));
  unsetenv("PACELINE_TEST_VARIABLE");
  EXPECT_GE(parsed["cores_usable"].get<int>(), 1);
  EXPECT_GT(parsed["memory_bytes"].get<std::int64_t>(), 1 << 20);
  EXPECT_EQ(parsed["variables"]["PACELINE_TEST_VARIABLE"].get<std::string>(), "x\"y");
  EXPECT_EQ(parsed["libraries"]["dnnl"].get<std::string>(), "2.6.3");
  EXPECT_FALSE(has(parsed.dump(), "hidden"));
  EXPECT_FALSE(program_version().empty());
}

TEST(Memory, PeakFollowsUse) {
  const std::int64_t before = peak_rss_bytes();
  EXPECT_GT(before, 1 << 20);
  std::vector<char> block(std::size_t{64} << 20, 1);
  EXPECT_EQ(std::count(block.begin(), block.end(), 1), std::int64_t{64} << 20);
  EXPECT_GE(peak_rss_bytes(), std::max(before, std::int64_t{64} << 20));
}

TEST(Files, AtomicWriteReplacesOrLeavesAlone) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "a";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  EXPECT_EQ(slurp(path), "two");
  EXPECT_TRUE(has(message_of([&] { write_file_atomically(path / "b", "x"); }), "Not a directory"));
  EXPECT_TRUE(has(message_of([&] { (void)read_text_file(path, 2); }), "larger than 2"));
  EXPECT_TRUE(has(message_of([&] { (void)read_text_file(folder.path(), 2); }), "regular file"));
  EXPECT_TRUE(has(message_of([&] { (void)read_text_file("/nonexistent", 2); }), "/nonexistent"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace paceline
