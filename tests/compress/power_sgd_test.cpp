// SPDX-License-Identifier: Apache-2.0
// PowerSGD with ranks as threads that meet in an allreduce.
#include "common/compress/power_sgd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <thread>

#include "common/base/error.h"
#include "tests/compress/codec_cases.h"

namespace paceline {
namespace {

using testing::gaussian;

constexpr std::size_t kRows = 24;
constexpr std::size_t kColumns = 40;
constexpr std::size_t kBias = 24;

/// One bucket: a matrix and a bias.
BucketPlan one_matrix() {
  BucketPlan plan(std::vector<std::size_t>{kRows * kColumns + kBias});
  plan.set_tensors(
      {{{0, kRows * kColumns}, kRows, 2}, {{kRows * kColumns, kRows * kColumns + kBias}, 1, 1}});
  return plan;
}

/// Calls of reduce() by `world` ranks at once; sums in rank order.
class Ranks {
 public:
  Ranks(const BucketPlan& plan, int world, int rank, bool error_feedback)
      : parts_(static_cast<std::size_t>(world)), barrier_(world) {
    for (int r = 0; r < world; ++r) {
      ranks_.push_back(std::make_unique<PowerSgd>(plan, rank, error_feedback, 3));
    }
  }

  /// Every rank's gradient becomes its result.
  void reduce(BucketId b, std::vector<std::vector<float>>& gradients) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] {
        ranks_[r]->reduce(b, gradients[r], [&, r](std::span<float> values) { sum(r, values); });
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  [[nodiscard]] PowerSgd& operator[](std::size_t r) { return *ranks_[r]; }
  [[nodiscard]] std::size_t travelled() const { return travelled_; }

 private:
  void sum(std::size_t r, std::span<float> values) {
    parts_[r].assign(values.begin(), values.end());
    travelled_ += r == 0 ? values.size() : 0;
    barrier_.arrive_and_wait();
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 0.0F;
      for (const auto& part : parts_) {
        values[i] += part[i];
      }
    }
    barrier_.arrive_and_wait();
  }

  std::vector<std::unique_ptr<PowerSgd>> ranks_;
  std::vector<std::vector<float>> parts_;
  std::size_t travelled_ = 0;
  std::barrier<> barrier_;
};

std::vector<double> sum_of(const std::vector<std::vector<float>>& gradients) {
  std::vector<double> sum(gradients[0].size(), 0.0);
  for (const auto& gradient : gradients) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += static_cast<double>(gradient[i]);
    }
  }
  return sum;
}

/// A matrix of rank `rank`, with a bias.
std::vector<float> low_rank(std::size_t rank, unsigned seed) {
  const auto left = gaussian(kRows * rank, 100);  // the same columns on every rank
  // Near the same rows in every step, as gradients are: a Q that is almost orthogonal to the next
  // matrix costs digits.
  auto right = gaussian(kColumns * rank, seed);
  const auto common = gaussian(kColumns * rank, 101);
  for (std::size_t i = 0; i < right.size(); ++i) {
    right[i] += 2.0F * common[i];
  }
  std::vector<float> values = gaussian(kRows * kColumns + kBias, seed);
  for (std::size_t i = 0; i < kRows; ++i) {
    for (std::size_t j = 0; j < kColumns; ++j) {
      float sum = 0.0F;
      for (std::size_t k = 0; k < rank; ++k) {
        sum += left[i * rank + k] * right[j * rank + k];
      }
      values[i * kColumns + j] = sum;
    }
  }
  return values;
}

TEST(PowerSgd, FullRankTravelsWhole) {
  Ranks ranks(one_matrix(), 2, kRows, true);
  std::vector<std::vector<float>> gradients{gaussian(kRows * kColumns + kBias, 1),
                                            gaussian(kRows * kColumns + kBias, 2)};
  const auto want = sum_of(gradients);
  ranks.reduce(0, gradients);
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(gradients[0][i], want[i], 1e-4);
  }
  EXPECT_EQ(ranks.travelled(), kRows * kColumns + kBias);
  EXPECT_EQ(ranks[0].travelling(0), kRows * kColumns + kBias);
}

TEST(PowerSgd, IsExactForMatricesOfItsRankAndEqualOnAllRanks) {
  for (const std::size_t rank : {1U, 3U, 4U}) {  // with rank 4, a column depends on the others
    Ranks ranks(one_matrix(), 3, static_cast<int>(rank), true);
    for (unsigned step = 0; step < 3; ++step) {
      std::vector<std::vector<float>> gradients;
      for (unsigned r = 0; r < 3; ++r) {
        gradients.push_back(low_rank(std::min<std::size_t>(rank, 3), 10 * step + r));
      }
      const auto want = sum_of(gradients);
      double largest = 0.0;
      for (const double value : want) {
        largest = std::max(largest, std::fabs(value));
      }
      ranks.reduce(0, gradients);
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(gradients[0][i], want[i], 1e-5 * largest)
            << "rank " << rank << ", step " << step;
      }
      EXPECT_EQ(gradients[0], gradients[1]);
      EXPECT_EQ(gradients[0], gradients[2]);
    }
    const std::size_t each = rank * (kRows + kColumns) + kBias;
    EXPECT_EQ(ranks[1].travelling(0), each);
    EXPECT_EQ(ranks.travelled(), 3 * each);
  }
}

TEST(PowerSgd, ErrorFeedbackLosesNothing) {
  constexpr int kSteps = 300;
  std::vector<double> error;
  for (const bool error_feedback : {true, false}) {
    Ranks ranks(one_matrix(), 2, 2, error_feedback);
    const std::vector<std::vector<float>> constant{gaussian(kRows * kColumns + kBias, 5),
                                                   gaussian(kRows * kColumns + kBias, 6)};
    const auto want = sum_of(constant);
    std::vector<double> total(want.size(), 0.0);
    for (int step = 0; step < kSteps; ++step) {
      auto gradients = constant;
      ranks.reduce(0, gradients);
      for (std::size_t i = 0; i < total.size(); ++i) {
        total[i] += static_cast<double>(gradients[0][i]);
      }
    }
    double square = 0.0;
    double all = 0.0;
    for (std::size_t i = 0; i < total.size(); ++i) {
      square += std::pow(total[i] / kSteps - want[i], 2);
      all += want[i] * want[i];
    }
    error.push_back(std::sqrt(square / all));
    EXPECT_EQ(ranks[0].residual_bytes(), error_feedback ? want.size() * sizeof(float) : 0U);
  }
  EXPECT_LT(error[0], 0.1);
  EXPECT_GT(error[1], 0.5);  // without it the same directions are lost in every step
}

TEST(PowerSgd, ZerosStayZeroAndDoNotStickNorDoesNan) {
  Ranks ranks(one_matrix(), 2, 2, true);
  const std::size_t n = kRows * kColumns + kBias;
  std::vector<std::vector<float>> gradients(2, std::vector<float>(n, 0.0F));
  ranks.reduce(0, gradients);
  EXPECT_EQ(gradients[0], std::vector<float>(n, 0.0F));
  gradients[1][5] = std::numeric_limits<float>::quiet_NaN();
  ranks.reduce(0, gradients);
  EXPECT_TRUE(std::isnan(gradients[0][5]));
  gradients = {low_rank(1, 1), low_rank(1, 2)};
  const auto want = sum_of(gradients);
  ranks.reduce(0, gradients);
  for (std::size_t i = 0; i < n; ++i) {
    ASSERT_NEAR(gradients[1][i], want[i], 1e-4);
  }
}

TEST(PowerSgd, BucketsAndEmptyOnes) {
  BucketPlan plan(std::vector<std::size_t>{kBias, 0, kRows * kColumns});
  plan.set_tensors({{{0, kBias}, 1, 1}, {{kBias, kBias + kRows * kColumns}, kRows, 2}});
  Ranks ranks(plan, 2, 1, true);
  std::vector<std::vector<float>> bias(2, std::vector<float>(kBias, 1.5F));
  ranks.reduce(0, bias);
  EXPECT_EQ(bias[0], std::vector<float>(kBias, 3.0F));
  std::vector<std::vector<float>> nothing(2);
  ranks.reduce(1, nothing);
  EXPECT_EQ(ranks[0].travelling(1), 0U);
  EXPECT_EQ(ranks[0].travelling(2), kRows + kColumns);
}

TEST(PowerSgd, RefusesARankOverTheMatrices) {
  EXPECT_NO_THROW(check_power_sgd_rank(one_matrix(), kRows));
  try {
    check_power_sgd_rank(one_matrix(), kRows + 1);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "compress.rank=25: the model's matrices have at most rank 24; allowed: 1 to 24");
  }
  BucketPlan flat(std::vector<std::size_t>{kBias});
  flat.set_tensors({{{0, kBias}, 1, 1}});
  EXPECT_THROW(PowerSgd(flat, 1, true, 1), ConfigError);
}

}  // namespace
}  // namespace paceline
