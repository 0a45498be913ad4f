// SPDX-License-Identifier: Apache-2.0
// What a layer made of layers does itself with activations, on whatever device they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "common/core/precision.h"

namespace paceline {

/// Memory of the device that grows when asked to; what it held is lost then.
class StoredMemory {
 public:
  StoredMemory() = default;
  virtual ~StoredMemory() = default;
  StoredMemory(const StoredMemory&) = delete;
  StoredMemory& operator=(const StoredMemory&) = delete;
  /// Throws Error when the device has no such memory.
  virtual void grow(std::size_t bytes) = 0;
  [[nodiscard]] virtual std::size_t size() const noexcept = 0;
  [[nodiscard]] virtual float* data() const noexcept = 0;
};

/// Activations are passed as Layer passes them; `elements` counts theirs. On a GPU calls queue
/// their work. Used by one thread.
class LayerStore {
 public:
  LayerStore() = default;
  virtual ~LayerStore() = default;
  LayerStore(const LayerStore&) = delete;
  LayerStore& operator=(const LayerStore&) = delete;

  /// Bytes of a stored activation.
  [[nodiscard]] virtual std::size_t element_bytes() const noexcept = 0;
  /// The format that fp32 values are rounded to, as Sequential does; fp32 where values are stored
  /// in their format, so that nobody has to.
  [[nodiscard]] virtual Precision rounds_to() const noexcept = 0;
  [[nodiscard]] virtual std::unique_ptr<StoredMemory> memory() = 0;
  virtual void copy(const float* from, float* to, std::int64_t elements) = 0;
  /// out[i] = a[i] + scale·b[i]; out may be a.
  virtual void add(const float* a, const float* b, float* out, float scale,
                   std::int64_t elements) = 0;
  /// Of gradients of parameters, fp32.
  virtual void clear(std::span<float> values) = 0;

  /// What lies `elements` after `begin`.
  [[nodiscard]] float* after(float* begin, std::size_t elements) const noexcept {
    return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(begin) +
                                    elements * element_bytes());
  }
};

}  // namespace paceline
