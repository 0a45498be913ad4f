// SPDX-License-Identifier: Apache-2.0
// The functors between backward and the optimizer of a GPU, as the CPU's loops.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "common/base/half.h"
#include "common/core/kernels_sync.h"
#include "tests/support/backend_conformance.h"

namespace paceline {
namespace {

using testing::known_gradient;

template <typename Format>
Format stored_as(std::uint16_t bits) {
  Format stored{};
  stored.bits = bits;
  return stored;
}

TEST(SyncKernels, SixteenBitsAreThoseOfTheCpu) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(stored_as<Bfloat>(half))),
              std::bit_cast<std::uint32_t>(from_bfloat(half)));
    if (!std::isnan(from_half(half))) {
      ASSERT_EQ(static_cast<float>(stored_as<Half>(half)), from_half(half)) << bits;
      ASSERT_EQ(Half(from_half(half)).bits, half);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) {
      ASSERT_EQ(Half(value).bits, to_half(value)) << value;
    }
    ASSERT_EQ(Bfloat(value).bits, to_bfloat(value)) << value;
  }
  for (const float value : {65504.0F, 65519.9F, 65520.0F, 6e-8F, 2.9e-8F, 3.0e-8F, -0.0F}) {
    EXPECT_EQ(Half(value).bits, to_half(value)) << value;
  }
}

TEST(SyncKernels, NormOfManyBlocks) {
  const std::int64_t n = 3 * kernels::kNormBlock + 5;
  std::vector<float> values(static_cast<std::size_t>(n));
  double expected = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = known_gradient(i, 0, 0);
    expected += std::pow(static_cast<double>(values[i]) / 4, 2);
  }
  std::vector<double> partial(4);
  kernels::for_rows(4, kernels::SquaresOfBlocks{values.data(), n, 0.25F, partial.data()});
  float total = 0.0F;
  kernels::for_rows(1, kernels::SumOfBlocks{partial.data(), 4, &total});
  EXPECT_NEAR(total, expected, expected * 1e-6);
  kernels::for_each(n, kernels::ClipByNorm{values.data(), &total, 1.0F});
  EXPECT_NEAR(values[100], known_gradient(100, 0, 0) / std::sqrt(expected), 1e-6);
}

}  // namespace
}  // namespace paceline
