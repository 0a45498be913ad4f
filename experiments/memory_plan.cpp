// SPDX-License-Identifier: Apache-2.0
#include "experiments/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/core/cuda_module.h"
#include "common/core/loss_scaler.h"
#include "common/core/model.h"
#include "common/core/model_options.h"
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
  std::int64_t inputs_in_batch = 0;  ///< floats gathered per sample
  std::int64_t labels = 1;
};

DataShape data_shape(const Config& config) {
  const DataConfig& data = config.data;
  DataShape of{{28, 28, 1}, 10, 0, 1};
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
  return of;
}

/// What is needed to plan the same run with other batches.
struct Planner {
  const DataShape& data;
  const PlannedModel& model;

  /// Of training with such batches and of the evaluations in between.
  [[nodiscard]] ActivationPlan activations(std::int64_t batch) const {
    return model.activations(std::max(batch, evaluation_samples(batch)));
  }
  [[nodiscard]] std::size_t batches(std::int64_t batch) const {
    return static_cast<std::size_t>((batch + kEvaluationBatch) *
                                    (data.inputs_in_batch + data.labels)) *
           sizeof(float);
  }
};

const CudaModule& module_of(const MemoryOptions& options) {
  return options.module != nullptr ? *options.module : cuda_module();
}

/// Of the GPU with least memory, where the configuration does not name one.
MemoryLimit gpu_limit(const CudaModule& module, int index) {
  if (!module.usable()) {
    return {std::nullopt, module.reason()};
  }
  const auto& devices = module.devices();
  const bool named = index >= 0 && static_cast<std::size_t>(index) < devices.size();
  const auto gpu =
      named ? devices.begin() + index
            : std::ranges::min_element(devices, {}, [](const auto& d) { return d.memory_bytes; });
  return {static_cast<std::int64_t>(gpu->memory_bytes), fmt::format("a {}", gpu->name)};
}

MemoryLimit find_limit(const Config& config, const MemoryOptions& options) {
  if (options.bytes) {
    return {options.bytes, "given by --memory"};
  }
  if (config.device == "cuda") {
    return gpu_limit(module_of(options), config.cuda.device);
  }
  const HostMemory host = host_memory();
  return {host.bytes, host.cgroup ? "the cgroup's limit" : "this machine's"};
}

/// On the machine, or with device=cuda on the GPU, that is asked about.
int ranks_that_share(const Config& config, const MemoryOptions& options, const PlannedUse& use) {
  const int together =
      options.ranks_here > 0 ? std::min(options.ranks_here, config.world) : config.world;
  if (config.device != "cuda") {
    return together;
  }
  const bool one_gpu = use.shared_weights || (use.staged && config.cuda.device >= 0);
  return one_gpu ? together : 1;
}

/// A server's in the memory that is asked about.
std::size_t server_bytes(const MemoryPlan& plan) {
  if (!plan.use.server) {
    return 0;
  }
  return plan.config.device == "cuda" ? plan.use.server->on_gpu : plan.use.server->on_host();
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
  if (config.device != "cuda") return 0;
  const MemoryUse& w = use.worker;
  const std::size_t server = use.server && use.server_in_worker ? use.server->on_host() : 0;
  return batches + server + (use.staged ? w.optimizer + w.staging + w.residual : 0);
}

std::size_t MemoryPlan::arena_bytes() const noexcept {
  const MemoryUse& w = use.worker;
  const std::size_t server = use.server_in_worker ? server_bytes(*this) : 0;
  return w.weights + w.gradients + server + (use.staged ? 0 : w.optimizer + w.staging + w.residual);
}

std::size_t MemoryPlan::rank_bytes() const noexcept {
  return arena_bytes() + activations.total() + workspace + (config.device == "cuda" ? 0 : batches);
}

int MemoryPlan::servers() const noexcept {
  const bool all = ranks_here == config.world;
  if (!use.server || use.server_in_worker || server_bytes(*this) == 0) return 0;
  if (config.device == "cuda") return all && config.cuda.device >= 0 ? config.ps.servers : 1;
  return all ? config.ps.servers : 0;
}

std::size_t MemoryPlan::needed_bytes() const noexcept {
  const auto ranks = static_cast<std::size_t>(ranks_here);
  const std::size_t shared = use.shared_weights ? (ranks - 1) * use.worker.weights : 0;
  return ranks * rank_bytes() - shared + static_cast<std::size_t>(servers()) * server_bytes(*this);
}

std::optional<bool> MemoryPlan::fits() const noexcept {
  if (!limit.bytes) return std::nullopt;
  return needed_bytes() <= static_cast<std::size_t>(*limit.bytes);
}

MemoryPlan plan_memory(const Config& config, const MemoryOptions& options) {
  validate_elsewhere(config);
  const DataShape data = data_shape(config);
  const PlannedModel model(config, data.shape, data.classes, config.train.batch,
                           module_of(options));
  const BucketPlan buckets = make_bucket_plan(model.model(), config);
  OptimizerSpec spec = make_optimizer_spec(config.optimizer);
  spec.skip_nonfinite = LossScaler(config.precision).enabled();
  const Planner planner{data, model};
  MemoryPlan plan;
  plan.config = config;
  plan.parameters = model.model().parameter_elements();
  plan.use = plan_backend(config, find_backend(config.sync), buckets, spec);
  plan.ranks_here = ranks_that_share(config, options, plan.use);
  Config sharded = config;
  sharded.sync = "sharded";
  plan.optimizer_if_sharded =
      plan_backend(sharded, find_backend("sharded"), buckets, spec).worker.optimizer;
  plan.activations = planner.activations(config.train.batch);
  plan.attention = model.attention();
  plan.workspace = config.device == "cuda" ? cuda::kProductWorkspace : 0;
  plan.batches = planner.batches(config.train.batch);
  plan.limit = find_limit(config, options);
  if (plan.limit.bytes) {
    plan.largest_batch = find_largest_batch(plan, planner);
  }
  return plan;
}

}  // namespace paceline
