// SPDX-License-Identifier: Apache-2.0
// The functors whose lanes own columns, and the sums that lanes share: eight lanes at once against
// one lane, and the moments against their definition in double.
#include <gtest/gtest.h>

#include <cmath>

#include "common/core/kernels_columns.h"
#include "common/core/kernels_stored.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

using kernels::ColumnParts;

/// Parts that do not divide the rows; columns that do not fill their second tile.
constexpr ColumnParts kCut{2, 9, 34, 5};
constexpr std::size_t kRows = 18;
constexpr std::size_t kColumns = 34;
constexpr std::size_t kPlaces = 10;

template <typename F>
void run(bool lanes, std::int64_t rows, const F& functor) {
  lanes ? test::for_rows_by_lanes(rows, functor) : kernels::for_rows(rows, functor);
}

/// The first rows by lanes, whose collectives cost a test much, the others by one.
template <typename F>
void merge(bool lanes, std::int64_t rows, const F& functor) {
  kernels::for_rows(rows, functor);
  if (lanes) {
    test::for_rows_by_lanes(3, functor);
  }
}

std::vector<float> shifted_values() {
  auto x = test::values(1, kRows * kColumns);
  for (float& value : x) {
    value += 30.0F;
  }
  return x;
}

struct Moments {
  explicit Moments(bool lanes) {
    const auto x = shifted_values();
    std::vector<double> part_mean(kPlaces * kColumns);
    std::vector<double> part_m2(part_mean.size());
    run(lanes, kCut.units(),
        kernels::ColumnMoments<float>{x.data(), part_mean.data(), part_m2.data(), kCut});
    merge(lanes, kCut.slabs * kCut.columns,
          kernels::MergedMoments{part_mean.data(), part_m2.data(), mean.data(), m2.data(), kCut});
  }
  std::vector<double> mean = std::vector<double>(2 * kColumns);
  std::vector<double> m2 = mean;
};

TEST(ColumnMoments, AreMeansAndSquaresAroundThem) {
  const auto x = shifted_values();
  for (const bool lanes : {false, true}) {
    const Moments moments(lanes);
    for (std::size_t slab = 0; slab < 2; ++slab) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        const auto value = [&](std::size_t row) {
          return static_cast<double>(x[(slab * 9 + row) * kColumns + c]);
        };
        double mean = 0.0;
        for (std::size_t row = 0; row < 9; ++row) {
          mean += value(row) / 9.0;
        }
        double m2 = 0.0;
        for (std::size_t row = 0; row < 9; ++row) {
          m2 += (value(row) - mean) * (value(row) - mean);
        }
        ASSERT_NEAR(moments.mean[slab * kColumns + c], mean, 1e-6 * mean);
        ASSERT_NEAR(moments.m2[slab * kColumns + c], m2, 1e-5 * m2);
      }
    }
  }
}

struct Gradients {
  explicit Gradients(bool lanes) {
    const auto x = test::values(1, kRows * kColumns);
    const auto y = test::values(2, kRows * kColumns);
    const auto statistics = test::values(4, 2 * kColumns);
    std::vector<double> first(kPlaces * kColumns);
    std::vector<double> second(first.size());
    run(lanes, kCut.units(),
        kernels::ColumnGradientSums<float>{x.data(), y.data(), dy.data(), statistics.data(),
                                           statistics.data(), first.data(), second.data(), kCut});
    merge(lanes, kCut.slabs * kCut.columns,
          kernels::MergedSums{first.data(), second.data(), sum.data(), weighted.data(), kCut});
    const float* s = statistics.data();
    run(lanes, kCut.units(),
        kernels::ColumnInputGradient<float>{x.data(), dy.data(), dx.data(), s, s, s, s, s, kCut});
    run(lanes, kCut.units(),
        kernels::ColumnNormalise<float>{x.data(), out.data(), y.data(), s, s, s, s, kCut, true});
    const ColumnParts one{1, kRows, kColumns, 4};
    std::vector<float> parts(4 * kColumns);
    run(lanes, one.units(), kernels::ColumnBiasSums<float>{nullptr, dy.data(), parts.data(), one});
    merge(lanes, one.columns, kernels::MergedBias{parts.data(), bias.data(), one});
  }
  std::vector<float> dy = test::values(3, kRows* kColumns);
  std::vector<double> sum = std::vector<double>(2 * kColumns);
  std::vector<double> weighted = sum;
  std::vector<float> dx = std::vector<float>(kRows * kColumns);
  std::vector<float> out = dx;
  std::vector<float> bias = std::vector<float>(kColumns);
};

TEST(ColumnGradients, TeamOfLanesMatchesOne) {
  const Gradients one(false);
  const Gradients team(true);
  EXPECT_EQ(team.dy, one.dy);
  EXPECT_EQ(team.dx, one.dx);
  EXPECT_EQ(team.out, one.out);
  for (std::size_t i = 0; i < one.sum.size(); ++i) {
    EXPECT_NEAR(team.sum[i], one.sum[i], 1e-12);
    EXPECT_NEAR(team.weighted[i], one.weighted[i], 1e-12);
  }
  for (std::size_t c = 0; c < kColumns; ++c) {
    EXPECT_NEAR(team.bias[c], one.bias[c], 1e-6);
    EXPECT_NEAR(static_cast<double>(one.bias[c]), one.sum[c] + one.sum[kColumns + c], 1e-5);
  }
}

TEST(LossSums, AddUpAllParts) {
  const std::size_t places = 1003;
  const auto loss = test::values(5, places);
  std::vector<std::uint8_t> correct(places);
  double losses = 0.0;
  double right = 0.0;
  for (std::size_t i = 0; i < places; ++i) {
    correct[i] = i % 3 == 0 ? 1 : 0;
    losses += static_cast<double>(loss[i]);
    right += correct[i];
  }
  for (const bool lanes : {false, true}) {
    std::vector<kernels::LossSum> parts(7);
    kernels::LossSum total{};
    run(lanes, 7, kernels::LossParts{loss.data(), correct.data(), parts.data(), 1003, 7});
    run(lanes, 1, kernels::LossTotal{parts.data(), &total, 7, 0.5});
    EXPECT_NEAR(total.loss, 0.5 * losses, 1e-12 * places);
    EXPECT_EQ(total.correct, 0.5 * right);
  }
}

TEST(WindowMaxGather, MatchesTheCpusFunctor) {
  const kernels::WindowGeometry g{5, 6, 11, 3, 3, 3, 2, 1};
  const auto x = test::values(1, 2 * 5 * 6 * 11);
  const auto dy = test::values(2, 2 * 3 * 3 * 11);
  std::vector<float> y(dy.size());
  std::vector<std::uint8_t> winner(dy.size());
  kernels::for_rows(6, kernels::WindowMaxForward{x.data(), y.data(), winner.data(), g});
  std::vector<float> expected(x.size());
  std::vector<float> dx(x.size());
  kernels::for_rows(10, kernels::WindowMaxBackward{winner.data(), dy.data(), expected.data(), g});
  test::for_rows_by_lanes(10,
                          kernels::WindowMaxGather<float>{winner.data(), dy.data(), dx.data(), g});
  EXPECT_EQ(dx, expected);
}

}  // namespace
}  // namespace paceline
