// SPDX-License-Identifier: Apache-2.0
// Where tensors live and how work on them is ordered. On the CPU work is done when a call returns,
// so Stream and Event carry nothing there; a GPU gives them a cudaStream_t and cudaEvent_t (see
// gpu/gpu.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace paceline {

enum class DeviceKind : std::uint8_t { cpu, cuda };

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

/// An ordered queue of device work. Not thread-safe; owned by the worker's training thread.
class Stream {
 public:
  Stream() = default;
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  /// The device's own handle (cudaStream_t), null on the CPU.
  [[nodiscard]] virtual void* native() const noexcept { return nullptr; }
  /// What is queued after it waits for the event; the host does not.
  virtual void wait(const Event& /*event*/) {}
  /// Moves the event to the end of what is queued so far.
  virtual void record(Event& /*event*/) {}
  /// Blocks the host until all that is queued is done. Throws Error when any of it failed.
  virtual void synchronize() {}
};

/// Floats in a device's memory, zero at first; freed with it.
class DeviceArena {
 public:
  DeviceArena() = default;
  virtual ~DeviceArena() = default;
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  /// On a GPU addresses of the device, which the host must not follow.
  [[nodiscard]] virtual std::span<float> values() noexcept = 0;
};

/// Device time of stretches of a stream, for a device whose work the host does not wait for.
class Stopwatch {
 public:
  Stopwatch() = default;
  virtual ~Stopwatch() = default;
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  /// At the end of what is queued so far. A start() without stop() is forgotten at the next.
  virtual void start() = 0;
  virtual void stop() = 0;
  /// Of the stretches that the device has come to the end of, each counted once.
  [[nodiscard]] virtual double take_seconds() = 0;
};

/// A device that a worker computes on. Outlives everything made for it; used by one thread. Spans
/// are memory of the device unless called `host`; work is queued on stream().
class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  [[nodiscard]] virtual DeviceKind kind() const noexcept { return DeviceKind::cpu; }
  /// What the model computes on.
  [[nodiscard]] virtual Stream& stream() noexcept { return stream_; }
  [[nodiscard]] virtual std::unique_ptr<Event> make_event() { return std::make_unique<Event>(); }
  /// Of stream(); null where the host's clock says the same.
  [[nodiscard]] virtual std::unique_ptr<Stopwatch> make_stopwatch() { return nullptr; }

  /// Throws Error naming `what`, the bytes wanted and those that are free.
  [[nodiscard]] virtual std::unique_ptr<DeviceArena> allocate(std::size_t floats,
                                                              std::string_view what);
  virtual void clear(std::span<float> values);
  /// to[i] += from[i]
  virtual void add(std::span<float> to, std::span<const float> from);
  virtual void multiply(std::span<float> values, float factor);
  /// Both block until the copy is done, and what was queued before it.
  virtual void download(std::span<const float> values, std::span<float> host);
  virtual void upload(std::span<const float> host, std::span<float> values);

  /// Of the device's own memory, taken by this process so far at most; 0 where it is the host's.
  [[nodiscard]] virtual std::size_t peak_bytes() const { return 0; }

 private:
  Stream stream_;
};

}  // namespace paceline
