// SPDX-License-Identifier: Apache-2.0
// What a rank writes down, read back by decoders written from the formats' descriptions.
#include "common/observe/recorder.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/error.h"
#include "common/observe/files.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string slurp(const fs::path& path) {
  return read_text_file(path, 1 << 24);
}

// ---- TFRecord and protobuf, read

/// Bit by bit from the definition: reflected polynomial 0x1EDC6F41, all ones in and out.
std::uint32_t slow_crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) ? (crc >> 1U) ^ 0x82F63B78U : crc >> 1U;
  }
  return ~crc;
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  [[nodiscard]] bool done() const { return left_.empty(); }
  std::string_view take(std::size_t count) {
    if (count > left_.size()) throw std::runtime_error("truncated");
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }
  std::uint64_t fixed(std::size_t width) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(width);
    for (std::size_t i = width; i-- > 0;)
      value = value << 8U | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80U) return value;
    }
  }

 private:
  std::string_view left_;
};

struct Event {
  double wall_time = 0.0;
  std::int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
};

void read_value(std::string_view bytes, Event& event) {
  std::string tag;
  for (Reader value(bytes); !value.done();) {
    const std::uint64_t key = value.varint();
    if (key == (1U << 3U | 2U)) {
      tag = value.take(value.varint());
    } else if (key == (2U << 3U | 5U)) {
      event.scalars[tag] = std::bit_cast<float>(static_cast<std::uint32_t>(value.fixed(4)));
    } else {
      throw std::runtime_error("unknown field of Value");
    }
  }
}

Event read_event(std::string_view bytes) {
  Event event;
  for (Reader fields(bytes); !fields.done();) {
    switch (fields.varint()) {
      case 1U << 3U | 1U:
        event.wall_time = std::bit_cast<double>(fields.fixed(8));
        break;
      case 2U << 3U | 0U:
        event.step = static_cast<std::int64_t>(fields.varint());
        break;
      case 3U << 3U | 2U:
        event.version = fields.take(fields.varint());
        break;
      case 5U << 3U | 2U:
        for (Reader summary(fields.take(fields.varint())); !summary.done();) {
          if (summary.varint() != (1U << 3U | 2U)) throw std::runtime_error("no Value");
          read_value(summary.take(summary.varint()), event);
        }
        break;
      default:
        throw std::runtime_error("unknown field of Event");
    }
  }
  return event;
}

std::vector<Event> read_events(const fs::path& folder) {
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  const fs::path path = fs::directory_iterator(folder)->path();
  EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents.")) << path;
  const std::string bytes = slurp(path);
  const auto unmasked = [](std::uint64_t masked) {
    return std::rotl(static_cast<std::uint32_t>(masked) - 0xa282ead8U, 15);
  };
  std::vector<Event> events;
  for (Reader file(bytes); !file.done();) {
    const std::string_view length = file.take(8);
    EXPECT_EQ(unmasked(file.fixed(4)), slow_crc32c(length));
    const std::string_view record = file.take(Reader(length).fixed(8));
    EXPECT_EQ(unmasked(file.fixed(4)), slow_crc32c(record));
    events.push_back(read_event(record));
  }
  return events;
}

TEST(Crc32c, PublishedVectors) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogues.
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  std::string ascending;
  for (char c = 0; c < 32; ++c) ascending += c;
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113FDB5CU);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(EventFile, IsReadBack) {
  const TemporaryFolder folder;
  {
    EventFile file(folder.path() / "deep" / "er");
    for (std::int64_t step = 0; step < 3000; ++step) {  // several buffers
      const Scalar scalars[] = {{"loss", 1.0F / static_cast<float>(step + 1)}, {"x/y", -2.5F}};
      file.add(step * 1'000'000'007, scalars);
    }
    const std::string long_tag(300, 't');  // lengths of two bytes
    const Scalar odd[] = {{long_tag, std::numeric_limits<float>::quiet_NaN()}};
    file.add(-1, odd);
    file.add(7, {});
  }
  const std::vector<Event> events = read_events(folder.path() / "deep" / "er");
  ASSERT_EQ(events.size(), 3003U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[0].scalars.empty());
  EXPECT_GT(events[0].wall_time, 1.6e9);
  for (std::size_t i = 0; i < 3000; ++i) {
    const Event& event = events[i + 1];
    EXPECT_EQ(event.step, static_cast<std::int64_t>(i) * 1'000'000'007);
    EXPECT_EQ(event.scalars, (std::map<std::string, float>{
                                 {"loss", 1.0F / static_cast<float>(i + 1)}, {"x/y", -2.5F}}));
    EXPECT_GE(event.wall_time, events[i].wall_time);
  }
  EXPECT_EQ(events[3001].step, -1);
  EXPECT_TRUE(std::isnan(events[3001].scalars.at(std::string(300, 't'))));
}

TEST(EventFile, NamesTheFolderThatCannotBeMade) {
  try {
    EventFile file("/proc/nowhere/tensorboard");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("/proc/nowhere"), std::string::npos);
  }
}

// ---- steps.csv

/// RFC 4180 without quotes, which numbers never need: CRLF between lines, commas between fields.
std::vector<std::vector<std::string>> read_csv(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    EXPECT_TRUE(line.ends_with('\r')) << line;
    line.pop_back();
    EXPECT_EQ(line.find_first_of("\"\r"), std::string::npos) << line;
    std::vector<std::string>& row = rows.emplace_back();
    std::istringstream fields(line + ',');
    for (std::string field; std::getline(fields, field, ',');) row.push_back(field);
  }
  return rows;
}

StepMetrics metrics_of(std::int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.samples = 8;
  metrics.loss = 2.0 - 0.25 * static_cast<double>(step);
  metrics.lr = 0.05;
  metrics.compute_s = 0.012;
  metrics.exposed_comm_s = 0.003;
  metrics.wait_s = 0.001;
  metrics.bytes_sent = 1'000'000;
  metrics.staleness.add(3);
  metrics.staleness.add(4);
  return metrics;
}

TEST(StepCsv, HasTheFieldsOfTheJsonLines) {
  const TemporaryFolder folder;
  for (const int rank : {0, 1}) {
    StepLog log(folder.path(), rank, StepFormat::csv);
    for (int step = 0; step < 3; ++step) {
      StepMetrics metrics = metrics_of(step);
      if (step == 2) metrics.loss = std::numeric_limits<double>::quiet_NaN();
      log.write(metrics);
    }
  }
  merge_step_logs(folder.path(), 2, StepFormat::csv);
  const auto rows = read_csv(slurp(folder.path() / "steps.csv"));
  ASSERT_EQ(rows.size(), 7U);
  for (std::size_t r = 1; r < rows.size(); ++r) {
    const int step = static_cast<int>(r - 1) / 2;
    const int rank = static_cast<int>(r - 1) % 2;
    const auto wanted = nlohmann::ordered_json::parse(step_line(rank, metrics_of(step)));
    ASSERT_EQ(rows[r].size(), wanted.size());
    std::size_t column = 0;
    for (const auto& [name, value] : wanted.items()) {
      EXPECT_EQ(rows[0][column], name);
      const std::string& field = rows[r][column++];
      if (name == "loss" && step == 2) {
        EXPECT_EQ(field, "");
      } else {
        EXPECT_DOUBLE_EQ(std::stod(field), value.get<double>()) << name;
      }
    }
  }
}

// ---- all together

struct MlLine {
  std::string type;
  std::string key;
  json value;
  json metadata;
};

std::vector<MlLine> read_mllog(const fs::path& path) {
  std::vector<MlLine> lines;
  std::istringstream in(slurp(path));
  std::int64_t last = 0;
  for (std::string line; std::getline(in, line);) {
    const std::string prefix = ":::MLLOG ";
    EXPECT_TRUE(line.starts_with(prefix)) << line;
    const json parsed = json::parse(line.substr(prefix.size()));
    EXPECT_EQ(parsed.size(), 6U) << line;
    EXPECT_EQ(parsed["namespace"].get<std::string>(), "");
    EXPECT_GE(parsed["time_ms"].get<std::int64_t>(), last);
    last = parsed["time_ms"].get<std::int64_t>();
    EXPECT_TRUE(parsed["metadata"]["file"].is_string());
    EXPECT_TRUE(parsed["metadata"]["lineno"].is_number());
    lines.push_back({parsed["event_type"], parsed["key"], parsed["value"], parsed["metadata"]});
  }
  return lines;
}

std::string sequence(const std::vector<MlLine>& lines) {
  std::string keys;
  for (const MlLine& line : lines) {
    if (line.type != "POINT_IN_TIME" || line.key == "eval_accuracy") keys += line.key + ' ';
  }
  return keys;
}

Config everything() {
  Config config;
  config.world = 2;
  config.train.batch = 8;
  config.train.samples = 48;
  config.observe = {true, true, true, true, true};
  return config;
}

/// Three steps of 16 samples over a training set of 32, evaluated after the second and the last.
void play(Recorder& recorder) {
  for (std::int64_t step = 0; step < 3; ++step) {
    recorder.phase("forward", step);
    recorder.span(Lane::compute, "forward", 100 * step, 100 * step + 40);
    recorder.span(Lane::communication, "bucket 0", 100 * step + 20, 100 * step + 60);
    recorder.span(Lane::wait, "parameters", 100 * step + 40, 100 * step + 60);
    recorder.step(metrics_of(step), 16 * (step + 1), 48);
    if (step > 0) {
      recorder.evaluating(16 * (step + 1));
      recorder.evaluated({16 * (step + 1), 0.5, 0.25 * static_cast<double>(step), 1.5});
    }
  }
}

class RecorderTest : public ::testing::Test {
 protected:
  RecorderOptions options(int rank) const { return {folder_.path(), rank, "ring", 32, 10, false}; }
  TemporaryFolder folder_;
  FaultInjector faults_{"", "", 0};
};

TEST_F(RecorderTest, WritesAllOfIt) {
  for (const int rank : {0, 1}) {
    Recorder recorder(everything(), options(rank), faults_);
    play(recorder);
    recorder.finish();
  }
  merge_step_logs(folder_.path(), 2);
  merge_step_logs(folder_.path(), 2, StepFormat::csv);
  merge_traces(folder_.path(), 2);

  const std::vector<Event> events = read_events(folder_.path() / "tensorboard" / "rank0");
  ASSERT_EQ(events.size(), 6U);
  const Event& second = events[2];
  EXPECT_EQ(second.step, 1);
  ASSERT_EQ(second.scalars.size(), 8U);
  EXPECT_FLOAT_EQ(second.scalars.at("loss"), 1.75F);
  EXPECT_FLOAT_EQ(second.scalars.at("lr"), 0.05F);
  EXPECT_FLOAT_EQ(second.scalars.at("samples_per_second"), 16.0F / 0.016F);
  EXPECT_FLOAT_EQ(second.scalars.at("compute_ms"), 12.0F);
  EXPECT_FLOAT_EQ(second.scalars.at("exposed_comm_ms"), 3.0F);
  EXPECT_FLOAT_EQ(second.scalars.at("wait_ms"), 1.0F);
  EXPECT_FLOAT_EQ(second.scalars.at("bytes_sent"), 1e6F);
  EXPECT_FLOAT_EQ(second.scalars.at("staleness"), 3.5F);
  EXPECT_EQ(events[3].scalars,
            (std::map<std::string, float>{{"test/accuracy", 0.25F}, {"test/loss", 1.5F}}));
  EXPECT_TRUE(fs::exists(folder_.path() / "tensorboard" / "rank1"));

  std::map<std::string, int> lanes;
  const json trace = json::parse(slurp(folder_.path() / "trace.json"));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") ++lanes[event["cat"].get<std::string>()];
  }
  EXPECT_EQ(lanes, (std::map<std::string, int>{{"communication", 6}, {"compute", 6}, {"wait", 6}}));
  EXPECT_EQ(read_csv(slurp(folder_.path() / "steps.csv")).size(), 7U);
  EXPECT_TRUE(fs::exists(folder_.path() / "steps.jsonl"));
}

TEST_F(RecorderTest, MlLogFollowsTheRun) {
  Recorder recorder(everything(), options(0), faults_);
  play(recorder);
  recorder.finish();
  const std::vector<MlLine> lines = read_mllog(folder_.path() / "mllog.txt");
  EXPECT_EQ(sequence(lines),
            "init_start init_stop run_start epoch_start epoch_stop eval_start eval_accuracy "
            "eval_stop epoch_start eval_start eval_accuracy eval_stop epoch_stop run_stop ");
  std::map<std::string, MlLine> last;
  std::map<std::string, int> open;
  for (const MlLine& line : lines) {
    last[line.key] = line;
    const std::string interval = line.key.substr(0, line.key.find('_'));
    if (line.type == "INTERVAL_START") {
      EXPECT_EQ(++open[interval], 1) << line.key;
    }
    if (line.type == "INTERVAL_END") {
      EXPECT_EQ(--open[interval], 0) << line.key;
    }
  }
  EXPECT_EQ(last["global_batch_size"].value, 16);
  EXPECT_EQ(last["seed"].value, 1);
  EXPECT_EQ(last["opt_name"].value.get<std::string>(), "sgd");
  EXPECT_DOUBLE_EQ(last["opt_base_learning_rate"].value.get<double>(), 0.05);
  EXPECT_EQ(last["train_samples"].value, 32);
  EXPECT_EQ(last["eval_samples"].value, 10);
  EXPECT_DOUBLE_EQ(last["eval_accuracy"].value.get<double>(), 0.5);
  EXPECT_EQ(last["eval_accuracy"].metadata["epoch_num"], 2);
  EXPECT_EQ(last["eval_accuracy"].metadata["samples_count"], 48);
  EXPECT_DOUBLE_EQ(last["tracked_stats"].value["throughput"].get<double>(), 96.0);
  EXPECT_EQ(last["run_stop"].metadata["status"].get<std::string>(), "success");
}

TEST_F(RecorderTest, ARunThatFailsOrMissesItsTargetIsAborted) {
  const auto status = [this] {
    return read_mllog(folder_.path() / "mllog.txt").back().metadata["status"].get<std::string>();
  };
  Config config = everything();
  { Recorder(config, options(0), faults_).phase("forward", 0); }
  EXPECT_EQ(status(), "aborted");
  for (const auto& [target, wanted] : {std::pair{0.4, "success"}, std::pair{0.6, "aborted"}}) {
    config.train.target_accuracy = target;
    Recorder recorder(config, options(0), faults_);
    play(recorder);
    recorder.finish();
    EXPECT_EQ(status(), wanted);
  }
}

TEST_F(RecorderTest, WritesNothingWhereNothingIsAskedFor) {
  Config config = everything();
  config.observe = {false, false, false, false, false};
  Recorder recorder(config, options(0), faults_);
  play(recorder);
  recorder.finish();
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace paceline
