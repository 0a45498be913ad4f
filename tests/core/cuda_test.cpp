// SPDX-License-Identifier: Apache-2.0
// What the CUDA module computes, on a real GPU against the CPU. Without a GPU every case is
// skipped.
#include <gtest/gtest.h>

#include <limits>

#include "common/base/error.h"
#include "common/core/cuda_module.h"
#include "common/core/optimizer.h"
#include "tests/core/inputs.h"

namespace paceline {
namespace {

const CudaModule& module_under_test() {
#if defined(PACELINE_CUDA_MODULE_FOLDER)
  static const CudaModule module({.built = true, .folders = {PACELINE_CUDA_MODULE_FOLDER}});
#else
  static const CudaModule module({.built = false, .folders = {}});
#endif
  return module;
}

/// A module that should work here and does not is a failure, not a machine without a GPU.
bool machine_lacks_a_gpu(CudaState state) {
  return state == CudaState::built_without || state == CudaState::no_driver ||
         state == CudaState::no_device;
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const CudaModule& module = module_under_test();
    if (machine_lacks_a_gpu(module.state())) {
      GTEST_SKIP() << "skipped: no GPU (" << module.reason() << ")";
    }
    ASSERT_TRUE(module.usable()) << module.reason();
    module.check(module.api().use_device(0), "choosing device 0");
  }
};

/// One vector on the device, with what a test needs to fill, read and compare it.
template <typename T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, const CudaStream& stream)
      : buffer_(module_under_test(), values.size() * sizeof(T), "a test"),
        stream_(stream),
        elements_(values.size()) {
    buffer_.upload(std::as_bytes(std::span(values)), stream_);
    stream_.synchronize();
  }
  [[nodiscard]] T* get() const { return buffer_.as<T>(); }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> out(elements_);
    buffer_.download(std::as_writable_bytes(std::span(out)), stream_);
    stream_.synchronize();
    return out;
  }

 private:
  CudaBuffer buffer_;
  const CudaStream& stream_;
  std::size_t elements_;
};

void check(int status, const char* what) {
  module_under_test().check(status, what);
}

TEST_F(Cuda, CopiesThereAndBack) {
  const CudaStream stream(module_under_test());
  const auto values = test::values(1, 1'000'003);
  EXPECT_EQ(OnDevice<float>(values, stream).values(), values);
}

TEST_F(Cuda, OutOfMemoryNamesBytes) {
  constexpr std::size_t kTooMuch = std::size_t{1} << 50;
  try {
    const CudaBuffer buffer(module_under_test(), kTooMuch, "the weights");
    FAIL() << "there cannot be that much memory";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("the weights wants 1125899906842624 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("are free"), std::string::npos) << text;
  }
  const CudaStream stream(module_under_test());
  EXPECT_EQ(OnDevice<float>({1.0F, 2.0F}, stream).values(), (std::vector<float>{1.0F, 2.0F}));
}

void run_optimizer(const OptimizerSpec& spec, std::size_t n, const CudaStream& stream) {
  Optimizer optimizer(spec, n);
  std::vector<float> expected = test::values(1, n);
  const OnDevice<float> weights(expected, stream);
  const OnDevice<float> moment1(std::vector<float>(n), stream);
  const OnDevice<float> moment2(std::vector<float>(n), stream);
  for (int step = 0; step < 20; ++step) {
    const auto gradient = test::values(10 + static_cast<std::uint64_t>(step), n, 100.0F);
    const UpdateInfo info{step, 0.05F, 1.0F / 7.0F};
    optimizer.apply(0, expected, expected, gradient, info);
    const OnDevice<float> device_gradient(gradient, stream);
    const kernels::UpdateOperands operands{weights.get(), weights.get(), device_gradient.get(),
                                           moment1.get(), moment2.get()};
    check(module_under_test().api().update(&spec, &info, &operands, static_cast<std::int64_t>(n),
                                           stream.native()),
          "update");
    stream.synchronize();
  }
  EXPECT_EQ(weights.values(), expected) << n << " elements: the rules round once per operation";
}

TEST_F(Cuda, OptimizersGiveTheBitsOfTheCpu) {
  const CudaStream stream(module_under_test());
  for (const OptimizerSpec& spec :
       {OptimizerSpec{}, OptimizerSpec{.momentum = 0.9F, .weight_decay = 1e-3F},
        OptimizerSpec{.nesterov = true, .momentum = 0.9F, .weight_decay = 1e-3F},
        OptimizerSpec{.kind = OptimizerKind::adam, .weight_decay = 1e-3F}}) {
    for (const std::size_t n : {std::size_t{1}, std::size_t{255}, std::size_t{100'003}}) {
      run_optimizer(spec, n, stream);
    }
  }
}

TEST_F(Cuda, NothingToDoIsNoError) {
  const CudaStream stream(module_under_test());
  const OptimizerSpec spec;
  const UpdateInfo info;
  const kernels::UpdateOperands none{};
  check(module_under_test().api().update(&spec, &info, &none, 0, stream.native()), "update");
  const kernels::SoftmaxCrossEntropy softmax{};
  check(module_under_test().api().softmax_cross_entropy(&softmax, 0, stream.native()), "softmax");
  stream.synchronize();
}

TEST_F(Cuda, SoftmaxCrossEntropyInPlace) {
  const CudaStream stream(module_under_test());
  for (const std::size_t classes : {std::size_t{1}, std::size_t{10}, std::size_t{1000}}) {
    const std::size_t rows = 1031;
    const auto logits = test::values(1, rows * classes, 8.0F);
    const auto labels = test::labels(2, rows, static_cast<int>(classes));
    std::vector<float> gradient = logits;
    std::vector<float> loss(rows);
    std::vector<std::uint8_t> correct(rows);
    const OnDevice<float> device_logits(logits, stream);
    const OnDevice<std::int32_t> device_labels(labels, stream);
    const OnDevice<float> device_loss(loss, stream);
    const OnDevice<std::uint8_t> device_correct(correct, stream);
    const auto count = static_cast<std::int64_t>(rows);
    const auto width = static_cast<std::int64_t>(classes);
    kernels::for_rows(count,
                      kernels::SoftmaxCrossEntropy{gradient.data(), labels.data(), gradient.data(),
                                                   loss.data(), correct.data(), width});
    const kernels::SoftmaxCrossEntropy functor{device_logits.get(),  device_labels.get(),
                                               device_logits.get(),  device_loss.get(),
                                               device_correct.get(), width};
    check(module_under_test().api().softmax_cross_entropy(&functor, count, stream.native()),
          "softmax_cross_entropy");
    stream.synchronize();
    EXPECT_LE(test::relative_error(device_logits.values(), test::widen(gradient)), 1e-5);
    EXPECT_LE(test::relative_error(device_loss.values(), test::widen(loss)), 1e-5);
    EXPECT_EQ(device_correct.values(), correct);
  }
}

TEST_F(Cuda, MaxPoolGivesTheBitsOfTheCpu) {
  const CudaStream stream(module_under_test());
  const kernels::PoolGeometry in{5, 7, 33};
  const std::size_t samples = 19;
  const std::size_t inputs = samples * 5 * 7 * 33;
  const std::size_t outputs = samples * 2 * 3 * 33;
  const auto rows = static_cast<std::int64_t>(samples * 2);
  const auto x = test::values(1, inputs);
  const auto dy = test::values(2, outputs);
  std::vector<float> y(outputs);
  std::vector<std::uint8_t> winner(outputs);
  std::vector<float> dx(inputs, std::numeric_limits<float>::quiet_NaN());
  const OnDevice<float> device_x(x, stream);
  const OnDevice<float> device_y(y, stream);
  const OnDevice<std::uint8_t> device_winner(winner, stream);
  const OnDevice<float> device_dy(dy, stream);
  const OnDevice<float> device_dx(dx, stream);
  kernels::for_rows(rows, kernels::MaxPoolForward{x.data(), y.data(), winner.data(), in});
  kernels::for_rows(
      rows, kernels::MaxPoolBackward{y.data(), winner.data(), dy.data(), dx.data(), in, true});
  const cuda::Api& api = module_under_test().api();
  const kernels::MaxPoolForward forward{device_x.get(), device_y.get(), device_winner.get(), in};
  const kernels::MaxPoolBackward backward{
      device_y.get(), device_winner.get(), device_dy.get(), device_dx.get(), in, true};
  check(api.max_pool_forward(&forward, rows, stream.native()), "max_pool_forward");
  check(api.max_pool_backward(&backward, rows, stream.native()), "max_pool_backward");
  stream.synchronize();
  EXPECT_EQ(device_y.values(), y);
  EXPECT_EQ(device_winner.values(), winner);
  EXPECT_EQ(device_dx.values(), dx);
}

TEST_F(Cuda, BiasGradientGivesTheBitsOfTheCpu) {
  const CudaStream stream(module_under_test());
  for (const std::size_t columns : {std::size_t{1}, std::size_t{64}, std::size_t{1000}}) {
    const std::size_t rows = 300;
    const auto y = test::values(1, rows * columns);
    std::vector<float> dy = test::values(2, rows * columns);
    std::vector<float> bias(columns);
    const OnDevice<float> device_y(y, stream);
    const OnDevice<float> device_dy(dy, stream);
    const OnDevice<float> device_bias(bias, stream);
    const auto height = static_cast<std::int64_t>(rows);
    const auto width = static_cast<std::int64_t>(columns);
    kernels::for_column_tiles(
        width, kernels::BiasGradient{y.data(), dy.data(), bias.data(), height, width});
    const kernels::BiasGradient functor{device_y.get(), device_dy.get(), device_bias.get(), height,
                                        width};
    check(module_under_test().api().bias_gradient(&functor, stream.native()), "bias_gradient");
    stream.synchronize();
    EXPECT_EQ(device_dy.values(), dy);
    EXPECT_EQ(device_bias.values(), bias);
  }
}

}  // namespace
}  // namespace paceline
