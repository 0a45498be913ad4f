// SPDX-License-Identifier: Apache-2.0
// A GPU as the program sees it: memory, streams, events, kernels and products of the CUDA module,
// with statuses turned into exceptions.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/core/cuda/functors.h"
#include "common/core/cuda_module.h"
#include "common/core/device.h"
#include "common/core/gpu/gpu_waits.h"

namespace paceline {

class Gpu;

/// Reusable; a point is recorded, waited for and recorded again.
class GpuEvent final : public Event {
 public:
  /// `timed`: seconds_since() can be asked, at some cost per record.
  explicit GpuEvent(const Gpu& gpu, bool timed = false);
  ~GpuEvent() override;
  void synchronize() const override { synchronize("an event"); }
  /// Until `what`, the work before the event, is done. Throws as GpuWaits::until does, with the
  /// limits of the Gpu it was made from.
  void synchronize(std::string_view what) const;
  [[nodiscard]] bool reached() const;
  [[nodiscard]] void* native() const noexcept override { return event_; }
  /// Device time between two timed events that were reached.
  [[nodiscard]] double seconds_since(const GpuEvent& begin) const;

 private:
  const CudaModule& module_;
  std::shared_ptr<const GpuWaits> waits_;
  void* event_ = nullptr;
};

class GpuStream final : public Stream {
 public:
  /// `name` is for messages.
  GpuStream(const Gpu& gpu, std::string_view name, bool high_priority = false);
  ~GpuStream() override;
  [[nodiscard]] void* native() const noexcept override { return stream_; }
  void wait(const Event& event) override;
  void record(Event& event) override;
  void synchronize() override { synchronize("the end of what is queued"); }
  /// Throws as GpuWaits::until does, with the limits of the Gpu it was made from.
  void synchronize(std::string_view what);
  /// For destructors; see GpuWaits::drain.
  bool drain() const noexcept { return waits_->drain(stream_); }

 private:
  const CudaModule& module_;
  std::shared_ptr<const GpuWaits> waits_;
  std::string name_;
  void* stream_ = nullptr;
};

/// Device memory, not cleared. Outlived by the Gpu; its end waits for the compute stream, and
/// leaves the memory to the process's end where that or another stream is stuck.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(Gpu& gpu, std::size_t bytes, std::string_view what);
  ~GpuMemory();
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory& operator=(GpuMemory&& other) noexcept;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  template <typename T = void>
  [[nodiscard]] T* as() const noexcept {
    return static_cast<T*>(memory_);
  }

 private:
  Gpu* gpu_ = nullptr;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Page-locks memory of the host for as long as it lives, so that copies run beside other work.
class PinnedRange {
 public:
  /// Stays locked where the Gpu is stuck.
  PinnedRange(const Gpu& gpu, std::span<std::byte> memory);
  ~PinnedRange();
  PinnedRange(const PinnedRange&) = delete;
  PinnedRange& operator=(const PinnedRange&) = delete;

 private:
  const CudaModule& module_;
  std::shared_ptr<const GpuWaits> waits_;
  std::span<std::byte> memory_;
};

/// When attention is computed by one fused kernel of the GPU's library.
enum class Fusing : std::uint8_t {
  never,
  ordered,  ///< where equal steps give equal bits
  always,   ///< where it has one
};

/// Who computes what both the program's own kernels and cuDNN can.
enum class LayerEngine : std::uint8_t {
  own,
  either,  ///< cuDNN where it has a kernel
  dnn,     ///< where it has none, that is an error
};

struct GpuOptions {
  int index = 0;      ///< among module.devices()
  bool tf32 = false;  ///< fp32 products on tensor cores
  bool tune = false;  ///< cuDNN's proposals for a convolution are timed, the fastest is taken
  Fusing attention = Fusing::ordered;
  LayerEngine norm = LayerEngine::own;  ///< of batch norms in training that no ranks share
  LayerEngine pool = LayerEngine::own;
  bool graphs = false;  ///< models queue a step that they know as CUDA graphs
  Nanoseconds timeout = GpuWaits::kUsualTimeout;  ///< of each wait of the host
  const AbortToken* abort = nullptr;              ///< ends waits; outlives the Gpu
};

/// Throws ConfigError `KEY = "cuda" cannot be used here`, with the reason, unless `module` is
/// usable.
void require_cuda(const CudaModule& module, std::string_view key);

/// Throws ConfigError naming cuda.device where a usable module has no GPU of that index.
void check_gpu_index(const CudaModule& module, int index);

/// cuda.device, or where that is -1 the GPU of the machine's member `local`: they take turns.
[[nodiscard]] int choose_gpu(const CudaModule& module, int configured, int local);

/// Makes its device the current one of the thread that constructs it; that thread alone uses it,
/// except where a Stream or Event says otherwise. Another thread that queues work calls
/// make_current() first.
class Gpu final : public Device {
 public:
  /// Throws ConfigError when the module is not usable (the reason in its words) or has no such
  /// device.
  Gpu(const CudaModule& module, const GpuOptions& options);
  ~Gpu() override;

  [[nodiscard]] DeviceKind kind() const noexcept override { return DeviceKind::cuda; }
  [[nodiscard]] GpuStream& stream() noexcept override { return stream_; }
  [[nodiscard]] std::unique_ptr<Event> make_event() override;
  [[nodiscard]] std::unique_ptr<Stopwatch> make_stopwatch() override;
  [[nodiscard]] std::unique_ptr<DeviceArena> allocate(std::size_t floats,
                                                      std::string_view what) override;
  void clear(std::span<float> values) override;
  void add(std::span<float> to, std::span<const float> from) override;
  void multiply(std::span<float> values, float factor) override;
  void download(std::span<const float> values, std::span<float> host) override;
  void upload(std::span<const float> host, std::span<float> values) override;

  [[nodiscard]] const CudaModule& module() const noexcept { return module_; }
  [[nodiscard]] const cuda::Api& api() const noexcept { return api_; }
  [[nodiscard]] int index() const noexcept { return index_; }
  [[nodiscard]] Fusing attention() const noexcept { return options_.attention; }
  [[nodiscard]] LayerEngine norm() const noexcept { return options_.norm; }
  [[nodiscard]] LayerEngine pool() const noexcept { return options_.pool; }
  [[nodiscard]] bool graphs() const noexcept { return options_.graphs; }
  /// The handle that cuda::MathApi takes; opens cuBLASLt (and cuDNN) at the first call. Throws
  /// Error naming the library that is missing.
  [[nodiscard]] void* math();
  /// Of the device's memory that products hold for themselves.
  [[nodiscard]] std::size_t math_bytes() const noexcept {
    return math_ != nullptr ? api_.math.workspace_bytes(math_) : 0;
  }
  /// Limits of the host's waits for this GPU.
  [[nodiscard]] const std::shared_ptr<const GpuWaits>& waits() const noexcept { return waits_; }
  /// For a destructor whose drain() failed: host memory that the GPU may still use lives on until
  /// this ends.
  void keep(Buffer memory) { kept_.push_back(std::move(memory)); }
  void make_current() const;
  /// Throws Error "CUDA: WHAT: text" unless status is a success.
  void check(int status, std::string_view what) const { module_.check(status, what); }
  /// Bytes held by GpuMemory and arenas now.
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_; }
  /// The most of them, and the most that this process took from the stream-ordered pool: as the two
  /// need not fall together, a bound from above.
  [[nodiscard]] std::size_t peak_bytes() const override;

  /// Queues f(i) for i in [0, n), or f(team, row) for every row, on stream() or `on`.
  template <typename F>
  void each(std::int64_t n, const F& functor, std::string_view what) {
    each(n, functor, stream_, what);
  }
  template <typename F>
  void each(std::int64_t n, const F& functor, const GpuStream& on, std::string_view what) {
    check(api_.each(cuda::PlaceOf<F, cuda::EachFunctors>::value, &functor, n, on.native()), what);
  }
  template <typename F>
  void rows(std::int64_t count, const F& functor, std::string_view what) {
    rows(count, functor, stream_, what);
  }
  template <typename F>
  void rows(std::int64_t count, const F& functor, const GpuStream& on, std::string_view what) {
    check(api_.rows(cuda::PlaceOf<F, cuda::RowFunctors>::value, &functor, count, on.native()),
          what);
  }

 private:
  friend class GpuMemory;
  const CudaModule& module_;
  const cuda::Api& api_;
  GpuOptions options_;
  int index_;
  std::shared_ptr<const GpuWaits> waits_;
  std::vector<Buffer> kept_;
  GpuStream stream_;
  void* math_ = nullptr;
  std::size_t held_ = 0;
  std::size_t peak_ = 0;
};

/// Throws Error unless `device` is a GPU.
[[nodiscard]] Gpu& as_gpu(Device& device);

}  // namespace paceline
