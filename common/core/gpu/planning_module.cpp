// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/planning_module.h"

#include <array>
#include <cstdio>

namespace paceline {

namespace {

using cuda::kSuccess;

constexpr int kPlansOnly = 5'000'000;

/// In read-only memory, so that even a stray write is noticed.
alignas(256) constexpr std::array<std::byte, 256> kNowhere{};

void* nowhere() {
  return const_cast<std::byte*>(kNowhere.data());
}

/// Whatever needs a GPU.
template <typename... Arguments>
int refuse(Arguments... /*of any call*/) {
  return kPlansOnly;
}

template <typename... Arguments>
int do_nothing(Arguments... /*of any call*/) {
  return kSuccess;
}

template <typename... Options>
int give_handle(void** handle, Options... /*of any kind*/) {
  *handle = nowhere();
  return kSuccess;
}

const char* planning_text(int status) {
  return status == kPlansOnly ? "this device plans memory and computes nothing"
                              : "an error of the planning device";
}

int no_versions(int* driver, int* runtime) {
  *driver = 0;
  *runtime = 0;
  return kSuccess;
}

int one_device(int* count) {
  *count = 1;
  return kSuccess;
}

int describe_nothing(int /*device*/, cuda::DeviceInfo* info) {
  *info = {};
  std::snprintf(info->name, sizeof info->name, "planning device (no GPU)");
  return kSuccess;
}

int no_bytes(std::size_t* first, std::size_t* second) {
  *first = 0;
  *second = 0;
  return kSuccess;
}

const char* unknown_attention(void* /*math*/, const cuda::Attention* shape,
                              std::int32_t /*training*/) {
  return shape->equal_bits != 0 ? "whether it is fused with equal bits is known on the GPU alone"
                                : nullptr;
}

template <typename Shape>
const char* unknown_layer(void* /*math*/, const Shape* /*shape*/) {
  return "which layers cuDNN computes is known on the GPU alone";
}

std::size_t no_workspace(const void* /*math*/) {
  return 0;
}

const char* no_words(void* /*comm*/) {
  return "";
}

cuda::MathApi refusing_math() {
  cuda::MathApi math{};
  math.create = give_handle;
  math.destroy = do_nothing;
  math.matmul = refuse;
  math.convolve = refuse;
  math.convolve_input_gradient = refuse;
  math.convolve_filter_gradient = refuse;
  math.attention_obstacle = unknown_attention;
  math.attend = refuse;
  math.attend_gradient = refuse;
  math.plan_attention = refuse;
  math.norm_obstacle = unknown_layer;
  math.pool_obstacle = unknown_layer;
  math.normalise = refuse;
  math.normalise_gradient = refuse;
  math.pool = refuse;
  math.pool_gradient = refuse;
  math.plan_norm = refuse;
  math.plan_pool = refuse;
  math.plan_convolution = refuse;
  math.workspace_bytes = no_workspace;
  return math;
}

cuda::NcclApi refusing_nccl() {
  cuda::NcclApi nccl{};
  nccl.open = refuse;
  nccl.unique_id = refuse;
  nccl.init = refuse;
  nccl.split = refuse;
  nccl.async_error = refuse;
  nccl.last_error = no_words;
  nccl.all_reduce = refuse;
  nccl.reduce_scatter = refuse;
  nccl.all_gather = refuse;
  nccl.broadcast = refuse;
  nccl.group_start = refuse;
  nccl.group_end = refuse;
  nccl.finalize = refuse;
  nccl.destroy = refuse;
  nccl.abort = refuse;
  return nccl;
}

cuda::Api planning_table() {
  cuda::Api api{};
  api.abi_version = cuda::kAbiVersion;
  api.error_text = planning_text;
  api.versions = no_versions;
  api.device_count = one_device;
  api.device_info = describe_nothing;
  api.peer_access = refuse;
  api.open_peer = refuse;
  api.use_device = do_nothing;
  api.memory_info = no_bytes;
  api.allocate = give_handle;
  api.release = do_nothing;
  api.pool_memory = no_bytes;
  api.register_host = do_nothing;
  api.unregister_host = do_nothing;
  api.create_stream = give_handle;
  api.destroy_stream = do_nothing;
  api.query_stream = do_nothing;
  api.create_event = give_handle;
  api.destroy_event = do_nothing;
  api.record_event = refuse;
  api.wait_event = refuse;
  api.query_event = refuse;
  api.elapsed_ms = refuse;
  api.begin_capture = refuse;
  api.end_capture = refuse;
  api.launch_graph = refuse;
  api.destroy_graph = refuse;
  api.copy_to_device = refuse;
  api.copy_to_host = refuse;
  api.copy = refuse;
  api.copy_to_peer = refuse;
  api.fill = refuse;
  api.each = refuse;
  api.rows = refuse;
  api.update = refuse;
  api.math = refusing_math();
  api.nccl = refusing_nccl();
  return api;
}

}  // namespace

const CudaModule& planning_module() {
  static const cuda::Api api = planning_table();
  static const CudaModule module(api);
  return module;
}

}  // namespace paceline
