// SPDX-License-Identifier: Apache-2.0
// What the layers of one model on a GPU share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/core/gpu/gpu.h"
#include "common/core/sequential.h"
#include "common/core/stored.h"

namespace paceline {

/// Everything is queued on the Gpu's stream, so what one layer leaves in a scratch area is free for
/// the next. Used by one thread; outlived by the Gpu.
class GpuContext final : public SharedScratch {
 public:
  /// `format`: of activations and of what products multiply.
  GpuContext(Gpu& gpu, Precision format) : gpu_(gpu), format_(format), input_format_(format) {}

  [[nodiscard]] Gpu& gpu() const noexcept { return gpu_; }
  [[nodiscard]] Precision format() const noexcept { return format_; }
  /// Of a batch's inputs: format(), unless they are whole numbers that it would round.
  [[nodiscard]] Precision input_format() const noexcept { return input_format_; }
  /// Before the model is made.
  void take_inputs_in_fp32() noexcept { input_format_ = Precision::fp32; }
  /// Of a stored element.
  [[nodiscard]] std::size_t element_bytes() const noexcept { return stored_bytes(format_); }
  [[nodiscard]] const cuda::MathApi& math() const noexcept { return gpu_.api().math; }

  /// Makes `memory` hold at least `bytes`. Where it grows, what it held is lost, and freed
  /// first. Throws Error naming `what` when there is no room.
  void grow(GpuMemory& memory, std::size_t bytes, std::string_view what) const;
  /// How often memory grew: addresses of before may be anyone's.
  [[nodiscard]] std::uint64_t growths() const noexcept { return growths_; }

  /// At least `bytes` for what lives within one call of a layer; which areas are for what is
  /// ScratchAreas' (activation_plan.h).
  template <typename T = void>
  [[nodiscard]] T* scratch(std::size_t area, std::size_t bytes) {
    grow(scratch_.at(area), bytes, "scratch of the layers");
    return scratch_.at(area).as<T>();
  }
  [[nodiscard]] std::size_t bytes() const noexcept override;
  /// The maths library's workspace.
  [[nodiscard]] std::size_t unplanned_bytes() const noexcept override;

  /// work(T{}) with the type that stores format().
  template <typename Work>
  void with_format(const Work& work) const {
    with_stored(format_, work);
  }

 private:
  Gpu& gpu_;
  Precision format_;
  Precision input_format_;
  mutable std::uint64_t growths_ = 0;
  std::array<GpuMemory, 4> scratch_;
};

/// An activation's address as Layer passes it, and as functors take it.
template <typename T>
[[nodiscard]] T* as_stored(float* address) noexcept {
  return static_cast<T*>(static_cast<void*>(address));
}
template <typename T>
[[nodiscard]] const T* as_stored(const float* address) noexcept {
  return static_cast<const T*>(static_cast<const void*>(address));
}

}  // namespace paceline
