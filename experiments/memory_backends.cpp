// SPDX-License-Identifier: Apache-2.0
#include "experiments/memory_backends.h"

#include <algorithm>

#include "common/compress/gradient_format.h"
#include "common/core/optimizer.h"
#include "common/sync/reduction_order.h"
#include "ps/partition.h"
#include "ps/ps_backend.h"
#include "ring/nccl_backend.h"

namespace paceline {

namespace {

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t largest(const BucketPlan& plan) {
  std::size_t elements = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    elements = std::max(elements, plan[b].size());
  }
  return elements;
}

/// Elements of rank 0's chunks of all buckets.
std::size_t own_elements(const BucketPlan& plan, int world) {
  std::size_t elements = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    elements += ring_chunk(plan[b].size(), world, 0).size();
  }
  return elements;
}

/// P and Q of every matrix that is larger than both, and what travels whole (PowerSgd).
std::size_t power_sgd_bytes(const BucketPlan& plan, std::size_t rank) {
  std::size_t q = 0;
  std::size_t first = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    std::size_t bucket = 0;
    for (const TensorRange& tensor : plan.tensors_of(b)) {
      const auto rows = static_cast<std::size_t>(tensor.rows);
      const std::size_t columns = tensor.range.size() / rows;
      const bool cut = tensor.dimensions >= 2 && rank * (rows + columns) < rows * columns;
      bucket += cut ? rank * rows : tensor.range.size();
      q += cut ? rank * columns : 0;
    }
    first = std::max(first, bucket);
  }
  return (q + first) * sizeof(float);
}

GradientFormat format_of(const Config& config) {
  return {config.compress, config.sync_options.wire, config.seed};
}

/// Messages on their way through an allreduce.
void add_reducer(const Config& config, const BucketPlan& plan, MemoryUse& use) {
  const auto world = static_cast<std::size_t>(config.world);
  const GradientFormat format = format_of(config);
  use.residual += format.error_feedback() ? plan.elements() * sizeof(float) : 0;
  if (config.compress.method == "powersgd") {
    use.staging += power_sgd_bytes(plan, static_cast<std::size_t>(config.compress.rank));
    return;
  }
  if (const auto codec = format.codec()) {
    constexpr std::size_t kWord = 8;
    const std::size_t message = round_up(codec->max_bytes(largest(plan)), kWord);
    use.staging +=
        codec->summable() ? message : message * (world + 1) + kWord + world * sizeof(std::int64_t);
  } else if (config.sync_options.exact) {
    use.staging += largest(plan) * sizeof(std::int64_t);
  }
}

/// 1-bit Adam's blocks of all ranks, both ways, and both ends' error.
void add_one_bit_adam(const Config& config, const BucketPlan& plan, MemoryUse& use) {
  CompressConfig compress;
  compress.method = "onebit";
  const auto codec = make_codec(compress, "fp32");
  std::size_t block = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    block = std::max(
        block, round_up(codec->max_bytes(ring_chunk(plan[b].size(), config.world, 0).size()), 8));
  }
  use.staging += 2 * static_cast<std::size_t>(config.world) * block;
  use.residual += (plan.elements() + own_elements(plan, config.world)) * sizeof(float);
}

void add_shard(const Config& config, const BucketPlan& plan, const OptimizerSpec& spec,
               MemoryUse& use) {
  const bool by_tensor = spec.kind == OptimizerKind::lars || spec.kind == OptimizerKind::lamb;
  const std::size_t values = by_tensor ? std::max<std::size_t>(plan.tensors().size(), 1) : 1;
  use.optimizer = optimizer_state_bytes(spec, own_elements(plan, config.world));
  use.staging += static_cast<std::size_t>(config.world) * sizeof(double) * values;
}

std::size_t largest_key_of(const Partition& partition, std::size_t server) {
  std::size_t elements = 0;
  for (const KeyRange& key : partition.keys()) {
    if (static_cast<std::size_t>(key.server) == server) {
      elements = std::max(elements, key.elements());
    }
  }
  return elements * sizeof(float);
}

/// Its host keeps the newest weights, too, as answers carry them, and stages a key's gradient.
void move_to_gpu(std::size_t moments, std::size_t largest_key, PlannedServer& server) {
  server.gradients = largest_key;
  server.versions += server.weights + largest_key;
  server.on_gpu = server.weights + moments + largest_key;
}

PlannedServer plan_server(const Config& config, const Partition& partition,
                          const OptimizerSpec& spec) {
  const std::span<const std::size_t> bytes = partition.bytes_per_server();
  const auto fullest = static_cast<std::size_t>(std::ranges::max_element(bytes) - bytes.begin());
  const std::size_t weights = bytes[fullest];
  const auto world = static_cast<std::size_t>(config.world);
  const bool compensates = config.async.compensate != "none";
  PlannedServer server;
  server.weights = weights;
  const std::size_t moments = optimizer_state_bytes(spec, weights / sizeof(float));
  server.optimizer = moments + (config.async.compensate == "adaptive" ? weights : 0);
  const bool half = config.sync_options.wire != "fp32";
  const std::size_t carried = half ? weights + weights / 2 : weights;
  server.versions = compensates ? world * carried : carried;
  server.versions += spec.whole_gradient() ? weights : 0;
  const bool waits = config.sync == "ps" && config.ps.consistency == "bsp";
  const std::size_t push = half ? weights / 2 : weights;
  server.pushes = waits ? world * push : push;
  if (config.ps.device == "cuda") {
    move_to_gpu(moments, largest_key_of(partition, fullest), server);
  }
  return server;
}

PlannedUse plan_parameter_server(const Config& config, const BucketPlan& plan,
                                 const OptimizerSpec& spec, PlannedUse use) {
  const Partition partition(plan, config.ps.servers);
  const GradientFormat format = format_of(config);
  if (const auto codec = format.codec()) {
    constexpr std::size_t kLine = 64;
    for (const KeyRange& key : partition.keys()) {
      use.worker.staging += round_up(codec->max_bytes(key.elements()), kLine);
    }
  }
  use.worker.residual = format.error_feedback() ? plan.elements() * sizeof(float) : 0;
  use.worker.optimizer = 0;
  use.server = plan_server(config, partition, spec);
  use.server_in_worker = config.ps.placement == "colocated";
  return use;
}

}  // namespace

namespace {

/// A rank's elements of all buckets where NCCL cuts them: a block, and what is left over.
std::size_t own_elements_by_nccl(const BucketPlan& plan, int world) {
  const auto ranks = static_cast<std::size_t>(world);
  std::size_t elements = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    elements += plan[b].size() / ranks + plan[b].size() % ranks;
  }
  return elements;
}

/// 16-bit gradients travel from a buffer of their own.
void add_nccl(const Config& config, const BucketPlan& plan, const OptimizerSpec& spec,
              MemoryUse& use) {
  if (config.sync == "sharded") {
    use.optimizer = optimizer_state_bytes(spec, own_elements_by_nccl(plan, config.world));
  }
  if (config.sync_options.wire != "fp32") {
    use.staging += largest(plan) * sizeof(std::uint16_t);
  }
}

PlannedUse plan_on_host(const Config& config, const Backend& backend, const BucketPlan& plan,
                        const OptimizerSpec& spec) {
  const std::size_t arena = plan.elements() * sizeof(float);
  PlannedUse use;
  use.worker.weights = arena;
  use.worker.gradients = arena;
  use.worker.optimizer = optimizer_state_bytes(spec, plan.elements());
  use.shared_weights = backend.traits.shared_weights;
  const std::string_view name = backend.name;
  if (backend.traits.updates_at == UpdatePlace::server) {
    return plan_parameter_server(config, plan, spec, use);
  }
  if (sums_by_nccl(config)) {
    add_nccl(config, plan, spec, use.worker);
  } else if (name == "single" || name == "ring" || name == "hierarchical") {
    add_reducer(config, plan, use.worker);
    if (spec.kind == OptimizerKind::onebit_adam) {
      add_one_bit_adam(config, plan, use.worker);
    }
  } else if (name == "sharded") {
    add_reducer(config, plan, use.worker);
    add_shard(config, plan, spec, use.worker);
  } else if (name == "local" && config.local.outer == "nesterov") {
    use.worker.staging += arena;    // the anchor
    use.worker.optimizer += arena;  // the outer velocity
  } else if (name == "easgd" || name == "gossip") {
    use.worker.staging += arena;  // the center; the partner's weights
    if (name == "gossip" && config.gossip.mode == "asynchronous") {
      use.worker.staging += arena;  // what the trainer reads
    }
  }
  return use;
}

}  // namespace

PlannedUse plan_backend(const Config& config, const Backend& backend, const BucketPlan& plan,
                        const OptimizerSpec& spec) {
  PlannedUse use = plan_on_host(config, backend, plan, spec);
  use.staged = config.device == "cuda" && !backend.takes_gpu(config);
  if (use.staged) {
    use.worker.staging += use.worker.weights + use.worker.gradients;
  }
  return use;
}

}  // namespace paceline
