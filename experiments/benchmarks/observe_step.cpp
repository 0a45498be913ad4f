// SPDX-License-Identifier: Apache-2.0
// What the recorder costs a training step, counted without a training step: microseconds per step
// of everything that observe.* can write, and of each alone. Prints the median of the rounds, the
// smallest and the largest.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fault.h"
#include "common/base/time.h"
#include "common/observe/recorder.h"

namespace paceline {
namespace {

constexpr int kRounds = 9;
constexpr std::int64_t kSteps = 20'000;
constexpr int kBuckets = 4;

StepMetrics typical_metrics() {
  StepMetrics metrics;
  metrics.samples = 64;
  metrics.loss = 0.123456;
  metrics.lr = 0.05;
  metrics.compute_s = 0.0021234;
  metrics.exposed_comm_s = 0.000123;
  metrics.wait_s = 1e-5;
  metrics.bytes_sent = 2'680'712;
  return metrics;
}

/// One run's calls of the observer, as the trainer makes them.
double microseconds_per_step(const ObserveConfig& observe, const std::filesystem::path& folder) {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  Config config;
  config.observe = observe;
  FaultInjector faults("", "", 0);
  Recorder recorder(config, {folder, 0, "bench", 60'000, 10'000, false}, faults);
  TrainObserver& observer = recorder;
  StepMetrics metrics = typical_metrics();
  std::vector<std::string> names;
  for (int b = 0; b < kBuckets; ++b) names.push_back(fmt::format("bucket {}", b));
  const std::int64_t begin = now_ns();
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t now = begin + step * 2'000'000;
    observer.phase("forward", step);
    observer.span(Lane::compute, "forward", now, now + 700'000);
    observer.span(Lane::compute, "backward", now + 700'000, now + 2'000'000);
    observer.span(Lane::wait, "parameters", now, now + 50'000);
    for (const std::string& name : names) {
      observer.span(Lane::communication, name.c_str(), now, now + 300'000);
    }
    observer.phase("commit", step);
    metrics.step = step;
    observer.step(metrics, 64 * (step + 1), 64 * kSteps);
  }
  const std::int64_t spent = now_ns() - begin;
  recorder.finish();
  return static_cast<double>(spent) * 1e-3 / static_cast<double>(kSteps);
}

int run() {
  const std::vector<std::pair<std::string, ObserveConfig>> cases{
      {"nothing", {false, false, false, false, false}},
      {"trace.json", {true, false, false, false, false}},
      {"steps.jsonl", {false, true, false, false, false}},
      {"tensorboard", {false, false, true, false, false}},
      {"mllog.txt", {false, false, false, true, false}},
      {"steps.csv", {false, false, false, false, true}},
      {"everything", {true, true, true, true, true}}};
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("paceline-observe-step-{}", now_ns());
  fmt::print("{:12} {:>8} {:>8} {:>8}  us a step\n", "written", "median", "min", "max");
  std::vector<std::vector<double>> times(cases.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t c = 0; c < cases.size(); ++c) {
      times[c].push_back(microseconds_per_step(cases[c].second, folder));
    }
  }
  for (std::size_t c = 0; c < cases.size(); ++c) {
    std::ranges::sort(times[c]);
    fmt::print("{:12} {:8.2f} {:8.2f} {:8.2f}\n", cases[c].first, times[c][kRounds / 2],
               times[c].front(), times[c].back());
  }
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace paceline

int main() {
  return paceline::run();
}
