// SPDX-License-Identifier: Apache-2.0
#include "experiments/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/core/cuda_module.h"
#include "common/core/loss_scaler.h"
#include "common/core/model.h"
#include "common/core/trainer.h"
#include "common/data/dataset.h"
#include "common/data/sparse_dataset.h"
#include "experiments/backends.h"
#include "experiments/machine.h"

namespace paceline {

namespace {

/// What a data set will be, read from no file but libsvm's, whose width nothing else tells.
struct DataShape {
  SampleShape shape;
  int classes = 10;
  std::int64_t test_samples = 0;
  std::int64_t inputs_in_batch = 0;  ///< floats gathered per sample
  std::int64_t labels = 1;
};

DataShape data_shape(const Config& config) {
  const DataConfig& data = config.data;
  constexpr std::int64_t kFullTest = 10'000;
  DataShape of{{28, 28, 1}, 10, kFullTest, 0, 1};
  if (data.name == "synthetic") {
    of.shape = parse_image_shape(data.shape);
    of.classes = data.classes;
  } else if (data.name == "cifar10") {
    of.shape = {32, 32, 3};
  } else if (data.name == "text") {
    of.shape = {data.context, 1, 1};
    of.classes = 256;
    of.labels = data.context;
  } else if (data.name == "sparse") {
    of.shape = {1, 1, data.features};
    of.classes = 2;
  } else if (data.name == "libsvm") {
    const Datasets sets = load_libsvm(data.path, data.train_limit, data.test_limit);
    of.shape = sets.train->shape();
    of.classes = sets.train->classes();
  }
  of.inputs_in_batch = data.name == "sparse" || data.name == "libsvm" ? 0 : of.shape.elements();
  of.test_samples = data.test_limit > 0 ? std::min(data.test_limit, kFullTest) : kFullTest;
  return of;
}

/// What is needed to plan the same run with other batches.
struct Planner {
  const Config& config;
  const DataShape& data;
  const Model& model;

  [[nodiscard]] ActivationPlan activations(std::int64_t batch) const {
    const bool half = config.device == "cuda" && config.precision.compute != "fp32";
    const std::int64_t mine = (data.test_samples + config.world - 1) / config.world;
    PlannedBatch planned;
    planned.samples = std::max(batch, std::min(kEvaluationSamples, mine));
    planned.element_bytes = half ? 2 : 4;
    return model.plan_activations(planned);
  }
  [[nodiscard]] std::size_t batches(std::int64_t batch) const {
    return static_cast<std::size_t>((batch + kEvaluationBatch) *
                                    (data.inputs_in_batch + data.labels)) *
           sizeof(float);
  }
};

MemoryLimit gpu_limit() {
  const CudaModule& module = cuda_module();
  if (!module.usable()) {
    return {std::nullopt, module.reason()};
  }
  const auto least = std::ranges::min_element(
      module.devices(), {}, [](const cuda::DeviceInfo& device) { return device.memory_bytes; });
  return {static_cast<std::int64_t>(least->memory_bytes), fmt::format("a {}", least->name)};
}

MemoryLimit find_limit(const Config& config, const MemoryOptions& options) {
  if (options.bytes) {
    return {options.bytes, "given by --memory"};
  }
  if (config.device == "cuda") {
    return gpu_limit();
  }
  const HostMemory host = host_memory();
  return {host.bytes, host.cgroup ? "the cgroup's limit" : "this machine's"};
}

/// Of a server that is a process of its own, where it shares the ranks' memory.
std::size_t server_processes_bytes(const MemoryPlan& plan) {
  const bool apart = plan.use.server && !plan.use.server_in_worker && plan.config.device == "cpu" &&
                     plan.ranks_here == plan.config.world;
  return apart ? plan.use.server->total() * static_cast<std::size_t>(plan.config.ps.servers) : 0;
}

bool fits_with(MemoryPlan plan, const Planner& planner, std::int64_t batch) {
  plan.activations = planner.activations(batch);
  plan.batches = planner.batches(batch);
  return plan.fits().value();
}

std::int64_t find_largest_batch(const MemoryPlan& plan, const Planner& planner) {
  std::int64_t fits = 0;
  std::int64_t fails = 1;
  while (fails <= kMostBatch && fits_with(plan, planner, fails)) {
    fits = fails;
    fails *= 2;
  }
  while (fails - fits > 1 && fails <= kMostBatch) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    (fits_with(plan, planner, middle) ? fits : fails) = middle;
  }
  return fits;
}

}  // namespace

std::size_t MemoryPlan::host_bytes() const noexcept {
  const MemoryUse& w = use.worker;
  const std::size_t server = use.server && use.server_in_worker ? use.server->total() : 0;
  return use.staged ? w.optimizer + w.staging + w.residual + server : 0;
}

std::size_t MemoryPlan::arena_bytes() const noexcept {
  const MemoryUse& w = use.worker;
  const std::size_t server = use.server && use.server_in_worker ? use.server->total() : 0;
  return w.weights + w.gradients + w.optimizer + w.staging + w.residual + server - host_bytes();
}

std::size_t MemoryPlan::rank_bytes() const noexcept {
  return arena_bytes() + activations.total() + batches;
}

std::size_t MemoryPlan::needed_bytes() const noexcept {
  const auto ranks = static_cast<std::size_t>(ranks_here);
  const std::size_t shared = use.shared_weights ? (ranks - 1) * use.worker.weights : 0;
  return ranks * rank_bytes() - shared + server_processes_bytes(*this);
}

std::optional<bool> MemoryPlan::fits() const noexcept {
  if (!limit.bytes) return std::nullopt;
  return needed_bytes() <= static_cast<std::size_t>(*limit.bytes);
}

MemoryPlan plan_memory(const Config& config, const MemoryOptions& options) {
  validate_elsewhere(config);
  const DataShape data = data_shape(config);
  const auto model = make_model(config.model, data.shape, data.classes, structure_options(config));
  const BucketPlan buckets = make_bucket_plan(*model, config);
  OptimizerSpec spec = make_optimizer_spec(config.optimizer);
  spec.skip_nonfinite = LossScaler(config.precision).enabled();
  const Planner planner{config, data, *model};
  MemoryPlan plan;
  plan.config = config;
  plan.parameters = model->parameter_elements();
  plan.ranks_here = config.device == "cuda"  ? 1
                    : options.ranks_here > 0 ? std::min(options.ranks_here, config.world)
                                             : config.world;
  plan.use = plan_backend(config, find_backend(config.sync), buckets, spec);
  Config sharded = config;
  sharded.sync = "sharded";
  plan.optimizer_if_sharded =
      plan_backend(sharded, find_backend("sharded"), buckets, spec).worker.optimizer;
  plan.activations = planner.activations(config.train.batch);
  plan.batches = planner.batches(config.train.batch);
  plan.limit = find_limit(config, options);
  if (plan.limit.bytes) {
    plan.largest_batch = find_largest_batch(plan, planner);
  }
  return plan;
}

}  // namespace paceline
