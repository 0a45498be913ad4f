// SPDX-License-Identifier: Apache-2.0
#include "ps/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "ps/fold.h"
#include "tests/ps/ring_order_reference.h"

namespace paceline {
namespace {

std::vector<std::size_t> bucket_sizes(const BucketPlan& plan) {
  std::vector<std::size_t> sizes;
  for (BucketId b = 0; b < plan.count(); ++b) {
    sizes.push_back(plan[b].size());
  }
  return sizes;
}

TEST(BucketPlan, GroupsSmallTensorsAndCutsLargeOnesOnRequest) {
  using Sizes = std::vector<std::size_t>;
  constexpr std::size_t k = 1000;
  const Sizes tensors{3 * k, 10 * k, 41 * k, 2 * k, 0, 2 * k, 20 * k, 5 * k};
  const auto group = [](const Sizes& counts, std::size_t elements, bool cut) {
    return bucket_sizes(BucketPlan::group(counts, 4 * elements, 40 * k, cut));  // first: 10 k
  };
  EXPECT_EQ(group(tensors, 20 * k, false), (Sizes{3 * k, 10 * k, 41 * k, 4 * k, 20 * k, 5 * k}));
  EXPECT_EQ(group(tensors, 20 * k, true),
            (Sizes{3 * k, 10 * k, 13'667, 13'667, 13'666, 4 * k, 20 * k, 5 * k}));
  EXPECT_EQ(group(Sizes{25 * k}, 20 * k, true), (Sizes{12'500, 12'500}));
  EXPECT_EQ(group(Sizes{0}, 20 * k, true), (Sizes{0}));
  // No more pieces than of 64 KiB.
  EXPECT_EQ(group(Sizes{16'384, 16'385}, 1, true), (Sizes{16'384, 8'193, 8'192}));
}

TEST(Partition, KeysCoverEveryBucketOnceInOrder) {
  const std::vector<std::size_t> counts{0, 1, 17, 8192, 8193, 300'000, 3, 2'000'001};
  const BucketPlan plan(counts);
  for (int servers = 1; servers <= 7; ++servers) {
    const Partition partition(plan, servers);
    std::size_t seen = 0;
    for (BucketId b = 0; b < plan.count(); ++b) {
      std::size_t at = plan[b].begin;
      for (const std::size_t k : partition.keys_of(b)) {
        const KeyRange& key = partition.keys()[k];
        EXPECT_EQ(k, seen++);
        EXPECT_EQ(key.bucket, b);
        EXPECT_EQ(key.arena.begin, at);
        EXPECT_GT(key.elements(), 0U);
        EXPECT_LE(key.elements() * sizeof(float), std::size_t{4} << 20);
        EXPECT_EQ(key.bucket_offset, at - plan[b].begin);
        EXPECT_EQ(key.bucket_elements, plan[b].size());
        EXPECT_TRUE(key.server >= 0 && key.server < servers);
        at = key.arena.end;
      }
      EXPECT_EQ(at, plan[b].end);
    }
    EXPECT_EQ(seen, partition.count());
  }
}

TEST(Partition, BalancesBytes) {
  std::vector<std::size_t> counts(40, 1000);
  counts.insert(counts.end(), {1'000'000, 500'000, 250'000});
  for (int servers = 2; servers <= 5; ++servers) {
    const Partition partition(BucketPlan(counts), servers);
    const auto load = partition.bytes_per_server();
    const auto [least, most] = std::minmax_element(load.begin(), load.end());
    EXPECT_LE(*most - *least, 8192U) << servers << " servers";
    EXPECT_EQ(std::accumulate(load.begin(), load.end(), std::size_t{0}), 1'790'000 * sizeof(float));
  }
}

TEST(Fold, FollowsTheRingOrderWhereverAKeyIsCut) {
  const std::size_t n = 10'007;
  for (int world = 1; world <= 5; ++world) {
    std::vector<std::vector<float>> gradients(static_cast<std::size_t>(world));
    for (int r = 0; r < world; ++r) {
      for (std::size_t i = 0; i < n; ++i) {
        gradients[static_cast<std::size_t>(r)].push_back(testing::test_gradient(3, r, i));
      }
    }
    std::mt19937 random(7);
    for (int cut = 0; cut < 20; ++cut) {
      const std::size_t begin = random() % n;
      const std::size_t end = begin + 1 + random() % (n - begin);
      const KeyRange key{0, 0, {begin, end}, begin, n};
      std::vector<Contribution> parts;
      for (const auto& gradient : gradients) {
        parts.push_back(gradient.data() + begin);
      }
      std::vector<float> sum(end - begin);
      ring_order_sum(key, parts, 0, sum);
      for (std::size_t i = begin; i < end; ++i) {
        int chunk = 0;
        while (i >= ring_chunk(n, world, chunk).end) {
          ++chunk;
        }
        float expected = gradients[static_cast<std::size_t>(ring_summand(world, chunk, 0))][i];
        for (int k = 1; k < world; ++k) {
          expected += gradients[static_cast<std::size_t>(ring_summand(world, chunk, k))][i];
        }
        ASSERT_EQ(sum[i - begin], expected) << "world " << world << " element " << i;
      }
    }
  }
}

TEST(Fold, ExactSumsDoNotDependOnTheOrderAndNameWhoIsOutOfRange) {
  const KeyRange key{5, 0, {0, 600}, 0, 600};
  std::vector<std::vector<float>> gradients(3, std::vector<float>(600));
  for (int r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 600; ++i) {
      gradients[static_cast<std::size_t>(r)][i] = testing::test_gradient(1, r, i);
    }
  }
  std::vector<Contribution> parts{gradients[0].data(), gradients[1].data(), gradients[2].data()};
  std::vector<float> forward(600);
  std::vector<float> backward(600);
  exact_sum(key, parts, 0, forward);
  std::reverse(parts.begin(), parts.end());
  exact_sum(key, parts, 0, backward);
  EXPECT_EQ(forward, backward);
  gradients[1][599] = 1e30F;
  try {
    exact_sum(key, parts, 0, forward);
    FAIL() << "took 1e30";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("bucket 5"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace paceline
