// SPDX-License-Identifier: Apache-2.0
// Memory, streams and events of a Gpu, and its LARS and LAMB, on the host's double of the module.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/core/gpu/gpu.h"
#include "common/core/gpu/gpu_model.h"
#include "tests/core/inputs.h"
#include "tests/core/layerwise_on_gpu.h"
#include "tests/support/host_module.h"
#include "tests/support/never_done.h"

namespace paceline {
namespace {

const CudaModule& host() {
  static const CudaModule module(test::host_module());
  return module;
}

TEST(GpuDevice, CopiesAddsScalesAndClears) {
  Gpu gpu(host(), {});
  EXPECT_EQ(gpu.kind(), DeviceKind::cuda);
  const std::vector<float> a = test::values(1, 1000);
  const auto arena = gpu.allocate(1000, "a test");
  const auto other = gpu.allocate(1000, "a test");
  std::vector<float> out(1000, 1.0F);
  gpu.download(arena->values(), out);
  EXPECT_EQ(out, std::vector<float>(1000)) << "an arena is zero at first";
  gpu.upload(a, arena->values());
  gpu.upload(a, other->values());
  gpu.add(arena->values(), other->values());
  gpu.multiply(arena->values(), 0.5F);
  gpu.download(arena->values(), out);
  EXPECT_EQ(out, a);
}

TEST(GpuDevice, StreamsWaitForEvents) {
  Gpu gpu(host(), {});
  GpuStream copies(gpu, "of copies");
  const std::vector<float> a = test::values(1, 4096);
  const auto arena = gpu.allocate(a.size(), "a test");
  std::vector<float> out(a.size());
  const auto ready = gpu.make_event();
  gpu.upload(a, arena->values());
  for (int i = 0; i < 20; ++i) {
    gpu.multiply(arena->values(), 2.0F);
  }
  gpu.stream().record(*ready);
  copies.wait(*ready);
  host().check(gpu.api().copy_to_host(out.data(), arena->values().data(),
                                      arena->values().size_bytes(), copies.native()),
               "copying");
  copies.synchronize();
  EXPECT_EQ(out[17], a[17] * 1048576.0F);
}

TEST(GpuDevice, OutOfMemoryNamesWhatWantedHowMuch) {
  Gpu gpu(host(), {});
  const std::size_t before = gpu.held_bytes();
  try {
    static_cast<void>(gpu.allocate(std::size_t{1} << 40, "the gradients"));
    FAIL() << "there cannot be that much memory";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the gradients wants 4398046511104 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("are free: out of memory"), std::string::npos) << text;
  }
  EXPECT_EQ(gpu.held_bytes(), before);
}

TEST(GpuDevice, ACallThatFindsNoMemorySaysWhatIsFree) {
  const Gpu gpu(host(), {});
  try {
    gpu.check(cuda::kOutOfMemory, "conv1");
    FAIL() << "was a failure";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("CUDA: conv1: out of memory ("), std::string::npos) << text;
    EXPECT_NE(text.find(" bytes are free)"), std::string::npos) << text;
  }
}

TEST(GpuDevice, PeakIsOfArenasAndOfThePool) {
  cuda::Api table = test::host_module();
  constexpr std::size_t kPool = 12345;
  table.pool_memory = [](std::size_t* used, std::size_t* peak) {
    *used = 0;
    *peak = kPool;
    return cuda::kSuccess;
  };
  const CudaModule module(table);
  Gpu gpu(module, {});
  {
    const auto first = gpu.allocate(1000, "first");
    const auto second = gpu.allocate(24, "second");
  }
  static_cast<void>(gpu.allocate(100, "third"));
  EXPECT_EQ(gpu.held_bytes(), 0U);
  EXPECT_EQ(gpu.peak_bytes(), 4096 + kPool);
  EXPECT_EQ(Device().peak_bytes(), 0U);
}

TEST(GpuDevice, LarsAndLambAreTheCpus) {
  Gpu gpu(host(), {});
  test::expect_same_layerwise(gpu, 1e-6);
}

TEST(GpuDevice, RefusesADeviceThatIsNotThere) {
  for (const int index : {-1, 8}) {
    try {
      const Gpu gpu(host(), {.index = index});
      FAIL() << index;
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("allowed 0..7"), std::string::npos) << error.what();
    }
  }
}

GpuOptions impatient() {
  GpuOptions options;
  options.index = 3;
  options.timeout = std::chrono::milliseconds(50);
  return options;
}

template <typename Wait>
std::string timeout_of(const Wait& wait) {
  try {
    wait();
  } catch (const TimeoutError& error) {
    return error.what();
  }
  return "no timeout";
}

/// What a stuck Gpu leaves in place is left until the test is over.
class StuckGpu : public testing::Test {
 protected:
  ~StuckGpu() override { test::free_host_module(); }
};

TEST_F(StuckGpu, AStreamThatNeverEndsIsATimeoutThatNamesIt) {
  Gpu gpu(host(), impatient());
  GpuStream copies(gpu, "of copies");
  const GpuEvent event(gpu);
  const test::NeverDone stuck(gpu.stream());
  const std::string text = timeout_of([&] { gpu.stream().synchronize("a test's end"); });
  EXPECT_NE(text.find("GPU 3 did not get to a test's end (stream of computing) within 0.1 s"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("comm.timeout"), std::string::npos) << text;
  EXPECT_FALSE(gpu.stream().drain()) << "given up: no second wait";
  copies.synchronize();
  event.synchronize();
}

/// Their times are the host's clock, no GPU's.
TEST(GpuDevice, TimedEventsAndCopiesBetweenDevices) {
  Gpu gpu(host(), {});
  const std::vector<float> a = test::values(1, 4096);
  const auto from = gpu.allocate(a.size(), "a test");
  const auto to = gpu.allocate(a.size(), "a test");
  gpu.upload(a, from->values());
  GpuEvent begin(gpu, true);
  GpuEvent end(gpu, true);
  gpu.stream().record(begin);
  gpu.check(gpu.api().copy_to_peer(to->values().data(), 1, from->values().data(), 0,
                                   from->values().size_bytes(), gpu.stream().native()),
            "copying to another device");
  gpu.stream().record(end);
  end.synchronize("a copy");
  EXPECT_GE(end.seconds_since(begin), 0.0);
  EXPECT_LT(end.seconds_since(begin), 60.0);
  std::vector<float> out(a.size());
  gpu.download(to->values(), out);
  EXPECT_EQ(out, a);
  const GpuEvent never(gpu, true);
  EXPECT_THROW(static_cast<void>(end.seconds_since(never)), Error);
}

TEST_F(StuckGpu, MemoryOfAStuckStreamIsLeftAlone) {
  Gpu gpu(host(), impatient());
  const test::NeverDone stuck(gpu.stream());
  const std::size_t before = gpu.held_bytes();
  { const GpuMemory memory(gpu, 1000, "a test"); }
  EXPECT_EQ(gpu.held_bytes(), before + 1000) << "work on it may still come";
}

TEST_F(StuckGpu, MemoryIsLeftAloneWhereAnotherStreamIsStuck) {
  Gpu gpu(host(), impatient());
  const GpuStream other(gpu, "of a test");
  const test::NeverDone stuck(other);
  EXPECT_FALSE(other.drain());
  { const GpuMemory memory(gpu, 1000, "a test"); }
  EXPECT_EQ(gpu.held_bytes(), 1000U) << "freeing waits for the whole device";
}

TEST_F(StuckGpu, AnAbortEndsAWait) {
  AbortToken abort;
  GpuOptions options;
  options.abort = &abort;
  Gpu gpu(host(), options);
  const test::NeverDone stuck(gpu.stream());
  abort.request(std::make_exception_ptr(PeerLost("rank 1 is gone")));
  EXPECT_THROW(gpu.stream().synchronize(), PeerLost);
}

TEST_F(StuckGpu, ALossThatDoesNotComeNamesItsStep) {
  std::vector<float> values(4, 0.5F);
  const std::vector<std::int32_t> labels{1};
  const std::vector<float> weights = test::values(1, 15);
  std::vector<float> gradients(weights.size());
  Gpu gpu(host(), impatient());
  const test::NeverDone stuck(gpu.stream());
  const auto model = make_gpu_model("softmax", {2, 2, 1}, 3, {}, gpu);
  model->begin_step(7);
  model->train_batch({values, labels, 1}, weights, gradients, nullptr);
  const std::string text = timeout_of([&] { static_cast<void>(model->take_result()); });
  EXPECT_NE(text.find("the loss of step 7"), std::string::npos) << text;
  EXPECT_NE(text.find("stream of computing"), std::string::npos) << text;
}

}  // namespace
}  // namespace paceline
