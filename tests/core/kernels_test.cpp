// SPDX-License-Identifier: Apache-2.0
// Row functors run by a team of four lanes, as a GPU would, against the one lane of the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "common/core/kernels.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

constexpr std::int64_t kLanes = 4;

/// What the lanes share: a slot each, and a barrier around its use.
struct TeamState {
  std::array<double, kLanes> slots{};
  std::barrier<> barrier{kLanes};
};

/// One of four threads that run a row functor together.
class ThreadTeam {
 public:
  ThreadTeam(TeamState& state, std::int64_t lane) : state_(state), lane_(lane) {}
  [[nodiscard]] std::int64_t lane() const { return lane_; }
  [[nodiscard]] std::int64_t size() const { return kLanes; }
  [[nodiscard]] float sum(float value) const {
    return combine(value, [](float a, float b) { return a + b; });
  }
  [[nodiscard]] float max(float value) const {
    return combine(value, [](float a, float b) { return a > b ? a : b; });
  }
  [[nodiscard]] std::int64_t min(std::int64_t value) const {
    return combine(value, [](std::int64_t a, std::int64_t b) { return std::min(a, b); });
  }

 private:
  template <typename T, typename F>
  T combine(T value, F f) const {
    state_.slots[static_cast<std::size_t>(lane_)] = static_cast<double>(value);
    state_.barrier.arrive_and_wait();
    T all = static_cast<T>(state_.slots[0]);
    for (std::size_t lane = 1; lane < kLanes; ++lane) {
      all = f(all, static_cast<T>(state_.slots[lane]));
    }
    state_.barrier.arrive_and_wait();
    return all;
  }
  TeamState& state_;
  std::int64_t lane_;
};

template <typename F>
void for_rows_by_team(std::int64_t rows, const F& f) {
  TeamState state;
  std::vector<std::thread> lanes;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&, lane] {
      for (std::int64_t row = 0; row < rows; ++row) {
        f(ThreadTeam(state, lane), row);
      }
    });
  }
  for (std::thread& lane : lanes) {
    lane.join();
  }
}

struct SoftmaxResult {
  explicit SoftmaxResult(std::size_t rows, std::size_t classes)
      : gradient(rows * classes), loss(rows), correct(rows) {}
  std::vector<float> gradient;
  std::vector<float> loss;
  std::vector<std::uint8_t> correct;
};

kernels::SoftmaxCrossEntropy softmax(const std::vector<float>& logits,
                                     const std::vector<std::int32_t>& labels, SoftmaxResult& to) {
  return {logits.data(),      labels.data(),
          to.gradient.data(), to.loss.data(),
          to.correct.data(),  static_cast<std::int64_t>(logits.size() / labels.size())};
}

TEST(SoftmaxCrossEntropy, TeamOfLanesMatchesOne) {
  for (const std::size_t classes :
       {std::size_t{1}, std::size_t{3}, std::size_t{10}, std::size_t{37}}) {
    const std::size_t rows = 11;
    const auto logits = test::values(1, rows * classes, 8.0F);
    const auto labels = test::labels(2, rows, static_cast<int>(classes));
    SoftmaxResult one(rows, classes);
    SoftmaxResult team(rows, classes);
    kernels::for_rows(static_cast<std::int64_t>(rows), softmax(logits, labels, one));
    for_rows_by_team(static_cast<std::int64_t>(rows), softmax(logits, labels, team));
    EXPECT_LE(test::relative_error(team.gradient, test::widen(one.gradient)), 1e-6);
    EXPECT_LE(test::relative_error(team.loss, test::widen(one.loss)), 1e-6);
    EXPECT_EQ(team.correct, one.correct);
  }
}

TEST(SoftmaxCrossEntropy, StaysFiniteForExtremeLogits) {
  const std::vector<float> logits{1e30F, -1e30F, 0.0F, -200.0F, -200.0F, -200.0F};
  const std::vector<std::int32_t> labels{0, 2};
  SoftmaxResult result(2, 3);
  kernels::for_rows(2, softmax(logits, labels, result));
  EXPECT_EQ(result.loss[0], 0.0F);
  EXPECT_EQ(result.correct[0], 1);
  EXPECT_NEAR(result.loss[1], std::log(3.0F), 1e-6F);
  EXPECT_EQ(result.correct[1], 0) << "the first of equals is chosen";
  EXPECT_NEAR(result.gradient[5], 1.0F / 3.0F - 1.0F, 1e-6F);
}

TEST(SoftmaxCrossEntropy, ShowsNotANumber) {
  for (std::size_t bad = 0; bad < 3; ++bad) {
    std::vector<float> logits{0.5F, 1.0F, 0.25F};
    logits[bad] = std::numeric_limits<float>::quiet_NaN();
    for (std::int32_t label = 0; label < 3; ++label) {
      SoftmaxResult result(1, 3);
      kernels::for_rows(1, softmax(logits, {label}, result));
      EXPECT_TRUE(std::isnan(result.loss[0])) << bad << " " << label;
      EXPECT_EQ(result.correct[0], 0) << bad << " " << label;
    }
  }
}

TEST(MaxPool, TeamOfLanesMatchesOne) {
  const kernels::PoolGeometry in{5, 7, 9};
  const std::size_t inputs = 2 * 5 * 7 * 9;
  const std::size_t outputs = 2 * 2 * 3 * 9;
  const std::int64_t rows = 2 * 2;
  const auto x = test::values(1, inputs);
  const auto dy = test::values(2, outputs);
  struct Result {
    std::vector<float> y = std::vector<float>(outputs);
    std::vector<std::uint8_t> winner = std::vector<std::uint8_t>(outputs);
    std::vector<float> dx = std::vector<float>(inputs);
    bool operator==(const Result&) const = default;
  };
  Result one;
  Result team;
  const auto forward = [&](Result& r) {
    return kernels::MaxPoolForward{x.data(), r.y.data(), r.winner.data(), in};
  };
  const auto backward = [&](Result& r) {
    return kernels::MaxPoolBackward{r.y.data(), r.winner.data(), dy.data(), r.dx.data(), in, true};
  };
  kernels::for_rows(rows, forward(one));
  kernels::for_rows(rows, backward(one));
  for_rows_by_team(rows, forward(team));
  for_rows_by_team(rows, backward(team));
  EXPECT_EQ(one, team);
}

}  // namespace
}  // namespace paceline
