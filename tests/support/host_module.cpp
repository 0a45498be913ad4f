// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_module.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "common/core/cuda/functors.h"
#include "common/core/kernels_each.h"
#include "common/core/optimizer_rules.h"
#include "common/core/optimizer_tensors.h"
#include "tests/support/host_layers.h"
#include "tests/support/host_log.h"
#include "tests/support/host_math.h"
#include "tests/support/host_nccl.h"
#include "tests/support/host_streams.h"

namespace paceline::test {

namespace {

using cuda::kSuccess;

constexpr int kDevices = 8;
constexpr std::uint64_t kDeviceBytes = std::uint64_t{8} << 30;

/// What is allocated, for all devices together.
struct HostMemory {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
  std::size_t held = 0;
  std::size_t limit = kDeviceBytes;
};

HostMemory& host_memory() {
  static HostMemory memory;
  return memory;
}

const char* error_text(int status) {
  return status == cuda::kOutOfMemory    ? "out of memory"
         : status == kCaptureUnsupported ? "operation not permitted when stream is capturing"
                                         : "an error of the double";
}

int versions(int* driver, int* runtime) {
  *driver = 13000;
  *runtime = 13000;
  return kSuccess;
}

int device_count(int* count) {
  *count = kDevices;
  return kSuccess;
}

int device_info(int device, cuda::DeviceInfo* info) {
  *info = {};
  std::snprintf(info->name, sizeof info->name, "Double %d (no GPU)", device);
  std::snprintf(info->bus_id, sizeof info->bus_id, "0000:%02x:00.0", static_cast<unsigned>(device));
  info->memory_bytes = kDeviceBytes;
  info->major = 9;
  return kSuccess;
}

int peer_access(int device, int peer, int* possible) {
  *possible = device != peer ? 1 : 0;
  return kSuccess;
}

int open_peer(int /*device*/, int /*peer*/) {
  return kSuccess;
}

int use_device(int device) {
  return device >= 0 && device < kDevices ? kSuccess : 101;
}

int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  *free_bytes = memory.limit - memory.held;
  *total_bytes = memory.limit;
  return kSuccess;
}

int allocate(void** made, std::size_t bytes) {
  if (const int refused = refuse_in_capture(); refused != kSuccess) {
    return refused;
  }
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  if (memory.held + bytes > memory.limit) {
    return cuda::kOutOfMemory;
  }
  constexpr std::size_t kAlignment = 256;
  *made = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  std::memset(*made, 0xFF, bytes);  // not-a-number, so that nobody counts on zeros
  memory.blocks[*made] = bytes;
  memory.held += bytes;
  return kSuccess;
}

int release(void* block) {
  if (const int refused = refuse_in_capture(); refused != kSuccess) {
    return refused;
  }
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  const auto found = memory.blocks.find(block);
  if (found == memory.blocks.end()) {
    return 1;
  }
  memory.held -= found->second;
  memory.blocks.erase(found);
  std::free(block);
  return kSuccess;
}

/// The double's products have no workspace.
int pool_memory(std::size_t* used, std::size_t* peak) {
  *used = 0;
  *peak = 0;
  return kSuccess;
}

int register_host(void* /*memory*/, std::size_t /*bytes*/) {
  return refuse_in_capture();
}

int unregister_host(void* /*memory*/) {
  return refuse_in_capture();
}

int copy(void* to, const void* from, std::size_t bytes, void* stream) {
  return queue_host_work(stream, [=] {
    if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  });
}

/// Between the host and the device.
int copy_across(void* to, const void* from, std::size_t bytes, void* stream) {
  const int refused = refuse_in_capture();
  return refused != kSuccess ? refused : copy(to, from, bytes, stream);
}

int copy_to_peer(void* to, int /*to_device*/, const void* from, int /*from_device*/,
                 std::size_t bytes, void* stream) {
  return copy(to, from, bytes, stream);
}

int fill(void* memory, int byte, std::size_t bytes, void* stream) {
  return queue_host_work(stream, [=] { std::memset(memory, byte, bytes); });
}

/// Queues the functor of list F that has place `id`; Run says how.
template <typename List, int Place, typename Run>
int queue_functor(int id, const void* functor, void* stream, Run run) {
  if constexpr (Place < static_cast<int>(std::tuple_size_v<List>)) {
    if (id == Place) {
      using F = std::tuple_element_t<static_cast<std::size_t>(Place), List>;
      const F copy = *static_cast<const F*>(functor);
      return queue_host_work(stream, [copy, run] { run(copy); });
    }
    return queue_functor<List, Place + 1>(id, functor, stream, run);
  } else {
    return 1;
  }
}

int each(int id, const void* functor, std::int64_t n, void* stream) {
  return queue_functor<cuda::EachFunctors, 0>(
      id, functor, stream, [n](const auto& f) { kernels::for_each_in_packs(n, f); });
}

int rows(int id, const void* functor, std::int64_t count, void* stream) {
  return queue_functor<cuda::RowFunctors, 0>(
      id, functor, stream, [count](const auto& f) { kernels::for_rows(count, f); });
}

int update(const OptimizerSpec* spec, const UpdateInfo* info,
           const kernels::UpdateOperands* operands, std::int64_t count, void* stream) {
  host_log().add({"update", stream, operands->out, static_cast<std::size_t>(count)});
  return queue_host_work(stream, [spec = *spec, info = *info, operands = *operands, count] {
    if (operands.tensors.pieces != nullptr) {
      kernels::with_guarded_tensor_rule(operands, spec, info,
                                        [&](const auto& rule) { kernels::for_rows(count, rule); });
      return;
    }
    kernels::with_guarded_update_rule(
        operands, spec, info, [&](const auto& rule) { kernels::for_each_in_packs(count, rule); });
  });
}

/// A Math of the double is the stream; one that is never destroyed is no leak.
int create_math(void** math, const cuda::MathOptions* options, void* stream) {
  *math = stream;
  if (options->tune != 0) {
    host_log().add({"tuned math", stream});
  }
  return kSuccess;
}

int destroy_math(void* /*math*/) {
  return kSuccess;
}

void* math_stream(void* math) {
  return math;
}

int matmul(void* math, const cuda::Matmul* product) {
  return queue_host_work(math_stream(math), [product = *product] { host_matmul(product); });
}

int convolve(void* math, const cuda::Convolution* shape, const void* x, const void* filter,
             void* y) {
  return queue_host_work(math_stream(math), [=, s = *shape] { host_convolve(s, x, filter, y); });
}

int input_gradient(void* math, const cuda::Convolution* shape, const void* dy, const void* filter,
                   void* dx) {
  return queue_host_work(math_stream(math),
                         [=, s = *shape] { host_input_gradient(s, dy, filter, dx); });
}

int filter_gradient(void* math, const cuda::Convolution* shape, const void* x, const void* dy,
                    void* d_filter) {
  return queue_host_work(math_stream(math),
                         [=, s = *shape] { host_filter_gradient(s, x, dy, d_filter); });
}

std::atomic<std::int64_t>& refused_samples() {
  static std::atomic<std::int64_t> samples = 0;
  return samples;
}

/// As cuDNN's, so that both ways are tested.
const char* attention_obstacle(void* /*math*/, const cuda::Attention* shape,
                               std::int32_t /*training*/) {
  if (shape->format == Precision::fp32) {
    return "the double fuses attention in bf16 and fp16";
  }
  if (shape->samples == refused_samples()) {
    return "the double was told to refuse";
  }
  return shape->width % 8 != 0 ? "the double fuses heads of multiples of 8 channels" : nullptr;
}

int attend(void* math, const cuda::Attention* shape, const void* qkv, void* out,
           float* statistics) {
  return queue_host_work(math_stream(math),
                         [=, a = *shape] { host_attention(a, qkv, out, statistics); });
}

int attend_gradient(void* math, const cuda::Attention* shape, const void* qkv, const void* out,
                    const float* statistics, const void* d_out, void* d_qkv) {
  return queue_host_work(math_stream(math), [=, a = *shape] {
    host_attention_gradient(a, qkv, out, statistics, d_out, d_qkv);
  });
}

const char* norm_obstacle(void* /*math*/, const cuda::BatchNorm* shape) {
  return host_norm_obstacle(*shape);
}

const char* pool_obstacle(void* /*math*/, const cuda::Pool* shape) {
  return shape->samples == refused_samples() ? "the double was told to refuse" : nullptr;
}

int normalise(void* math, const cuda::BatchNorm* shape, const void* x, const void* addend,
              const float* gamma, const float* beta, void* y, float* mean, float* inverse) {
  return queue_host_work(math_stream(math), [=, s = *shape] {
    host_normalise(s, x, addend, gamma, beta, y, mean, inverse);
  });
}

int normalise_gradient(void* math, const cuda::BatchNorm* shape, const void* x, const void* y,
                       const void* dy, const float* gamma, const float* mean, const float* inverse,
                       void* dx, float* d_gamma, float* d_beta) {
  return queue_host_work(math_stream(math), [=, s = *shape] {
    host_normalise_gradient(s, x, y, dy, gamma, mean, inverse, dx, d_gamma, d_beta);
  });
}

int pool(void* math, const cuda::Pool* shape, const void* x, void* y, std::uint8_t* winners) {
  return queue_host_work(math_stream(math), [=, s = *shape] { host_pool(s, x, y, winners); });
}

int pool_gradient(void* math, const cuda::Pool* shape, const void* dy, const std::uint8_t* winners,
                  void* dx) {
  return queue_host_work(math_stream(math),
                         [=, s = *shape] { host_pool_gradient(s, dy, winners, dx); });
}

/// Of a device that is only described; the double knows none.
template <typename Shape>
int plan_nothing(const cuda::MathOptions* /*options*/, const char* /*device*/,
                 const Shape* /*shape*/, cuda::WorkspacePlan* /*plan*/) {
  return 1;
}

std::size_t workspace_bytes(const void* /*math*/) {
  return 0;
}

constexpr cuda::MathApi kHostMath{create_math,
                                  destroy_math,
                                  matmul,
                                  convolve,
                                  input_gradient,
                                  filter_gradient,
                                  attention_obstacle,
                                  attend,
                                  attend_gradient,
                                  plan_nothing<cuda::Attention>,
                                  norm_obstacle,
                                  pool_obstacle,
                                  normalise,
                                  normalise_gradient,
                                  pool,
                                  pool_gradient,
                                  plan_nothing<cuda::BatchNorm>,
                                  plan_nothing<cuda::Pool>,
                                  plan_nothing<cuda::Convolution>,
                                  workspace_bytes};

cuda::Api host_table() {
  cuda::Api api{};
  api.abi_version = cuda::kAbiVersion;
  api.error_text = error_text;
  api.versions = versions;
  api.device_count = device_count;
  api.device_info = device_info;
  api.peer_access = peer_access;
  api.open_peer = open_peer;
  api.use_device = use_device;
  api.memory_info = memory_info;
  api.allocate = allocate;
  api.release = release;
  api.pool_memory = pool_memory;
  api.register_host = register_host;
  api.unregister_host = unregister_host;
  add_host_streams(api);
  api.copy_to_device = copy_across;
  api.copy_to_host = copy_across;
  api.copy = copy;
  api.copy_to_peer = copy_to_peer;
  api.fill = fill;
  api.each = each;
  api.rows = rows;
  api.update = update;
  api.math = kHostMath;
  api.nccl = host_nccl();
  return api;
}

}  // namespace

const cuda::Api& host_module() {
  static const cuda::Api api = host_table();
  return api;
}

std::size_t host_module_bytes() {
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  return memory.held;
}

void free_host_module() {
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  for (const auto& [block, bytes] : memory.blocks) {
    std::free(block);
  }
  memory.blocks.clear();
  memory.held = 0;
}

void refuse_host_samples(std::int64_t samples) {
  refused_samples() = samples;
}

void limit_host_module(std::size_t bytes) {
  HostMemory& memory = host_memory();
  const std::lock_guard lock(memory.mutex);
  memory.limit = bytes;
}

}  // namespace paceline::test
