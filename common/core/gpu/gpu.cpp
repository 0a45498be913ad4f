// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/gpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/core/cuda_libraries.h"
#include "common/core/gpu/gpu_stopwatch.h"

namespace paceline {

namespace {

const CudaModule& usable(const CudaModule& module) {
  require_cuda(module, "device");
  return module;
}

int existing(const CudaModule& module, int index) {
  check_gpu_index(module, index);
  module.check(module.api().use_device(index), "choosing the device");
  return index;
}

class GpuArena final : public DeviceArena {
 public:
  GpuArena(Gpu& gpu, std::size_t floats, std::string_view what)
      : memory_(gpu, floats * sizeof(float), what), floats_(floats) {
    gpu.clear(values());
  }
  [[nodiscard]] std::span<float> values() noexcept override {
    return {memory_.as<float>(), floats_};
  }

 private:
  GpuMemory memory_;
  std::size_t floats_;
};

}  // namespace

GpuEvent::GpuEvent(const Gpu& gpu, bool timed) : module_(gpu.module()), waits_(gpu.waits()) {
  module_.check(module_.api().create_event(&event_, timed ? 1 : 0), "creating an event");
}

GpuEvent::~GpuEvent() {
  static_cast<void>(module_.api().destroy_event(event_));
}

void GpuEvent::synchronize(std::string_view what) const {
  waits_->until([this] { return module_.api().query_event(event_); }, what);
}

bool GpuEvent::reached() const {
  const int status = module_.api().query_event(event_);
  if (status == cuda::kNotReady) {
    return false;
  }
  module_.check(status, "asking for an event");
  return true;
}

double GpuEvent::seconds_since(const GpuEvent& begin) const {
  float ms = 0.0F;
  module_.check(module_.api().elapsed_ms(&ms, begin.event_, event_), "timing with events");
  return static_cast<double>(ms) / 1e3;
}

GpuStream::GpuStream(const Gpu& gpu, std::string_view name, bool high_priority)
    : module_(gpu.module()), waits_(gpu.waits()), name_(name) {
  module_.check(module_.api().create_stream(&stream_, high_priority ? 1 : 0), "creating a stream");
}

GpuStream::~GpuStream() {
  static_cast<void>(module_.api().destroy_stream(stream_));
}

void GpuStream::wait(const Event& event) {
  module_.check(module_.api().wait_event(stream_, event.native()), "making a stream wait");
}

void GpuStream::record(Event& event) {
  module_.check(module_.api().record_event(event.native(), stream_), "recording an event");
}

void GpuStream::synchronize(std::string_view what) {
  waits_->until([this] { return module_.api().query_stream(stream_); },
                fmt::format("{} (stream {})", what, name_));
}

GpuMemory::GpuMemory(Gpu& gpu, std::size_t bytes, std::string_view what)
    : gpu_(&gpu), bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  const cuda::Api& api = gpu.api();
  if (const int status = api.allocate(&memory_, bytes); status != cuda::kSuccess) {
    const CudaModule::MemoryLeft left = gpu.module().memory_left();
    throw Error(fmt::format("GPU {}: {} wants {} bytes, {} of {} are free: {}", gpu.index(), what,
                            bytes, left.free, left.total, api.error_text(status)));
  }
  gpu.held_ += bytes;
  gpu.peak_ = std::max(gpu.peak_, gpu.held_);
}

GpuMemory::~GpuMemory() {
  if (memory_ != nullptr && gpu_->stream().drain() && !gpu_->waits()->given_up()) {
    static_cast<void>(gpu_->api().release(memory_));
    gpu_->held_ -= bytes_;
  }
}

GpuMemory::GpuMemory(GpuMemory&& other) noexcept
    : gpu_(other.gpu_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedRange::PinnedRange(const Gpu& gpu, std::span<std::byte> memory)
    : module_(gpu.module()), waits_(gpu.waits()), memory_(memory) {
  if (!memory_.empty()) {
    module_.check(module_.api().register_host(memory_.data(), memory_.size()),
                  fmt::format("page-locking {} bytes of host memory", memory_.size()));
  }
}

PinnedRange::~PinnedRange() {
  if (!memory_.empty() && !waits_->given_up()) {
    static_cast<void>(module_.api().unregister_host(memory_.data()));
  }
}

void require_cuda(const CudaModule& module, std::string_view key) {
  if (!module.usable()) {
    throw ConfigError(
        fmt::format("{} = \"cuda\" cannot be used here: {}; allowed: cpu", key, module.reason()));
  }
}

void check_gpu_index(const CudaModule& module, int index) {
  const auto gpus = static_cast<int>(module.devices().size());
  if (index < 0 || index >= gpus) {
    throw ConfigError(
        fmt::format("cuda.device = {}: this machine has no such GPU; allowed 0..{}, or -1 for each "
                    "rank its own",
                    index, gpus - 1));
  }
}

Gpu::Gpu(const CudaModule& module, const GpuOptions& options)
    : module_(usable(module)),
      api_(module.api()),
      options_(options),
      index_(existing(module, options.index)),
      waits_(std::make_shared<GpuWaits>(module, index_, options.timeout, options.abort)),
      stream_(*this, "of computing") {}

Gpu::~Gpu() {
  if (math_ != nullptr && !waits_->given_up()) {  // it waits for the device
    static_cast<void>(api_.math.destroy(math_));
  }
}

std::unique_ptr<Event> Gpu::make_event() {
  return std::make_unique<GpuEvent>(*this);
}

std::unique_ptr<Stopwatch> Gpu::make_stopwatch() {
  return std::make_unique<GpuStopwatch>(*this, stream_);
}

std::unique_ptr<DeviceArena> Gpu::allocate(std::size_t floats, std::string_view what) {
  return std::make_unique<GpuArena>(*this, floats, what);
}

void Gpu::clear(std::span<float> values) {
  if (!values.empty()) {
    check(api_.fill(values.data(), 0, values.size_bytes(), stream_.native()), "clearing memory");
  }
}

void Gpu::add(std::span<float> to, std::span<const float> from) {
  each(static_cast<std::int64_t>(to.size()),
       kernels::AddScaled{to.data(), from.data(), to.data(), 1.0F}, "adding");
}

void Gpu::multiply(std::span<float> values, float factor) {
  each(static_cast<std::int64_t>(values.size()), kernels::Multiply{values.data(), factor},
       "scaling");
}

void Gpu::download(std::span<const float> values, std::span<float> host) {
  check(api_.copy_to_host(host.data(), values.data(), host.size_bytes(), stream_.native()),
        "copying to the host");
  stream_.synchronize("the end of a copy to the host");
}

void Gpu::upload(std::span<const float> host, std::span<float> values) {
  check(api_.copy_to_device(values.data(), host.data(), host.size_bytes(), stream_.native()),
        "copying to the device");
  stream_.synchronize("the end of a copy to the device");
}

void* Gpu::math() {
  if (math_ == nullptr) {
    const CudaLibraries& libraries = module_.libraries();
    const std::string blas = libraries.blas();
    const std::string dnn = libraries.dnn();
    const cuda::MathOptions options{.tf32 = options_.tf32 ? 1 : 0,
                                    .tune = options_.tune ? 1 : 0,
                                    .blas_library = blas.c_str(),
                                    .dnn_library = dnn.c_str()};
    check(api_.math.create(&math_, &options, stream_.native()),
          fmt::format("opening {} and {}", blas, dnn));
  }
  return math_;
}

std::size_t Gpu::peak_bytes() const {
  std::size_t used = 0;
  std::size_t most = 0;
  check(api_.pool_memory(&used, &most), "asking for the pool's memory");
  return peak_ + most;
}

int choose_gpu(const CudaModule& module, int configured, int local) {
  const auto gpus = std::max(1, static_cast<int>(module.devices().size()));
  return configured >= 0 ? configured : local % gpus;
}

void Gpu::make_current() const {
  check(api_.use_device(index_), "choosing the device");
}

Gpu& as_gpu(Device& device) {
  if (device.kind() != DeviceKind::cuda) {
    throw Error("this backend keeps its weights on a GPU: it needs device = cuda");
  }
  return static_cast<Gpu&>(device);
}

}  // namespace paceline
