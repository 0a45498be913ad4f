// SPDX-License-Identifier: Apache-2.0
#include "ring/ring_backend.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "ring/gpu_single.h"
#include "ring/nccl_backend.h"
#include "ring/nccl_synchronizer.h"
#include "ring/ring_synchronizer.h"
#include "ring/schedule.h"
#include "ring/techniques.h"

namespace paceline {

namespace {

void validate_topology(const Config& config) {
  const int per_node = config.topology.ranks_per_node;
  if (per_node <= 0 || per_node >= config.world) {
    throw ConfigError(
        fmt::format("topology.ranks_per_node = {}: with world = {} all ranks are on one node, and "
                    "the hierarchical algorithm needs at least two; allowed: 2..{}",
                    per_node, config.world, config.world - 1));
  }
  if (per_node == 1) {
    throw ConfigError(
        fmt::format("topology.ranks_per_node = 1: no node has two ranks to sum within, which the "
                    "hierarchical algorithm is for; allowed: 2..{}",
                    config.world - 1));
  }
}

void validate_ring(const Config& config) {
  const std::string& algorithm = config.ring.algorithm;
  check_collective_techniques(config, algorithm == "auto" || algorithm == "ring");
  if (algorithm != "auto" && parse_algorithm(algorithm) == Algorithm::hierarchical) {
    validate_topology(config);
  }
}

void validate_hierarchical(const Config& config) {
  if (config.ring.algorithm != "auto" && config.ring.algorithm != "hierarchical") {
    throw ConfigError(fmt::format(
        "ring.algorithm = {}: sync=hierarchical always runs the hierarchical algorithm; allowed: "
        "auto, hierarchical",
        config.ring.algorithm));
  }
  if (config.world < 3) {
    throw ConfigError(fmt::format(
        "world = {}: sync=hierarchical needs two nodes, one with two ranks or more; allowed: 3 and "
        "more",
        config.world));
  }
  validate_topology(config);
  check_collective_techniques(config, false);
  check_nccl_settings(config);
}

void validate_sharded(const Config& config) {
  if (config.ring.algorithm != "auto" && config.ring.algorithm != "ring") {
    throw ConfigError(fmt::format(
        "ring.algorithm = {}: sync=sharded needs a reduce-scatter and an allgather, which exist "
        "between all ranks directly or around a ring; allowed: auto, ring",
        config.ring.algorithm));
  }
  check_sharded_techniques(config);
  check_nccl_settings(config);
}

void validate_single(const Config& config) {
  check_no_wire(config);
  if (config.world != 1) {
    throw ConfigError(
        fmt::format("world = {}: sync=single is one worker; allowed: 1", config.world));
  }
}

/// sync=single; the fixed point of exact sums is the host's.
bool updates_on_gpu(const Config& config) {
  return config.device == "cuda" && !config.sync_options.exact;
}

template <RingFlavour flavour>
Backend backend(std::string_view name, std::string_view summary, void (*validate)(const Config&)) {
  Backend row;
  row.name = name;
  row.summary = summary;
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.validate = validate;
  row.make = [](const WorkerContext& context) { return make_ring_synchronizer(context, flavour); };
  return row;
}

/// Made by make_on_gpu where on_gpu() says so; else, on GPUs too, of the host.
template <RingFlavour flavour, bool (*on_gpu)(const Config&),
          std::unique_ptr<Synchronizer> (*make_on_gpu)(const WorkerContext&)>
Backend backend_of_both(std::string_view name, std::string_view summary,
                        void (*validate)(const Config&)) {
  Backend row = backend<flavour>(name, summary, validate);
  row.binds_gpu = on_gpu;
  row.make = [](const WorkerContext& context) {
    return on_gpu(context.config) ? make_on_gpu(context) : make_ring_synchronizer(context, flavour);
  };
  return row;
}

}  // namespace

Backend ring_backend() {
  return backend<RingFlavour::ring>(
      "ring", "allreduce of each bucket between all workers (ring, tree, halving-doubling)",
      validate_ring);
}

Backend hierarchical_backend() {
  return backend_of_both<RingFlavour::hierarchical, sums_by_nccl, make_nccl_synchronizer>(
      "hierarchical", "allreduce that sums within each node before it crosses to others",
      validate_hierarchical);
}

Backend sharded_backend() {
  return backend_of_both<RingFlavour::sharded, sums_by_nccl, make_nccl_synchronizer>(
      "sharded", "reduce-scatter, step on this rank's shard, allgather (ZeRO-1)", validate_sharded);
}

Backend single_backend() {
  return backend_of_both<RingFlavour::single, updates_on_gpu, make_gpu_single>(
      "single", "one worker, nothing to synchronise", validate_single);
}

}  // namespace paceline
