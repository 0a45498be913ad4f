// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/error.h"
#include "common/observe/compare_table.h"
#include "common/observe/progress.h"
#include "common/observe/staleness_lines.h"
#include "common/observe/summary.h"

namespace paceline {
namespace {

using nlohmann::json;

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

Summary full_summary() {
  Summary s;
  s.name = "ps-2";
  s.backend = "ps";
  s.model = "cnn";
  s.world_size = 4;
  s.servers = 2;
  s.seed = std::numeric_limits<std::uint64_t>::max();
  s.steps = 234;
  s.samples = 60000;
  s.train_seconds = 32.5;
  s.samples_per_second = 1846.15;
  s.speedup = 2.5;
  s.efficiency = 0.625;
  s.compute_s = 0.12;
  s.exposed_comm_s = 0.018;
  s.wait_s = 0.001;
  s.communication_s = 0.09;
  s.bytes_sent_per_rank = 6'500'000.5;
  s.staleness_mean = 1.5;
  s.staleness_max = 7;
  s.staleness_histogram[0] = 1;
  s.staleness_histogram[7] = 3;
  s.staleness_histogram[16] = 400;
  s.test_accuracy = 0.8825;
  s.test_loss = std::numeric_limits<double>::quiet_NaN();
  s.final_train_loss = 0.31;
  s.target_accuracy = 0.85;
  s.time_to_target_s = 20.25;
  s.weights_sha256 = "abc";
  s.peak_rss_bytes = 123'456'789;
  s.peak_device_bytes = 987'654'321;
  s.graph_batches = 38;
  s.collectives = "nccl";
  s.link_inter = {"1gbit,50us", 0.998e9, 1.1e-4};
  s.host_bound = true;
  s.late_fraction = 0.125;
  s.memory = {1, 2, 3, 4, 5};
  s.evaluations = {{30000, 16.0, 0.86, 0.4}, {60000, 32.5, 0.8825, 0.33}};
  return s;
}

TEST(Summary, RoundTripsEveryField) {
  Summary full = full_summary();
  full.waited_for = 2;
  full.waited_for_share = 0.75;
  const std::string text = summary_to_json(full);
  const Summary read = summary_from_json(text, "s.json");
  EXPECT_EQ(summary_to_json(read), text);
  EXPECT_TRUE(std::isnan(read.test_loss));
  EXPECT_EQ(read.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(read.link_inter.measured_bits_per_second, 0.998e9);
  EXPECT_FALSE(read.link_intra.measured_round_trip_s);
  EXPECT_EQ(read.evaluations.size(), 2U);
  EXPECT_EQ(read.memory.staging, 5);
  EXPECT_EQ(read.staleness_histogram, full.staleness_histogram);
  EXPECT_EQ(read.waited_for, 2);
  EXPECT_EQ(read.waited_for_share, 0.75);
  EXPECT_FALSE(summary_from_json(summary_to_json(full_summary()), "s.json").waited_for);
}

TEST(Summary, HasTheFieldsThatToolsRelyOn) {
  const json parsed = json::parse(summary_to_json({}));
  for (const char* name : {"schema_version",
                           "backend",
                           "model",
                           "world_size",
                           "servers",
                           "seed",
                           "steps",
                           "samples",
                           "samples_per_second",
                           "speedup",
                           "efficiency",
                           "compute_s",
                           "exposed_comm_s",
                           "wait_s",
                           "bytes_sent_per_rank",
                           "waited_for",
                           "waited_for_share",
                           "staleness",
                           "test_accuracy",
                           "time_to_target_s",
                           "weights_sha256",
                           "peak_rss_bytes",
                           "peak_device_bytes",
                           "graph_batches",
                           "collectives",
                           "link",
                           "host_bound"}) {
    EXPECT_TRUE(parsed.contains(name)) << name;
  }
  EXPECT_EQ(parsed["schema_version"], 1);
  EXPECT_TRUE(parsed["staleness"].contains("mean") && parsed["staleness"].contains("max"));
  EXPECT_TRUE(parsed["link"]["inter"].contains("requested"));
  EXPECT_TRUE(parsed["link"]["inter"].contains("measured"));
  EXPECT_TRUE(parsed["speedup"].is_null());
}

void collect_names(const json& value, const std::string& prefix, std::vector<std::string>& names) {
  if (value.is_array() && !value.empty()) collect_names(value[0], prefix, names);
  if (!value.is_object()) return;
  for (const auto& [key, inner] : value.items()) {
    if (!inner.is_object() && !inner.is_array()) names.push_back(prefix + key);
    collect_names(inner, prefix + key + ".", names);
  }
}

TEST(Summary, SchemaPageNamesEveryField) {
  std::ifstream file(std::string(PACELINE_SOURCE_DIR) + "/docs/summary-schema.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> names;
  collect_names(json::parse(summary_to_json(full_summary())), "", names);
  EXPECT_GT(names.size(), 40U);
  names.emplace_back("staleness.histogram");
  for (const std::string& name : names) EXPECT_TRUE(has(page, "`" + name + "`")) << name;
}

TEST(Summary, OfAnEarlierVersionLacksWhatCameLater) {
  json parsed = json::parse(summary_to_json(full_summary()));
  parsed.erase("peak_device_bytes");
  parsed.erase("graph_batches");
  parsed.erase("collectives");
  const Summary read = summary_from_json(parsed.dump(), "run/summary.json");
  EXPECT_FALSE(read.peak_device_bytes.has_value());
  EXPECT_FALSE(read.graph_batches.has_value());
  EXPECT_FALSE(read.collectives.has_value());
}

TEST(Summary, RefusesNamingFileAndField) {
  const std::string good = summary_to_json(full_summary());
  const auto broken = [&](const std::function<void(json&)>& change) {
    json parsed = json::parse(good);
    change(parsed);
    return message_of([&] { (void)summary_from_json(parsed.dump(), "run/summary.json"); });
  };
  EXPECT_EQ(broken([](json& j) { j.erase("wait_s"); }),
            "run/summary.json: field wait_s is missing");
  EXPECT_EQ(broken([](json& j) { j["staleness"]["mean"] = "x"; }),
            "run/summary.json: field staleness.mean must be a number");
  EXPECT_TRUE(has(broken([](json& j) { j["staleness"]["histogram"].push_back(0); }),
                  "field staleness.histogram must be a list of 17 whole numbers"));
  EXPECT_TRUE(
      has(broken([](json& j) { j["staleness"]["histogram"][3] = -1; }), "staleness.histogram"));
  EXPECT_EQ(broken([](json& j) { j["world_size"] = -1; }),
            "run/summary.json: field world_size must be a whole number that is not negative");
  EXPECT_TRUE(has(broken([](json& j) { j["world_size"] = 4294967296; }), "field world_size"));
  EXPECT_TRUE(has(broken([](json& j) { j["world_size"] = 1.5; }), "field world_size"));
  EXPECT_TRUE(has(broken([](json& j) { j["link"]["inter"] = 3; }), "link.inter must be an object"));
  EXPECT_TRUE(has(broken([](json& j) { j["evaluations"][1]["loss"] = "x"; }), "evaluations.loss"));
  EXPECT_TRUE(has(broken([](json& j) { j["host_bound"] = 1; }), "true or false"));
  EXPECT_TRUE(has(broken([](json& j) { j["backend"] = nullptr; }), "backend must be a text"));
  EXPECT_TRUE(has(broken([](json& j) { j["train_seconds"] = nullptr; }), "train_seconds"));
  EXPECT_TRUE(has(broken([](json& j) { j["schema_version"] = 2; }), "not the supported 1"));
  for (const char* text : {"", "[]", "3", "{", "null", "{\"schema_version\":1}", "\xff", "1e999"}) {
    EXPECT_TRUE(has(message_of([&] { (void)summary_from_json(text, "f.json"); }), "f.json"))
        << text;
  }
  const std::string deep(200'000, '[');
  EXPECT_TRUE(has(message_of([&] { (void)summary_from_json(deep, "f.json"); }), "valid JSON"));
  EXPECT_TRUE(has(message_of([] { (void)load_summary("/nonexistent.json"); }), "/nonexistent"));
}

TEST(Summary, SpeedupsAreAgainstSingle) {
  Summary single;
  single.backend = "single";
  single.samples_per_second = 500.0;
  std::vector<Summary> all{full_summary(), single};
  all[0].samples_per_second = 1500.0;
  set_speedups(all);
  EXPECT_DOUBLE_EQ(all[0].speedup.value(), 3.0);
  EXPECT_DOUBLE_EQ(all[0].efficiency.value(), 0.75);
  EXPECT_DOUBLE_EQ(all[1].efficiency.value(), 1.0);
  all.pop_back();
  set_speedups(all);
  EXPECT_FALSE(all[0].speedup);
}

TEST(CompareTable, TextIsAligned) {
  Summary single;
  single.name = single.backend = "single";
  single.target_accuracy = 0.85;
  single.samples_per_second = 738.46;
  const std::string table = compare_table({single, full_summary()}, TableFormat::text);
  EXPECT_EQ(table,
            "run     backend  workers  samples/s  speed-up  efficiency  compute ms  exposed ms  "
            "wait ms  sent/step  accuracy  s to 85%\n"
            "------  -------  -------  ---------  --------  ----------  ----------  ----------  "
            "-------  ---------  --------  --------  ----------\n"
            "single  single         1        738         -           -         0.0         0.0  "
            "    0.0        0 B     0.00%         -\n"
            "ps-2    ps             4       1846      2.50         62%       120.0        18.0  "
            "    1.0    6.50 MB    88.25%      20.2  host-bound\n");
}

TEST(StalenessLines, SayHowManyUpdatesWereHowStale) {
  Summary fresh;
  fresh.staleness_histogram[0] = 10;
  EXPECT_EQ(staleness_lines({fresh, full_summary()}),
            "ps-2: staleness mean 1.50, max 7; 0 <1%, 7 1%, 16+ 99%\n");
}

TEST(Staleness, HasABinForEachValueUpTo15) {
  Staleness all;
  Staleness other;
  for (const std::int64_t value : {0, 15, 16, 4000}) {
    all.add(value);
    other.add(value + 1);
  }
  all.merge(other);
  EXPECT_EQ(all.updates, 8);
  EXPECT_EQ(all.histogram[0], 1);
  EXPECT_EQ(all.histogram[1], 1);
  EXPECT_EQ(all.histogram[15], 1);
  EXPECT_EQ(all.histogram[16], 5);
}

TEST(CompareTable, NamesTheRankThatOthersWaitedFor) {
  Summary summary = full_summary();
  summary.waited_for = 3;
  summary.waited_for_share = 0.875;
  EXPECT_FALSE(has(compare_table({summary}, TableFormat::text), "waited for"))
      << "1 ms of 139 is not worth a column";
  summary.wait_s = 0.02;
  const std::string table = compare_table({summary, full_summary()}, TableFormat::markdown);
  EXPECT_TRUE(has(table, "  waited for |")) << table;
  EXPECT_TRUE(has(table, "| rank 3 (88%) |")) << table;
  EXPECT_TRUE(has(table, "|            - |")) << table;
}

TEST(CompareTable, MarkdownAndCsv) {
  Summary odd = full_summary();
  odd.name = "a|b,\"c\"";
  odd.host_bound = false;
  odd.time_to_target_s.reset();
  const std::string markdown = compare_table({odd}, TableFormat::markdown);
  EXPECT_TRUE(has(markdown, "| a\\|b,\"c\" | ps "));
  EXPECT_TRUE(has(markdown, "|:--"));
  EXPECT_FALSE(has(markdown, "host-bound"));
  odd.waited_for = 3;
  odd.waited_for_share = 0.75;
  const std::string csv = compare_table({odd}, TableFormat::csv);
  EXPECT_EQ(csv,
            "run,backend,workers,samples_per_second,speedup,efficiency,compute_s,exposed_comm_s,"
            "wait_s,waited_for,waited_for_share,bytes_sent_per_rank,test_accuracy,time_to_target_s,"
            "host_bound\n"
            "\"a|b,\"\"c\"\"\",ps,4,1846.15,2.5,0.625,0.12,0.018,0.001,3,0.75,6500000.5,0.8825,,"
            "false\n");
  EXPECT_TRUE(has(compare_table({}, TableFormat::text), "samples/s"));
}

TEST(CompareTable, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1500), "1.50 kB");
  EXPECT_EQ(human_bytes(12'345'678), "12.3 MB");
  EXPECT_EQ(human_bytes(999'600'000), "1.00 GB");
  EXPECT_EQ(human_bytes(123e9), "123 GB");
}

/// A clock that tests move.
struct Clock {
  std::int64_t ns = 1'000'000'000;
  void advance(double s) { ns += static_cast<std::int64_t>(s * 1e9); }
};

ProgressOptions options_of(ProgressStyle style, std::ostream& out, Clock& clock) {
  return {style, 10.0, &out, [&clock] { return clock.ns; }, [] { return 41; }};
}

TEST(Progress, TextHasRateAndEta) {
  EXPECT_EQ(progress_text("ps", 0, 100, 0.0, "", 80), "ps    0%  0/100");
  EXPECT_EQ(progress_text("ps", 25, 100, 10.0, "loss 0.7", 80),
            "ps   25%  25/100  2/s  ETA 0:30  loss 0.7");
  EXPECT_EQ(progress_text("ps", 100, 100, 3725.0, "", 80), "ps  100%  100/100  0/s  took 1:02:05");
  EXPECT_EQ(progress_text("ps", 120, 100, 0.0, "", 5), "ps  1") << "cut to the width";
  EXPECT_EQ(progress_text("ps", 1, 100, 1.0, "", -3), "");
}

TEST(Progress, TerminalRenewsOneLineAndErasesIt) {
  std::ostringstream out;
  Clock clock;
  {
    Progress progress("ring", 1000, options_of(ProgressStyle::terminal, out, clock));
    progress.update(0);
    const std::string first = out.str();
    EXPECT_EQ(first, "\rring    0%  0/1000\x1b[K");
    clock.advance(0.05);
    progress.update(10);
    EXPECT_EQ(out.str(), first) << "not more than ten times a second";
    clock.advance(0.95);
    progress.update(500, "loss 0.123456789 and much more");
    const std::string line = out.str().substr(first.size());
    EXPECT_EQ(line, "\rring   50%  500/1000  500/s  ETA 0:01  l\x1b[K") << "40 of 41 columns";
    progress.message("note");
    EXPECT_TRUE(out.str().ends_with("\r\x1b[Knote\n"));
    progress.update(501);
  }
  EXPECT_TRUE(out.str().ends_with("\r\x1b[K"));
}

TEST(Progress, PlainLinesNowAndThenAndQuietNone) {
  std::ostringstream out;
  std::ostringstream none;
  Clock clock;
  {
    Progress progress("ring", 1000, options_of(ProgressStyle::plain, out, clock));
    Progress quiet("ring", 1000, options_of(ProgressStyle::quiet, none, clock));
    for (int second = 1; second <= 25; ++second) {
      clock.advance(1.0);
      progress.update(std::int64_t{second} * 10);
      quiet.update(std::int64_t{second} * 10);
    }
    quiet.finish("ring done");
    progress.finish("ring done");
  }
  EXPECT_EQ(out.str(),
            "ring   10%  100/1000  10/s  ETA 1:30\n"
            "ring   20%  200/1000  10/s  ETA 1:20\n"
            "ring done\n");
  EXPECT_EQ(none.str(), "");
}

}  // namespace
}  // namespace paceline
