// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm over ranks with different numbers of samples is one BatchNorm over all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "common/base/abort.h"
#include "common/core/communicator_reducer.h"
#include "common/core/cpu/norm.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

/// What a norm makes of a batch, forward and backward.
struct Passes {
  std::vector<float> y;
  std::vector<float> dx;
  std::vector<float> dw;
  std::vector<float> buffers;
};

constexpr SampleShape kShape{3, 2, 5};
constexpr std::size_t kElements = 30;

/// Two batches, so that the second finds what the first left behind.
Passes run(const NormSetup& setup, std::size_t first, std::size_t samples) {
  const auto layer = make_norm("norm", kShape, setup);
  const auto w = test::values(4, 10);
  Passes p{std::vector<float>(samples * kElements), std::vector<float>(samples * kElements),
           std::vector<float>(10, NAN), std::vector<float>(10)};
  layer->initialise_buffers(p.buffers);
  for (const std::uint64_t batch : {1U, 2U}) {
    const auto all = test::values(batch, 6 * kElements, 3.0F);
    const auto cotangent = test::values(10 + batch, 6 * kElements);
    const std::vector<float> x(
        all.begin() + static_cast<std::ptrdiff_t>(first * kElements),
        all.begin() + static_cast<std::ptrdiff_t>((first + samples) * kElements));
    std::vector<float> dy(
        cotangent.begin() + static_cast<std::ptrdiff_t>(first * kElements),
        cotangent.begin() + static_cast<std::ptrdiff_t>((first + samples) * kElements));
    const auto n = static_cast<std::int64_t>(samples);
    layer->forward({n, x.data(), p.y.data(), w.data(), p.buffers.data()});
    layer->backward({n, x.data(), p.y.data(), dy.data(), p.dx.data(), w.data(), p.dw.data()});
  }
  return p;
}

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

class SyncBatchNorm : public testing::TestWithParam<Activation> {};

TEST_P(SyncBatchNorm, RanksWithOneFiveAndNoSamplesAreOneBatchOfSix) {
  NormSetup setup;
  setup.activation = GetParam();
  const Passes whole = run(setup, 0, 6);

  setup.kind = NormKind::sync_batch;
  const std::size_t samples[] = {1, 5, 0};
  AbortToken abort;
  auto workers = make_thread_communicators(3, 20'000'000'000, abort);
  std::vector<Passes> parts(3);
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        CommunicatorReducer reducer(*workers[rank]);
        NormSetup mine = setup;
        mine.reducer = &reducer;
        parts[rank] = run(mine, rank == 0 ? 0 : rank == 1 ? 1 : 6, samples[rank]);
      });
    }
  }
  Passes joined;
  joined.dw.resize(10);
  for (const Passes& part : parts) {
    append(joined.y, part.y);
    append(joined.dx, part.dx);
    std::ranges::transform(joined.dw, part.dw, joined.dw.begin(), std::plus<>());
    EXPECT_EQ(part.buffers, parts[0].buffers);
  }
  EXPECT_LE(test::relative_error(joined.y, test::widen(whole.y)), 1e-6);
  EXPECT_LE(test::relative_error(joined.dx, test::widen(whole.dx)), 1e-6);
  EXPECT_LE(test::relative_error(joined.dw, test::widen(whole.dw)), 1e-6);
  EXPECT_LE(test::relative_error(parts[2].buffers, test::widen(whole.buffers)), 1e-6);
  EXPECT_EQ(parts[2].dw, std::vector<float>(10, 0.0F));
  // The same statistics without the other ranks would be something else.
  setup.reducer = nullptr;
  EXPECT_GT(test::relative_error(run(setup, 1, 5).buffers, test::widen(whole.buffers)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Activations, SyncBatchNorm,
                         testing::Values(Activation::none, Activation::relu));

}  // namespace
}  // namespace paceline
