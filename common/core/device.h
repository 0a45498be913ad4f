// SPDX-License-Identifier: Apache-2.0
// Where tensors live and how work on them is ordered. On the CPU work is done when a call returns,
// so Stream and Event carry nothing there; a CUDA device gives them a cudaStream_t and cudaEvent_t.
#pragma once

#include <cstdint>

namespace paceline {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// An ordered queue of device work. Not thread-safe; owned by the worker's training thread.
class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// The device's own handle (cudaStream_t), null on the CPU.
  [[nodiscard]] virtual void* native() const noexcept { return nullptr; }
};

/// Marks a point in a Stream.
class Event {
 public:
  Event() = default;
  virtual ~Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Blocks the host until the point has been reached. Any thread.
  virtual void synchronize() const {}
  [[nodiscard]] virtual void* native() const noexcept { return nullptr; }
};

/// A device that a worker computes on. Outlives everything made for it.
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  [[nodiscard]] virtual DeviceKind kind() const noexcept { return DeviceKind::cpu; }
};

}  // namespace paceline
