// SPDX-License-Identifier: Apache-2.0
// Functors of one element and updates on a GPU against the CPU, on whatever module is given: any
// number of elements, arrays that begin where packs do not, by the same distance or another.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "common/core/gpu/gpu.h"
#include "common/core/gpu/gpu_context.h"
#include "common/core/kernels_column_gradients.h"
#include "common/core/kernels_stored.h"
#include "common/core/kernels_sync.h"
#include "common/core/kernels_transformer.h"
#include "common/core/optimizer.h"
#include "tests/core/inputs.h"
#include "tests/core/stored_values.h"

namespace paceline::test {

template <typename T>
constexpr Precision format_of() {
  if (std::is_same_v<T, float>) {
    return Precision::fp32;
  }
  return std::is_same_v<T, Half> ? Precision::fp16 : Precision::bf16;
}

/// The same values on the CPU and on a GPU.
template <typename T>
class BothSides {
 public:
  BothSides(std::uint64_t key, std::size_t n, Gpu& gpu)
      : device_(gpu, test::values(key, n), format_of<T>()) {
    for (const float value : test::values(key, n)) {
      host_.push_back(static_cast<T>(value));
    }
  }
  [[nodiscard]] T* at(bool device, std::size_t i) {
    return (device ? as_stored<T>(device_.get()) : host_.data()) + i;
  }
  void expect_near(double tolerance) const {
    std::vector<double> expected;
    for (const T value : host_) {
      expected.push_back(static_cast<double>(static_cast<float>(value)));
    }
    EXPECT_LE(relative_error(device_.values(), expected), tolerance);
  }

 private:
  std::vector<T> host_;
  StoredValues device_;
};

/// Where a functor's arrays begin, in elements.
struct ArrayShifts {
  std::size_t one;
  std::size_t other;
  std::size_t wide;
};

/// make(one, other, wide) is the functor over two arrays of T and one of float.
template <typename T, typename Make>
void check_element_functor(std::size_t n, const ArrayShifts& shifts, double tolerance, Gpu& gpu,
                           const Make& make) {
  BothSides<T> one(1, n + 16, gpu);
  BothSides<T> other(2, n + 16, gpu);
  BothSides<float> wide(3, n + 64, gpu);
  const auto functor = [&](bool device) {
    return make(one.at(device, shifts.one), other.at(device, shifts.other),
                wide.at(device, shifts.wide));
  };
  const auto count = static_cast<std::int64_t>(n);
  kernels::for_each(count, functor(false));
  gpu.each(count, functor(true), "a test");
  one.expect_near(tolerance);
  other.expect_near(tolerance);
  wide.expect_near(tolerance);
}

template <typename T>
void check_elements(std::size_t n, const ArrayShifts& shifts, double tolerance, Gpu& gpu) {
  SCOPED_TRACE(testing::Message() << precision_name(format_of<T>()) << ", " << n
                                  << " elements, shifted by " << shifts.one << ", " << shifts.other
                                  << ", " << shifts.wide);
  const auto check = [&](const auto& make) {
    check_element_functor<T>(n, shifts, tolerance, gpu, make);
  };
  check([](T* a, T* b, float*) { return kernels::BasicAddScaled<T>{a, b, a, 0.3F}; });
  check([](T* a, T* b, float*) { return kernels::MaskedByRelu<T>{a, b}; });
  check([](T* a, T* b, float*) { return kernels::BasicGelu<T>{a, b}; });
  check([](T* a, T* b, float*) { return kernels::BasicGeluGradient<T>{a, b}; });
  check([](T* a, T*, float* w) { return kernels::BiasActivation<T>{a, w, 16, true}; });
  check([](T* a, T*, float* w) { return kernels::BiasActivation<T>{a, w, 11, false}; });
  check([n](T* a, T* b, float*) {
    return kernels::Transposed<T, T>{a, b, 1, static_cast<std::int64_t>(n)};
  });
  check([](T*, T*, float* w) { return kernels::Multiply{w, 0.7F}; });
  check([](T*, T*, float* w) { return kernels::ClipByNorm{w + 1, w, 1e-3F}; });
  if constexpr (sizeof(T) == 2) {
    check([](T* a, T*, float* w) { return kernels::ToWire<T>{w, a, 0.3F}; });
    check([](T* a, T*, float* w) { return kernels::FromWire<T>{a, w, 0.3F}; });
  }
}

/// Of the module's update, the bits of Optimizer.
inline void check_update(const OptimizerSpec& spec, std::size_t n, std::size_t shift,
                         std::size_t moment_shift, Gpu& gpu) {
  SCOPED_TRACE(testing::Message() << n << " elements, shifted by " << shift << ", moments by "
                                  << moment_shift);
  const std::vector<float> zeros(n + 8);
  const StoredValues weights(gpu, values(1, n + 8), Precision::fp32);
  const StoredValues gradient(gpu, values(2, n + 8), Precision::fp32);
  const StoredValues moment1(gpu, zeros, Precision::fp32);
  const StoredValues moment2(gpu, zeros, Precision::fp32);
  std::vector<float> expected = values(1, n + 8);
  const std::vector<float> host_gradient = values(2, n + 8);
  const std::span<float> range = std::span(expected).subspan(shift, n);
  Optimizer optimizer(spec, n);
  for (int step = 0; step < 3; ++step) {
    const UpdateInfo info{step, 0.05F, 0.5F};
    optimizer.apply(0, range, range, std::span(host_gradient).subspan(shift, n), info);
    const kernels::UpdateOperands at{weights.get() + shift, weights.get() + shift,
                                     gradient.get() + shift, moment1.get() + moment_shift,
                                     moment2.get() + moment_shift};
    gpu.check(
        gpu.api().update(&spec, &info, &at, static_cast<std::int64_t>(n), gpu.stream().native()),
        "a test");
  }
  EXPECT_EQ(weights.values(), expected);
}

inline void check_all_elements(double tolerance, Gpu& gpu) {
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{9}, std::size_t{1003}, std::size_t{40000}}) {
    for (const ArrayShifts& shifts : {ArrayShifts{0, 0, 0}, ArrayShifts{3, 3, 3},
                                      ArrayShifts{8, 0, 32}, ArrayShifts{1, 0, 2}}) {
      check_elements<float>(n, shifts, tolerance, gpu);
      check_elements<Half>(n, shifts, 1e-2, gpu);
      check_elements<Bfloat>(n, shifts, 1e-2, gpu);
    }
    for (const OptimizerSpec& spec :
         {OptimizerSpec{.weight_decay = 1e-3F}, OptimizerSpec{.momentum = 0.9F},
          OptimizerSpec{.nesterov = true, .momentum = 0.9F},
          OptimizerSpec{.kind = OptimizerKind::adam, .weight_decay = 1e-3F}}) {
      check_update(spec, n, 0, 0, gpu);
      check_update(spec, n, 3, 3, gpu);
      check_update(spec, n, 3, 1, gpu);
    }
  }
}

}  // namespace paceline::test
