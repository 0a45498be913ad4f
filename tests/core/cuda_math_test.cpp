// SPDX-License-Identifier: Apache-2.0
// Products and convolutions of the CUDA module on a real GPU, against loops in double. Without a
// GPU every case is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/half.h"
#include "tests/core/inputs.h"
#include "tests/core/on_gpu.h"
#include "tests/support/host_math.h"

namespace paceline {
namespace {

using cuda::Epilogue;
using test::Cuda;
using test::OnDevice;
using Bytes = std::vector<std::byte>;

constexpr Precision kFormats[] = {Precision::fp32, Precision::bf16, Precision::fp16};

double tolerance(Precision format) {
  return format == Precision::fp32 ? 1e-4 : 1e-2;
}

/// Made-up values as a tensor of the format.
Bytes tensor(std::uint64_t key, std::int64_t elements, Precision format) {
  const std::vector<float> values = test::values(key, static_cast<std::size_t>(elements));
  if (format == Precision::fp32) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::uint16_t> bits(values.size());
  format == Precision::bf16 ? to_bfloat(values, 1.0F, bits) : to_half(values, 1.0F, bits);
  const auto bytes = std::as_bytes(std::span(bits));
  return {bytes.begin(), bytes.end()};
}

std::vector<float> numbers(const Bytes& tensor, Precision format) {
  if (format == Precision::fp32) {
    const auto* from = reinterpret_cast<const float*>(tensor.data());
    return {from, from + tensor.size() / sizeof(float)};
  }
  const std::span bits(reinterpret_cast<const std::uint16_t*>(tensor.data()), tensor.size() / 2);
  std::vector<float> out(bits.size());
  format == Precision::bf16 ? from_bfloat(bits, 1.0F, out) : from_half(bits, 1.0F, out);
  return out;
}

void expect_near(const Bytes& computed, const Bytes& expected, Precision format, double most,
                 const std::string& what) {
  const std::vector<float> a = numbers(computed, format);
  EXPECT_LE(test::relative_error(a, test::widen(numbers(expected, format))), most) << what;
}

struct Operands {
  std::int64_t a, b, c;
};

/// Elements that a product's tensors take, with the gaps between rows and matrices.
Operands elements_of(const cuda::Matmul& p) {
  return {(p.a_transposed != 0 ? p.inner : p.rows) * p.a_stride + (p.batch - 1) * p.a_step,
          (p.b_transposed != 0 ? p.columns : p.inner) * p.b_stride + (p.batch - 1) * p.b_step,
          p.rows * p.c_stride + (p.batch - 1) * p.c_step};
}

/// `gap` elements more than a row needs, and as many more than a matrix does.
cuda::Matmul product(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                     std::int64_t batch = 1, std::int64_t gap = 0) {
  cuda::Matmul p{};
  p.rows = rows;
  p.columns = columns;
  p.inner = inner;
  p.batch = batch;
  p.a_stride = gap;
  p.b_stride = gap;
  p.c_stride = columns + gap;
  p.alpha = 1.0F;
  return p;
}

cuda::Matmul transposed(cuda::Matmul p, bool a, bool b) {
  const std::int64_t gap = p.a_stride;
  p.a_transposed = a ? 1 : 0;
  p.b_transposed = b ? 1 : 0;
  p.a_stride = (a ? p.rows : p.inner) + gap;
  p.b_stride = (b ? p.inner : p.columns) + gap;
  p.a_step = (a ? p.inner : p.rows) * p.a_stride + gap;
  p.b_step = (b ? p.columns : p.inner) * p.b_stride + gap;
  p.c_step = p.rows * p.c_stride + gap;
  return p;
}

cuda::Matmul with(cuda::Matmul p, Epilogue epilogue) {
  p.epilogue = epilogue;
  return p;
}

/// Twice, so that the second call takes the plan of the first: equal calls give equal bits.
void check_product(cuda::Matmul p, Gpu& gpu, const std::string& what) {
  const Precision output = p.fp32_output != 0 ? Precision::fp32 : p.format;
  const Operands n = elements_of(p);
  const Bytes a = tensor(1, n.a, p.format);
  const Bytes b = tensor(2, n.b, p.format);
  const Bytes before = tensor(3, n.c, output);
  const std::vector<float> bias = test::values(4, static_cast<std::size_t>(p.columns));
  cuda::Matmul on_host = p;
  Bytes expected = before;
  on_host.a = a.data();
  on_host.b = b.data();
  on_host.c = expected.data();
  on_host.bias = bias.data();
  test::host_matmul(on_host);

  const OnDevice<std::byte> device_a(a, gpu);
  const OnDevice<std::byte> device_b(b, gpu);
  const OnDevice<float> device_bias(bias, gpu);
  p.a = device_a.get();
  p.b = device_b.get();
  p.bias = device_bias.get();
  Bytes first;
  for (int call = 0; call < 2; ++call) {
    const OnDevice<std::byte> device_c(before, gpu);
    p.c = device_c.get();
    gpu.check(gpu.api().math.matmul(gpu.math(), &p), what);
    const Bytes computed = device_c.values();
    expect_near(computed, expected, output, tolerance(p.format), what);
    if (call == 0) {
      first = computed;
    }
    EXPECT_EQ(computed, first) << what;
  }
}

TEST_F(Cuda, ProductsOfAllLayouts) {
  for (const Precision format : kFormats) {
    for (int sides = 0; sides < 4; ++sides) {
      const std::string what = fmt::format("{}, transposed {}", precision_name(format), sides);
      for (const std::int64_t gap : {std::int64_t{0}, std::int64_t{3}, std::int64_t{8}}) {
        for (cuda::Matmul p : {product(64, 48, 32, 1, gap), product(33, 17, 65, 3, gap)}) {
          p = transposed(p, sides % 2 == 1, sides / 2 == 1);
          p.format = format;
          check_product(p, gpu(), what);
        }
      }
    }
  }
}

TEST_F(Cuda, ProductsOfOddSizes) {
  for (const Precision format : kFormats) {
    for (cuda::Matmul p : {product(1, 1, 1), product(1, 1000, 7), product(257, 1, 129),
                           product(5, 10, 784), product(2, 3, 1, 40)}) {
      p = transposed(p, false, true);
      p.format = format;
      check_product(p, gpu(), fmt::format("{} {}x{}", precision_name(format), p.rows, p.columns));
    }
  }
}

TEST_F(Cuda, ProductsWithEpilogues) {
  for (const Precision format : kFormats) {
    for (const Epilogue epilogue : {Epilogue::bias, Epilogue::bias_relu, Epilogue::bias_gelu}) {
      for (const std::int32_t fp32_output : {0, 1}) {
        for (cuda::Matmul p : {product(64, 128, 32), product(31, 29, 27, 2), product(7, 13, 5)}) {
          p = transposed(with(p, epilogue), false, true);
          p.format = format;
          p.fp32_output = fp32_output;
          check_product(p, gpu(),
                        fmt::format("{}, epilogue {}, fp32 output {}", precision_name(format),
                                    static_cast<int>(epilogue), fp32_output));
        }
      }
    }
  }
}

TEST_F(Cuda, ProductsAddToWhatIsThere) {
  for (const Precision format : kFormats) {
    for (const std::int32_t fp32_output : {0, 1}) {
      for (cuda::Matmul p : {product(48, 64, 80), product(19, 21, 23, 2)}) {
        p = transposed(p, true, false);
        p.format = format;
        p.fp32_output = fp32_output;
        p.alpha = 0.5F;
        p.beta = 1.0F;
        check_product(p, gpu(), fmt::format("{} added", precision_name(format)));
      }
    }
  }
}

/// The parts of one tensor of rows as a batch: the heads of an attention.
TEST_F(Cuda, ProductsOfInterleavedMatrices) {
  for (const Precision format : kFormats) {
    cuda::Matmul p = transposed(product(16, 16, 8, 4), false, true);
    p.format = format;
    p.a_stride = 32;
    p.b_stride = 32;
    p.a_step = 8;
    p.b_step = 8;
    check_product(p, gpu(), "heads");
  }
}

TEST_F(Cuda, WorkspaceIsCounted) {
  cuda::Matmul p = transposed(product(8, 8, 8), false, false);
  check_product(p, gpu(), "a product");
  EXPECT_GE(gpu().api().math.workspace_bytes(gpu().math()), std::size_t{1} << 20);
}

using Loop = void (*)(const cuda::Convolution&, const void*, const void*, void*);
using Call = int (*)(void*, const cuda::Convolution*, const void*, const void*, void*);

/// Twice: equal calls give equal bits.
void check_pass(const cuda::Convolution& s, std::array<std::int64_t, 3> elements, Loop loop,
                Call call, Gpu& gpu) {
  const Bytes a = tensor(1, elements[0], s.format);
  const Bytes b = tensor(2, elements[1], s.format);
  Bytes expected = tensor(3, elements[2], s.format);
  const OnDevice<std::byte> device_a(a, gpu);
  const OnDevice<std::byte> device_b(b, gpu);
  const OnDevice<std::byte> device_c(expected, gpu);
  const std::string what =
      fmt::format("{} {}x{} stride {}, {} to {} channels", precision_name(s.format), s.kernel,
                  s.kernel, s.stride, s.channels, s.outputs);
  loop(s, a.data(), b.data(), expected.data());
  Bytes first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    gpu.check(call(gpu.math(), &s, device_a.get(), device_b.get(), device_c.get()), what);
    const Bytes computed = device_c.values();
    expect_near(computed, expected, s.format, tolerance(s.format), what);
    if (repeat == 0) {
      first = computed;
    }
    EXPECT_EQ(computed, first) << what;
  }
}

/// Elements of a convolution's input, filter and output.
struct ConvElements {
  std::int64_t x, filter, y;
};

ConvElements elements_of(const cuda::Convolution& s) {
  const std::int64_t rows = (s.height + 2 * s.padding - s.kernel) / s.stride + 1;
  const std::int64_t columns = (s.width + 2 * s.padding - s.kernel) / s.stride + 1;
  return {s.samples * s.height * s.width * s.channels, s.outputs * s.kernel * s.kernel * s.channels,
          s.samples * rows * columns * s.outputs};
}

void check_convolutions(Gpu& gpu) {
  const cuda::MathApi& math = gpu.api().math;
  for (const Precision format : kFormats) {
    for (cuda::Convolution s : {cuda::Convolution{format, 3, 1, 1, 2, 8, 8, 16, 32},
                                cuda::Convolution{format, 3, 2, 1, 3, 9, 7, 8, 24},
                                cuda::Convolution{format, 1, 2, 0, 2, 8, 6, 64, 16},
                                cuda::Convolution{format, 7, 2, 3, 2, 20, 20, 3, 16},
                                cuda::Convolution{format, 5, 1, 2, 2, 6, 5, 1, 7}}) {
      const auto [x, filter, y] = elements_of(s);
      check_pass(s, {x, filter, y}, test::host_convolve, math.convolve, gpu);
      check_pass(s, {y, filter, x}, test::host_input_gradient, math.convolve_input_gradient, gpu);
      check_pass(s, {x, y, filter}, test::host_filter_gradient, math.convolve_filter_gradient, gpu);
    }
  }
}

TEST_F(Cuda, Convolutions) {
  check_convolutions(gpu());
}

TEST_F(Cuda, TunedConvolutions) {
  Gpu tuned(test::module_under_test(), {.index = 0, .tune = true});
  check_convolutions(tuned);
}

/// Long sums, which cuDNN likes to split.
void expect_filter_gradient_repeats(const cuda::Convolution& s, Gpu& gpu) {
  constexpr int kCalls = 5;
  const auto [x, filter, y] = elements_of(s);
  const OnDevice<std::byte> device_x(tensor(1, x, s.format), gpu);
  const OnDevice<std::byte> device_dy(tensor(2, y, s.format), gpu);
  const OnDevice<std::byte> gradient(tensor(3, filter, s.format), gpu);
  Bytes first;
  for (int call = 0; call < kCalls; ++call) {
    gpu.check(gpu.api().math.convolve_filter_gradient(gpu.math(), &s, device_x.get(),
                                                      device_dy.get(), gradient.get()),
              "a filter's gradient");
    const Bytes computed = gradient.values();
    if (call == 0) {
      first = computed;
    }
    EXPECT_EQ(computed, first) << precision_name(s.format) << ", " << s.kernel << "x" << s.kernel;
  }
}

TEST_F(Cuda, LongSumsOfFilterGradientsRepeat) {
  for (const bool tune : {false, true}) {
    Gpu gpu(test::module_under_test(), {.index = 0, .tf32 = true, .tune = tune});
    for (const Precision format : kFormats) {
      expect_filter_gradient_repeats({format, 7, 2, 3, 8, 224, 224, 3, 64}, gpu);
      expect_filter_gradient_repeats({format, 3, 1, 1, 16, 56, 56, 64, 64}, gpu);
      expect_filter_gradient_repeats({format, 1, 1, 0, 16, 56, 56, 64, 256}, gpu);
      expect_filter_gradient_repeats({format, 3, 1, 1, 16, 7, 7, 512, 512}, gpu);
    }
  }
}

/// In fp32 a filter of few elements may lie anywhere in the weights.
TEST_F(Cuda, ConvolutionsOfFiltersAtAnyAddress) {
  const cuda::Convolution s{Precision::fp32, 1, 1, 0, 2, 4, 4, 8, 8};
  const std::vector<float> x = test::values(1, 2 * 4 * 4 * 8);
  const std::vector<float> filter = test::values(2, 8 * 8 + 1);
  std::vector<float> expected(x.size());
  test::host_convolve(s, x.data(), filter.data() + 1, expected.data());
  const OnDevice<float> device_x(x, gpu());
  const OnDevice<float> device_filter(filter, gpu());
  const OnDevice<float> device_y(expected, gpu());
  gpu().check(gpu().api().math.convolve(gpu().math(), &s, device_x.get(), device_filter.get() + 1,
                                        device_y.get()),
              "a convolution");
  EXPECT_LE(test::relative_error(device_y.values(), test::widen(expected)), 1e-4);
}

TEST_F(Cuda, TensorCoresMayRoundFp32WhenAllowed) {
  Gpu fast(test::module_under_test(), {.index = 0, .tf32 = true});
  cuda::Matmul p = transposed(product(128, 128, 64), false, true);
  const Operands n = elements_of(p);
  const Bytes a = tensor(1, n.a, p.format);
  const Bytes b = tensor(2, n.b, p.format);
  Bytes expected = tensor(3, n.c, p.format);
  p.a = a.data();
  p.b = b.data();
  p.c = expected.data();
  test::host_matmul(p);
  const OnDevice<std::byte> device_a(a, fast);
  const OnDevice<std::byte> device_b(b, fast);
  const OnDevice<std::byte> device_c(expected, fast);
  p.a = device_a.get();
  p.b = device_b.get();
  p.c = device_c.get();
  fast.check(fast.api().math.matmul(fast.math(), &p), "a product in TF32");
  expect_near(device_c.values(), expected, p.format, 2e-3, "TF32 keeps ten bits");
}

}  // namespace
}  // namespace paceline
