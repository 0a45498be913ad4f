// SPDX-License-Identifier: Apache-2.0
// The sampler's promises: one global order whatever the world size, exact partitions, fair short
// batches. And the made-up data set.
#include "common/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/base/error.h"
#include "common/data/dataset.h"

namespace paceline {
namespace {

struct Case {
  std::int64_t dataset;
  std::int64_t total;
  std::int64_t batch;
};

std::vector<Sampler> ranks_of(const Case& c, int world, std::uint64_t seed = 5) {
  std::vector<Sampler> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back(c.dataset, c.total, c.batch, world, rank, seed);
  }
  return ranks;
}

/// All samples of the run in order: of each step, rank by rank.
std::vector<std::uint32_t> order_of(const Case& c, int world, std::uint64_t seed = 5) {
  std::vector<Sampler> ranks = ranks_of(c, world, seed);
  std::vector<std::uint32_t> order;
  for (std::int64_t step = 0; step < ranks[0].steps(); ++step) {
    for (Sampler& rank : ranks) {
      const SampleSlice slice = rank.at(step);
      order.insert(order.end(), slice.indices.begin(), slice.indices.end());
    }
  }
  return order;
}

class AnySampler : public testing::TestWithParam<Case> {};

TEST_P(AnySampler, GlobalOrderDoesNotDependOnTheWorldSize) {
  const std::vector<std::uint32_t> one = order_of(GetParam(), 1);
  EXPECT_EQ(static_cast<std::int64_t>(one.size()), GetParam().total);
  for (int world = 2; world <= 8; ++world) {
    EXPECT_EQ(order_of(GetParam(), world), one) << world;
  }
}

TEST_P(AnySampler, EveryEpochVisitsEverySampleOnce) {
  const Case& c = GetParam();
  const std::vector<std::uint32_t> order = order_of(c, 3);
  const auto epoch = static_cast<std::size_t>(c.dataset);
  for (std::size_t begin = 0; begin < order.size(); begin += epoch) {
    const std::size_t end = std::min(begin + epoch, order.size());
    const std::set<std::uint32_t> seen(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                       order.begin() + static_cast<std::ptrdiff_t>(end));
    EXPECT_EQ(seen.size(), end - begin);
    EXPECT_LT(*seen.rbegin(), epoch);
  }
}

TEST_P(AnySampler, StepsAreFairAndCounted) {
  const Case& c = GetParam();
  for (int world = 1; world <= 8; ++world) {
    std::vector<Sampler> ranks = ranks_of(c, world);
    std::int64_t before = 0;
    for (std::int64_t step = 0; step < ranks[0].steps(); ++step) {
      std::int64_t sum = 0;
      std::int64_t least = c.batch;
      std::int64_t most = 0;
      const std::int64_t global = ranks[0].at(step).global_samples;
      for (Sampler& rank : ranks) {
        ASSERT_EQ(rank.steps(), ranks[0].steps());
        const SampleSlice slice = rank.at(step);
        const auto n = static_cast<std::int64_t>(slice.indices.size());
        EXPECT_EQ(slice.global_samples, global);
        sum += n;
        least = std::min(least, n);
        most = std::max(most, n);
      }
      EXPECT_EQ(sum, global);
      EXPECT_GE(global, 1);
      EXPECT_LE(most, c.batch);
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(ranks[0].samples_before(step), before);
      before += global;
    }
    EXPECT_EQ(before, c.total);
    EXPECT_EQ(ranks[0].samples_before(ranks[0].steps()), c.total);
  }
}

TEST_P(AnySampler, IsAPureFunctionOfItsStep) {
  std::vector<Sampler> first = ranks_of(GetParam(), 2);
  std::vector<Sampler> second = ranks_of(GetParam(), 2);
  std::vector<std::vector<std::uint32_t>> forward;
  for (std::int64_t step = 0; step < first[0].steps(); ++step) {
    forward.push_back(first[1].at(step).indices);
  }
  for (std::int64_t step = second[0].steps(); step-- > 0;) {
    EXPECT_EQ(second[1].at(step).indices, forward[static_cast<std::size_t>(step)]);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnySampler,
                         testing::Values(Case{100, 100, 4}, Case{103, 103, 4}, Case{103, 250, 5},
                                         Case{8, 50, 64}, Case{1000, 137, 16}, Case{97, 97 * 3, 1},
                                         Case{64, 64, 64}, Case{50, 0, 3}));

TEST(Sampler, SeedsAndEpochsDiffer) {
  const Case c{500, 1000, 10};
  const auto order = order_of(c, 1);
  EXPECT_NE(order, order_of(c, 1, 6));
  EXPECT_EQ(order, order_of(c, 1, 5));
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 500, order.begin() + 500));
}

TEST(Sampler, ShufflesUniformly) {
  // Where sample 0 of 16 lands over many seeds: 16 bins of 250 expected; 15 degrees of freedom put
  // chi-squared below 44.3 with probability 0.9999.
  std::vector<int> bins(16);
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const auto order = order_of({16, 16, 16}, 1, seed);
    ++bins[static_cast<std::size_t>(std::ranges::find(order, 0U) - order.begin())];
  }
  double chi_squared = 0.0;
  for (const int count : bins) {
    chi_squared += (count - 250.0) * (count - 250.0) / 250.0;
  }
  EXPECT_LT(chi_squared, 44.3);
}

TEST(Sampler, RefusesWhatCannotBe) {
  EXPECT_THROW(Sampler(3, 10, 1, 4, 0, 1), ConfigError);
  EXPECT_THROW(Sampler(30, 10, 0, 4, 0, 1), ConfigError);
  EXPECT_THROW(Sampler(30, 10, 1, 4, 4, 1), ConfigError);
  EXPECT_THROW(Sampler(30, -1, 1, 4, 0, 1), ConfigError);
  Sampler sampler(30, 10, 5, 1, 0, 1);
  EXPECT_EQ(sampler.steps(), 2);
  EXPECT_THROW(static_cast<void>(sampler.at(2)), Error);
  EXPECT_THROW(static_cast<void>(sampler.at(-1)), Error);
}

// ---- Parts of different sizes

struct Uneven {
  std::int64_t dataset;
  std::int64_t total;
  std::int64_t batch;
  std::vector<double> shares;
  std::vector<std::int64_t> parts;  ///< worked out by hand
  std::int64_t steps;               ///< likewise
};

class UnevenSampler : public testing::TestWithParam<Uneven> {
 protected:
  static std::vector<Sampler> ranks() {
    const Uneven& c = GetParam();
    std::vector<Sampler> all;
    const int world = static_cast<int>(c.shares.size());
    for (int rank = 0; rank < world; ++rank) {
      all.emplace_back(c.dataset, c.total, c.batch, world, rank, 5, c.shares);
    }
    return all;
  }
};

TEST_P(UnevenSampler, EachRankWalksItsOwnPartAndThenTakesPartWithNone) {
  const Uneven& c = GetParam();
  std::vector<Sampler> all = ranks();
  const std::int64_t longest = *std::ranges::max_element(c.parts);
  const std::int64_t per_epoch = (longest + c.batch - 1) / c.batch;
  ASSERT_EQ(all[0].steps(), c.steps);
  // The permutation itself is the one of an even split's single rank.
  Sampler whole(c.dataset, c.dataset * (c.steps / per_epoch + 1), c.dataset, 1, 0, 5);
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < all.size(); begin += c.parts[r], ++r) {
    for (std::int64_t step = 0; step < c.steps; ++step) {
      const auto order = whole.at(step / per_epoch).indices;
      const std::int64_t done = std::min(step % per_epoch * c.batch, c.parts[r]);
      const std::int64_t count = std::min(c.batch, c.parts[r] - done);
      const auto first = order.begin() + begin + done;
      EXPECT_EQ(all[r].at(step).indices, std::vector<std::uint32_t>(first, first + count))
          << "rank " << r << " step " << step;
    }
  }
}

TEST_P(UnevenSampler, CountsWhatWasReallySeen) {
  const Uneven& c = GetParam();
  std::vector<Sampler> all = ranks();
  std::int64_t seen = 0;
  for (std::int64_t step = 0; step < c.steps; ++step) {
    EXPECT_LT(seen, c.total) << "a step too many";
    std::int64_t sum = 0;
    for (Sampler& rank : all) {
      sum += std::ssize(rank.at(step).indices);
    }
    for (Sampler& rank : all) {
      EXPECT_EQ(rank.at(step).global_samples, sum);
      EXPECT_EQ(rank.samples_before(step), seen);
      EXPECT_EQ(rank.steps(), c.steps);
    }
    EXPECT_GE(sum, 1);
    seen += sum;
  }
  EXPECT_GE(seen, c.total);
  EXPECT_EQ(all[0].samples_before(c.steps), seen);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, UnevenSampler,
    testing::Values(Uneven{100, 100, 5, {2, 1, 1}, {50, 25, 25}, 10},
                    Uneven{100, 250, 5, {2, 1, 1}, {50, 25, 25}, 24},  // 2 epochs, 50 of 15 a step
                    Uneven{10, 10, 4, {1, 1, 1}, {3, 4, 3}, 1},
                    Uneven{101, 101, 7, {0.1, 0.3}, {25, 76}, 11},
                    Uneven{7, 21, 100, {1, 5, 1}, {1, 5, 1}, 3}, Uneven{9, 4, 2, {3}, {9}, 2}));

TEST(Sampler, RefusesSharesThatLeaveARankWithNothing) {
  const auto make = [](std::int64_t dataset, const std::vector<double>& shares) {
    return Sampler(dataset, 10, 1, 3, 0, 1, shares);
  };
  EXPECT_NO_THROW(make(4, {2, 1, 1}));
  EXPECT_THROW(make(2, {2, 1, 1}), ConfigError);
  EXPECT_THROW(make(100, {1000, 1, 1}), ConfigError);
  EXPECT_THROW(make(100, {1, 1}), ConfigError);
  try {
    make(100, {1, 1e-9, 1});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string_view(error.what()).find("data.shares: rank 1 "), std::string::npos)
        << error.what();
  }
}

struct Samples {
  Samples(const Dataset& data, std::vector<std::uint32_t> indices)
      : x(indices.size() * static_cast<std::size_t>(data.shape().elements())), y(indices.size()) {
    data.gather(indices, x, y);
  }
  std::vector<float> x;
  std::vector<std::int32_t> y;
  bool operator==(const Samples&) const = default;
};

TEST(Synthetic, DependsOnSeedAndIndexAlone) {
  const SampleShape shape{4, 5, 3};
  const auto small = make_synthetic(10, shape, 4, 1, Split::train);
  const auto large = make_synthetic(100, shape, 4, 1, Split::train);
  EXPECT_EQ(Samples(*small, {7, 2}), Samples(*large, {7, 2}));
  EXPECT_FALSE(Samples(*small, {2}) ==
               Samples(*make_synthetic(10, shape, 4, 2, Split::train), {2}));
  EXPECT_FALSE(Samples(*small, {2}) == Samples(*make_synthetic(10, shape, 4, 1, Split::test), {2}));
  EXPECT_THROW(static_cast<void>(make_synthetic(0, shape, 4, 1, Split::test)), ConfigError);
  EXPECT_THROW(static_cast<void>(make_synthetic(9, shape, 65537, 1, Split::test)), ConfigError);
}

/// The nearest class mean of the training set finds the class of test samples.
TEST(Synthetic, CanBeLearnt) {
  const SampleShape shape{8, 8, 1};
  const std::size_t width = 64;
  std::vector<std::uint32_t> indices(400);
  for (std::uint32_t i = 0; i < indices.size(); ++i) {
    indices[i] = i;
  }
  const Samples train(*make_synthetic(400, shape, 10, 3, Split::train), indices);
  const Samples test(*make_synthetic(400, shape, 10, 3, Split::test), indices);
  std::vector<float> means(10 * width);
  std::vector<float> counts(10);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto label = static_cast<std::size_t>(train.y[i]);
    counts[label] += 1.0F;
    for (std::size_t k = 0; k < width; ++k) {
      means[label * width + k] += train.x[i * width + k];
    }
  }
  std::size_t correct = 0;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::size_t best = 0;
    float nearest = INFINITY;
    for (std::size_t label = 0; label < 10; ++label) {
      float distance = 0.0F;
      for (std::size_t k = 0; k < width; ++k) {
        const float d = test.x[i * width + k] - means[label * width + k] / counts[label];
        distance += d * d;
      }
      best = distance < nearest ? label : best;
      nearest = std::min(nearest, distance);
    }
    correct += best == static_cast<std::size_t>(test.y[i]) ? 1 : 0;
  }
  EXPECT_GT(correct, 340U);
}

}  // namespace
}  // namespace paceline
