// SPDX-License-Identifier: Apache-2.0
// Tensors of a test in a device's memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/half.h"
#include "common/core/gpu/gpu.h"
#include "common/core/layer.h"
#include "common/core/stored.h"

namespace paceline::test {

/// Values in a GPU's memory, in one of the formats, `shift` elements after where it is aligned.
class StoredValues {
 public:
  StoredValues(Gpu& gpu, const std::vector<float>& values, Precision format, std::size_t shift = 0)
      : gpu_(gpu),
        format_(format),
        elements_(values.size()),
        memory_(gpu, (elements_ + shift + 1) * sizeof(float), "a test"),
        begin_(memory_.as<std::byte>() + shift * stored_bytes(format)) {
    std::vector<std::uint16_t> bits(format == Precision::fp32 ? 0 : elements_);
    if (format == Precision::bf16) {
      to_bfloat(values, 1.0F, bits);
    } else if (format == Precision::fp16) {
      to_half(values, 1.0F, bits);
    }
    const void* from = bits.empty() ? static_cast<const void*>(values.data()) : bits.data();
    gpu_.check(gpu_.api().copy_to_device(begin_, from, bytes(), gpu_.stream().native()), "a test");
    gpu_.stream().synchronize();
  }
  [[nodiscard]] float* get() const { return reinterpret_cast<float*>(begin_); }
  [[nodiscard]] std::span<float> span() const { return {get(), elements_}; }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> out(elements_);
    std::vector<std::uint16_t> bits(format_ == Precision::fp32 ? 0 : elements_);
    void* to = bits.empty() ? static_cast<void*>(out.data()) : bits.data();
    gpu_.check(gpu_.api().copy_to_host(to, begin_, bytes(), gpu_.stream().native()), "a test");
    gpu_.stream().synchronize();
    if (format_ == Precision::bf16) {
      from_bfloat(bits, 1.0F, out);
    } else if (format_ == Precision::fp16) {
      from_half(bits, 1.0F, out);
    }
    return out;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return elements_ * stored_bytes(format_); }
  Gpu& gpu_;
  Precision format_;
  std::size_t elements_;
  GpuMemory memory_;
  std::byte* begin_;
};

inline std::size_t tensors_of(const Layer& layer) {
  std::size_t count = 0;
  for (const ParameterSpec& spec : layer.parameters()) {
    count += spec.elements();
  }
  return count;
}

}  // namespace paceline::test
