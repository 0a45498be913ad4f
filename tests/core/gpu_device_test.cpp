// SPDX-License-Identifier: Apache-2.0
// Memory, streams and events of a Gpu, and its LARS and LAMB, on the host's double of the module.
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "common/core/gpu/gpu.h"
#include "tests/core/inputs.h"
#include "tests/core/layerwise_on_gpu.h"
#include "tests/support/host_module.h"

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
  GpuStream copies(host());
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

}  // namespace
}  // namespace paceline
