// SPDX-License-Identifier: Apache-2.0
// Functors of one element in packs, as a GPU runs them, against element after element: the same
// bits for every number of elements and alignment, nothing written around them, operands in place.
// Compiled without contraction.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <span>

#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_each.h"
#include "common/core/kernels_stored.h"
#include "common/core/kernels_sync.h"
#include "common/core/kernels_transformer.h"
#include "tests/core/inputs.h"
#include "tests/core/thread_lanes.h"

namespace paceline {
namespace {

using kernels::PackCut;

constexpr std::size_t kMost = 1040;

/// Arrays that a functor may have: two of T and two of float, packs beginning at element 0.
template <typename T>
struct EachArrays {
  alignas(64) std::array<T, kMost> one;
  alignas(64) std::array<T, kMost> other;
  alignas(64) std::array<float, kMost> wide;
  alignas(64) std::array<float, kMost> bias;

  EachArrays() {
    const auto a = test::values(1, kMost, 3.0F);
    const auto b = test::values(2, kMost);
    for (std::size_t i = 0; i < kMost; ++i) {
      one[i] = static_cast<T>(a[i]);
      other[i] = static_cast<T>(b[i]);
      wide[i] = b[i];
      bias[i] = a[kMost - 1 - i];
    }
    one[5] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
    other[6] = static_cast<T>(std::numeric_limits<float>::infinity());
  }
  [[nodiscard]] bool same(const EachArrays& to) const {
    const auto equal = [](const auto& a, const auto& b) {
      return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
    };
    return equal(one, to.one) && equal(other, to.other) && equal(wide, to.wide) &&
           equal(bias, to.bias);
  }
};

/// make(arrays) is the functor over them.
template <typename T, typename Make>
void expect_same_in_packs(std::int64_t n, const Make& make) {
  const auto expected = std::make_unique<EachArrays<T>>();
  const auto packs = std::make_unique<EachArrays<T>>();
  kernels::for_each(n, make(*expected));
  kernels::for_each_in_packs(n, make(*packs));
  EXPECT_TRUE(packs->same(*expected));
}

constexpr std::int64_t kCounts[] = {0, 1, 3, 4, 7, 8, 9, 31, 64, 65, 200, 1003};

/// The functors of a format; arrays begin `a`, `b` and `w` elements past where packs do.
template <typename T>
void expect_elements_in_packs(std::int64_t n, std::size_t a, std::size_t b, std::size_t w) {
  using Arrays = EachArrays<T>;
  SCOPED_TRACE(testing::Message() << sizeof(T) << " bytes, " << n << " elements, shifted by " << a
                                  << ", " << b << ", " << w);
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::BasicAddScaled<T>{&at.one[a], &at.other[b], &at.one[a], 0.3F};
  });
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::BasicAddScaled<T>{&at.one[a], &at.one[a], &at.other[b], -1.5F};
  });
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::MaskedByRelu<T>{&at.one[a], &at.other[b]};
  });
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::BasicGelu<T>{&at.one[a], &at.other[b]};
  });
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::BasicGeluGradient<T>{&at.one[a], &at.other[b]};
  });
  for (const std::int64_t channels : {1, 6, 16, 24}) {
    for (const bool relu : {false, true}) {
      expect_same_in_packs<T>(n, [=](Arrays& at) {
        return kernels::BiasActivation<T>{&at.one[a], &at.bias[w], channels, relu};
      });
    }
  }
  for (const std::int64_t rows : {1, 3}) {
    expect_same_in_packs<T>(n / rows * rows, [=](Arrays& at) {
      return kernels::Transposed<T, T>{&at.one[a], &at.other[b], rows, n / rows};
    });
    expect_same_in_packs<T>(n / rows * rows, [=](Arrays& at) {
      return kernels::Transposed<T, float>{&at.one[a], &at.wide[w], rows, n / rows};
    });
    expect_same_in_packs<T>(n / rows * rows, [=](Arrays& at) {
      return kernels::Transposed<float, T>{&at.wide[w], &at.one[a], rows, n / rows};
    });
  }
  expect_same_in_packs<T>(n, [=](Arrays& at) { return kernels::Multiply{&at.wide[w], 0.7F}; });
  expect_same_in_packs<T>(n, [=](Arrays& at) {
    return kernels::ClipByNorm{&at.wide[w], &at.bias[3], 1e-3F};
  });
  if constexpr (sizeof(T) == 2) {
    expect_same_in_packs<T>(n, [=](Arrays& at) {
      return kernels::ToWire<T>{&at.wide[w], &at.one[a], 0.3F};
    });
    expect_same_in_packs<T>(n, [=](Arrays& at) {
      return kernels::FromWire<T>{&at.one[a], &at.wide[w], 0.3F};
    });
  }
}

template <typename T>
void expect_all_elements_in_packs() {
  for (const std::int64_t n : kCounts) {
    expect_elements_in_packs<T>(n, 0, 0, 0);
    expect_elements_in_packs<T>(n, 3, 3, 3);
    expect_elements_in_packs<T>(n, 8, 16, 8);
    expect_elements_in_packs<T>(n, 1, 0, 2);
  }
}

TEST(EachKernels, PacksGiveTheBitsOfElements) {
  expect_all_elements_in_packs<float>();
  expect_all_elements_in_packs<Half>();
  expect_all_elements_in_packs<Bfloat>();
}

TEST(EachKernels, FromWireSeesWhatIsNotFiniteInEveryPack) {
  alignas(64) std::array<Half, 100> in{};
  alignas(64) std::array<float, 100> out{};
  for (std::size_t bad = 0; bad <= 100; ++bad) {
    in.fill(static_cast<Half>(1.0F));
    if (bad < 100) {
      in[bad] = static_cast<Half>(std::numeric_limits<float>::infinity());
    }
    std::int32_t flag = 0;
    kernels::for_each_in_packs(100, kernels::FromWire<Half>{in.data(), out.data(), 1.0F, &flag});
    EXPECT_EQ(flag, bad < 100 ? 1 : 0) << bad;
  }
}

template <typename F>
PackCut cut_of(std::int64_t n, const F& functor) {
  return kernels::cut_packs(functor, n);
}

TEST(EachKernels, MovesWholeAccessesAndSeveralWhereFewArraysAreRead) {
  using kernels::PackShapeOf;
  using HalfSum = PackShapeOf<kernels::BasicAddScaled<Half>>;
  using FloatSum = PackShapeOf<kernels::AddScaled>;
  using Gelu16 = PackShapeOf<kernels::BasicGelu<Bfloat>>;
  using Wire = PackShapeOf<kernels::ToWire<Half>>;
  EXPECT_EQ(HalfSum::kWidth * 10 + HalfSum::kAhead, 81);
  EXPECT_EQ(FloatSum::kWidth * 10 + FloatSum::kAhead, 41);
  EXPECT_EQ(Gelu16::kWidth * 10 + Gelu16::kAhead, 82);
  EXPECT_EQ(Wire::kWidth * 10 + Wire::kAhead, 81);
}

TEST(EachKernels, CutsBehindWhatPrecedesAlignment) {
  const auto at = std::make_unique<EachArrays<Half>>();
  const auto sum = [&](std::size_t a, std::size_t b) {
    return kernels::BasicAddScaled<Half>{&at->one[a], &at->other[b], &at->one[a], 1.0F};
  };
  const auto expect = [](const PackCut& cut, std::int64_t head, std::int64_t packs) {
    EXPECT_EQ(cut.head, head);
    EXPECT_EQ(cut.packs, packs);
  };
  expect(cut_of(100, sum(0, 0)), 0, 12);
  expect(cut_of(100, sum(3, 3)), 5, 11);
  expect(cut_of(100, sum(3, 11)), 5, 11);
  expect(cut_of(100, sum(3, 4)), 0, 0);
  expect(cut_of(5, sum(3, 3)), 0, 0);
  const auto bias = [&](std::size_t y, std::int64_t channels) {
    return kernels::BiasActivation<Half>{&at->one[y], at->bias.data(), channels, true};
  };
  expect(cut_of(96, bias(0, 24)), 0, 12);
  expect(cut_of(96, bias(0, 12)), 0, 0);
  expect(cut_of(96, bias(1, 24)), 0, 0);
}

/// In place, where the last packs are too few for each thread's.
TEST(EachKernels, ThreadsAtOnceGiveTheBitsOfOne) {
  for (const std::int64_t n : kCounts) {
    std::array<EachArrays<float>, 2> both;
    kernels::for_each(n, kernels::Multiply{&both[0].wide[1], 3.0F});
    test::for_each_in_packs_by_lanes(n, kernels::Multiply{&both[1].wide[1], 3.0F});
    EXPECT_TRUE(both[1].same(both[0])) << n;
  }
}

}  // namespace
}  // namespace paceline
