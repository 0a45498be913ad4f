// SPDX-License-Identifier: Apache-2.0
#include "common/core/device_pace.h"

#include <gtest/gtest.h>

#include <numeric>

namespace paceline {
namespace {

using namespace std::chrono_literals;

/// Runs the layers of one step with no real work, returns its duration in ns.
std::int64_t paced_step(DevicePace& pace, const Model& model) {
  const std::int64_t begin = now_ns();
  pace.begin(begin);
  for (int layer = 0; layer < model.layers(); ++layer) {
    pace.forward_done(layer);
  }
  for (int layer = model.layers() - 1; layer >= 0; --layer) {
    pace.backward_done(layer);
  }
  pace.finish();
  return now_ns() - begin;
}

TEST(DevicePace, AStepNeverTakesLessThanTheDevice) {
  const auto model = make_model("mlp", {28, 28, 1}, 10);
  DevicePace pace(*model, 20ms);
  // Shares are rounded down to whole nanoseconds, three per layer at most.
  EXPECT_GE(paced_step(pace, *model), 20'000'000 - 3 * model->layers());
}

TEST(DevicePace, WithoutEmulationNothingWaitsAndNothingIsLate) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 0ns);
  paced_step(pace, *model);
  EXPECT_EQ(pace.late_fraction(), 0.0);
}

TEST(DevicePace, AHostSlowerThanTheDeviceIsLate) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 1ms);
  pace.begin(now_ns() - 2'000'000);
  for (int layer = 0; layer < model->layers(); ++layer) {
    pace.forward_done(layer);
    pace.backward_done(layer);
  }
  pace.finish();
  EXPECT_EQ(pace.late_fraction(), 1.0);
}

TEST(DevicePace, ABlockedSeamDelaysTheDeviceAsWell) {
  const auto model = make_model("softmax", {28, 28, 1}, 10);
  DevicePace pace(*model, 5ms);
  const std::int64_t begin = now_ns();
  pace.begin(begin);
  const std::int64_t weights_came = begin + 30'000'000;
  sleep_until_ns(weights_came);
  pace.stalled(30'000'000, weights_came);
  for (int layer = 0; layer < model->layers(); ++layer) {
    pace.forward_done(layer);
    pace.backward_done(layer);
  }
  EXPECT_GE(now_ns(), weights_came + 5'000'000 - 3 * model->layers());
}

}  // namespace
}  // namespace paceline
