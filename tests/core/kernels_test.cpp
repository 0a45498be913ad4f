// SPDX-License-Identifier: Apache-2.0
// Row functors run by a team of eight lanes, as a GPU would, against the one lane of the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "common/core/kernels.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

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
    test::for_rows_by_lanes(static_cast<std::int64_t>(rows), softmax(logits, labels, team));
    EXPECT_LE(test::relative_error(team.gradient, test::widen(one.gradient)), 1e-6);
    EXPECT_LE(test::relative_error(team.loss, test::widen(one.loss)), 1e-6);
    EXPECT_EQ(team.correct, one.correct);

    SoftmaxResult in_place(rows, classes);
    in_place.gradient = logits;
    auto functor = softmax(logits, labels, in_place);
    functor.logits = in_place.gradient.data();
    test::for_rows_by_lanes(static_cast<std::int64_t>(rows), functor);
    EXPECT_EQ(in_place.gradient, team.gradient);
    EXPECT_EQ(in_place.loss, team.loss);
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
  test::for_rows_by_lanes(rows, forward(team));
  test::for_rows_by_lanes(rows, backward(team));
  EXPECT_EQ(one, team);
}

TEST(BiasGradient, TeamOfLanesGivesTheSameBits) {
  for (const std::size_t columns : {std::size_t{1}, std::size_t{64}, std::size_t{100}}) {
    for (const bool masked : {false, true}) {
      const std::size_t rows = 300;  // over two blocks of the sum
      const auto y = test::values(1, rows * columns);
      struct Result {
        std::vector<float> dy;
        std::vector<float> bias;
        bool operator==(const Result&) const = default;
      };
      Result one{test::values(2, rows * columns), std::vector<float>(columns)};
      Result team = one;
      const auto functor = [&](Result& r) {
        return kernels::BiasGradient{masked ? y.data() : nullptr, r.dy.data(), r.bias.data(),
                                     static_cast<std::int64_t>(rows),
                                     static_cast<std::int64_t>(columns)};
      };
      const auto tiles = static_cast<std::int64_t>((columns + 63) / 64);
      kernels::for_column_tiles(static_cast<std::int64_t>(columns), functor(one));
      test::for_rows_by_lanes(tiles, functor(team));
      EXPECT_EQ(one, team) << columns << " columns, masked " << masked;
    }
  }
}

}  // namespace
}  // namespace paceline
