// SPDX-License-Identifier: Apache-2.0
#include "experiments/backends.h"

#include <fmt/format.h>

#include "async/asgd_backend.h"
#include "async/hogwild.h"
#include "common/base/error.h"
#include "common/config/validate.h"
#include "common/core/cuda_module.h"
#include "common/core/model_options.h"
#include "experiments/compute.h"
#include "experiments/labs/my_backend/my_backend.h"
#include "ps/ps_backend.h"
#include "ring/gossip.h"
#include "ring/local_sgd.h"
#include "ring/nccl_backend.h"
#include "ring/ring_backend.h"

namespace paceline {

std::vector<Backend> all_backends() {
  return {single_backend(),  ps_backend(),    ring_backend(),   hierarchical_backend(),
          sharded_backend(), nccl_backend(),  asgd_backend(),   hogwild_backend(),
          local_backend(),   easgd_backend(), gossip_backend(), my_backend()};
}

Backend find_backend(std::string_view name) {
  std::string known;
  for (const Backend& backend : all_backends()) {
    if (backend.name == name) {
      return backend;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend.name);
  }
  throw ConfigError(fmt::format("sync = \"{}\": no such backend; allowed: {}", name, known));
}

namespace {

/// SyncBatchNorm waits for every rank in every layer.
void check_statistics(const Config& config, const Backend& backend) {
  if (config.norm.kind != "sync_batch") {
    return;
  }
  if (backend.traits.consistency != Consistency::synchronous ||
      (config.sync == "ps" && !waits_for_all(ps_rule(config)))) {
    throw ConfigError(fmt::format(
        "norm.kind = sync_batch with sync = {}: its statistics make all ranks wait for each other "
        "in every layer, which asynchronous workers must not; allowed: none, batch, group, layer",
        config.sync));
  }
}

/// Those over a parameter server say themselves when they can use async.*.
void check_async_rules(const Config& config) {
  if (config.async.lambda != 0.0 && config.async.compensate == "none") {
    throw ConfigError(
        fmt::format("async.lambda = {} needs async.compensate; allowed: constant, adaptive, or "
                    "async.lambda = 0",
                    config.async.lambda));
  }
  if (config.sync != "ps" && config.sync != "asgd") {
    refuse_async(config.async);
  }
}

void check_servers_device(const Config& config, const Backend& backend) {
  if (config.ps.device == "cuda" && backend.traits.updates_at != UpdatePlace::server) {
    throw ConfigError(
        fmt::format("ps.device = \"cuda\": sync = {} has no servers; allowed: cpu", config.sync));
  }
}

/// What a backend that validates nothing itself cannot be trusted to do; nothing is left out
/// silently.
void check_plain(const Config& config) {
  const auto refuse = [&](const std::string& setting) {
    throw ConfigError(fmt::format(
        "{}: sync = {} has no validation of its own and is given plain fp32 gradients only",
        setting, config.sync));
  };
  if (config.compress.method != "none") refuse("compress.method = " + config.compress.method);
  if (config.sync_options.wire != "fp32") refuse("sync.wire = " + config.sync_options.wire);
  if (config.sync_options.exact) refuse("sync.exact = true");
  if (config.optimizer.name == "onebit_adam") refuse("optimizer.name = onebit_adam");
}

}  // namespace

void validate_elsewhere(const Config& config) {
  std::vector<std::string_view> names;
  for (const Backend& backend : all_backends()) {
    names.push_back(backend.name);
  }
  validate(config, {names, [](std::string_view key, std::string_view text) {
                      static_cast<void>(parse_link(key, text));
                    }});
  const Backend backend = find_backend(config.sync);
  check_model_options(config);
  check_statistics(config, backend);
  check_servers_device(config, backend);
  check_async_rules(config);
  check_collectives(config);
  if (backend.validate != nullptr) {
    backend.validate(config);
  } else {
    check_plain(config);
  }
  if (workers_are_threads(config, backend) && server_processes(config, backend) > 0) {
    throw ConfigError(fmt::format(
        "comm.transport = inproc makes the workers threads of one process, but sync={} starts "
        "server processes; allowed: auto, shm, tcp, or ps.placement=colocated",
        config.sync));
  }
}

void validate_run(const Config& config) {
  validate_elsewhere(config);
  if (config.device == "cuda" || config.ps.device == "cuda") {
    check_gpus(config, cuda_module());
  }
}

int server_processes(const Config& config, const Backend& backend) {
  return backend.servers != nullptr ? backend.servers(config) : 0;
}

bool workers_are_threads(const Config& config, const Backend& backend) {
  return backend.workers == WorkerKind::thread || config.comm.transport == "inproc";
}

}  // namespace paceline
