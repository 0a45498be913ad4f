// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_backend.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <utility>

#include "common/base/error.h"
#include "common/config/validate.h"
#include "common/core/cuda_module.h"
#include "ring/nccl_communicator.h"
#include "ring/nccl_synchronizer.h"

namespace paceline {

namespace {

/// As NCCL spells the values of nccl.algo and nccl.proto.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kNcclNames{
    {{"ring", "Ring"},
     {"tree", "Tree"},
     {"collnet_direct", "CollnetDirect"},
     {"collnet_chain", "CollnetChain"},
     {"nvls", "NVLS"},
     {"nvls_tree", "NVLSTree"},
     {"ll", "LL"},
     {"ll128", "LL128"},
     {"simple", "Simple"}}};

std::string nccl_name(std::string_view value) {
  for (const auto& [key, name] : kNcclNames) {
    if (key == value) {
      return std::string(name);
    }
  }
  return {};
}

[[noreturn]] void refuse(const std::string& setting, std::string_view reason) {
  throw ConfigError(fmt::format("{} with sync = nccl: {}", setting, reason));
}

void check_shape(const Config& config) {
  const NcclConfig& nccl = config.nccl;
  if (nccl.sharded && nccl.hierarchical) {
    refuse("nccl.sharded = true and nccl.hierarchical = true",
           "a shard is summed between all ranks directly; allowed: one of them");
  }
  const int per_node = config.topology.ranks_per_node;
  if (nccl.hierarchical && (per_node <= 1 || per_node >= config.world)) {
    refuse(fmt::format("nccl.hierarchical = true, topology.ranks_per_node = {} and world = {}",
                       per_node, config.world),
           "it needs two nodes, one with two ranks or more; allowed: topology.ranks_per_node from "
           "2 to world - 1");
  }
  if ((nccl.sharded || nccl.hierarchical) && nccl.algo != "auto" && nccl.algo != "ring") {
    refuse("nccl.algo = " + nccl.algo,
           "reduce-scatter, all-gather and broadcast (nccl.sharded, nccl.hierarchical) are not run "
           "by it; allowed: auto, ring");
  }
  if (nccl.max_ctas > 0 && nccl.min_ctas > nccl.max_ctas) {
    refuse(fmt::format("nccl.min_ctas = {}", nccl.min_ctas),
           fmt::format("it is more than nccl.max_ctas = {}", nccl.max_ctas));
  }
}

void check_gpu_techniques(const Config& config) {
  if (config.compress.method != "none") {
    refuse("compress = " + config.compress.method,
           "NCCL sums elements, not compressed messages; allowed: compress = none with sync.wire = "
           "fp32, bf16 or fp16");
  }
  if (config.sync_options.exact) {
    refuse("sync.exact = true", "NCCL picks the order of its sums; allowed: false");
  }
  if (config.optimizer.name == "onebit_adam") {
    refuse("optimizer.name = onebit_adam",
           "1-bit Adam sends signs and scales of its momentum, and NCCL sums elements; allowed: "
           "sgd, adam, lars, lamb");
  }
  if (config.link.inter != "none" || config.link.intra != "none") {
    refuse("link.inter or link.intra", "NCCL uses the machine's own links; allowed: none");
  }
}

void validate_nccl(const Config& config) {
  if (config.device != "cuda") {
    throw ConfigError(fmt::format(
        "sync = nccl with device = {}: NCCL sums between GPUs; allowed: device = cuda (sync = ring "
        "is the same sum between CPUs)",
        config.device));
  }
  check_shape(config);
  check_gpu_techniques(config);
}

}  // namespace

Backend nccl_backend() {
  Backend row;
  row.name = "nccl";
  row.summary = "allreduce of each bucket between GPUs by NCCL (device=cuda)";
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.binds_gpu = true;
  row.validate = validate_nccl;
  row.make = [](const WorkerContext& context) { return make_nccl_synchronizer(context); };
  return row;
}

std::map<std::string, std::string> nccl_variables(const Config& config) {
  std::map<std::string, std::string> variables;
  const NcclConfig& nccl = config.nccl;
  const auto set = [&](const char* name, bool given, std::string value) {
    if (config.sync == "nccl" && given) {
      variables[name] = std::move(value);
    }
  };
  set("NCCL_ALGO", nccl.algo != "auto", nccl_name(nccl.algo));
  set("NCCL_PROTO", nccl.proto != "auto", nccl_name(nccl.proto));
  set("NCCL_MIN_CTAS", nccl.min_ctas > 0, fmt::format("{}", nccl.min_ctas));
  set("NCCL_MAX_CTAS", nccl.max_ctas > 0, fmt::format("{}", nccl.max_ctas));
  return variables;
}

void check_nccl(const CudaModule& module, int world) {
  const auto gpus = static_cast<int>(module.devices().size());
  if (world > gpus) {
    throw ConfigError(fmt::format(
        "world = {} with sync = nccl: this machine has {} GPU{}, and NCCL refuses two ranks on one "
        "GPU; use sync=ring (host-staged), or world = {}",
        world, gpus, gpus == 1 ? "" : "s", gpus));
  }
  try {
    static_cast<void>(open_nccl(module));
  } catch (const Error& error) {
    throw ConfigError(fmt::format("sync = nccl: {}", error.what()));
  }
}

}  // namespace paceline
