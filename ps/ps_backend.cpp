// SPDX-License-Identifier: Apache-2.0
#include "ps/ps_backend.h"

#include <fmt/format.h>

#include <string_view>

#include "common/base/error.h"
#include "ps/ps_synchronizer.h"

namespace paceline {

namespace {

void check_one_of(std::string_view key, std::string_view value,
                  std::initializer_list<std::string_view> allowed) {
  std::string list;
  for (const std::string_view choice : allowed) {
    if (value == choice) {
      return;
    }
    list += fmt::format("{}{}", list.empty() ? "" : ", ", choice);
  }
  throw ConfigError(fmt::format("{}='{}': allowed are {}", key, value, list));
}

void check_layerwise(const Config& config, const PsRule& rule) {
  if (config.optimizer.name == "lamb") {
    throw ConfigError(
        "optimizer.name=lamb: its rates depend on the norm of Adam's direction, which only the "
        "servers know after they have updated their moments; allowed with a parameter server: "
        "sgd, adam, lars (bsp); or use sync=ring");
  }
  if (config.optimizer.name == "lars" && !waits_for_all(rule)) {
    throw ConfigError(
        "optimizer.name=lars: its rates depend on the norms of whole tensors, which servers that "
        "update at different times do not have together; allowed: ps.consistency=bsp, or sgd or "
        "adam");
  }
}

/// What the parameter server cannot do, by key.
void check_techniques(const Config& config) {
  const std::string& method = config.compress.method;
  if (method == "powersgd") {
    throw ConfigError(
        "compress.method=powersgd: it sums inside an allreduce, which the parameter server has "
        "not; use sync=ring, or another method");
  }
  const bool encoded = method != "none" || config.sync_options.wire != "fp32";
  if (config.sync_options.exact && encoded) {
    throw ConfigError(fmt::format(
        "sync.exact=true: sums are exact only of gradients that travel as they are; allowed: "
        "compress.method=none (is {}) and sync.wire=fp32 (is {})",
        method, config.sync_options.wire));
  }
  if (method != "none" && config.sync_options.wire != "fp32") {
    throw ConfigError(
        fmt::format("sync.wire={}: compress.method={} decides what travels; allowed: "
                    "fp32",
                    config.sync_options.wire, method));
  }
  if (config.optimizer.name == "onebit_adam") {
    throw ConfigError(
        "optimizer.name=onebit_adam: its workers compress momentum and own the weights, which "
        "here are the servers'; use sync=ring, or adam with compress.method=onebit");
  }
}

/// What async.* asks for, where updates can be stale.
void check_async(const Config& config, const PsRule& rule) {
  check_one_of("async.rate", config.async.rate, {"constant", "staleness"});
  check_one_of("async.compensate", config.async.compensate, {"none", "constant", "adaptive"});
  if (!(config.async.lambda >= 0.0)) {
    throw ConfigError(fmt::format("async.lambda={}: allowed are 0 (the paper's value) and more",
                                  config.async.lambda));
  }
  if (!(config.async.mean_square >= 0.0 && static_cast<float>(config.async.mean_square) < 1.0F)) {
    throw ConfigError(fmt::format("async.mean_square={}: allowed are 0 and more, below 1",
                                  config.async.mean_square));
  }
  if (waits_for_all(rule)) {
    refuse_async(config.async);
  }
}

}  // namespace

PsRule with_async(PsRule kind, const AsyncConfig& async) {
  using Variant = DelayCompensation::Variant;
  kind.rate_by_staleness = async.rate == "staleness";
  kind.compensation.variant = async.compensate == "constant"   ? Variant::constant
                              : async.compensate == "adaptive" ? Variant::adaptive
                                                               : Variant::none;
  kind.compensation.lambda = async.lambda > 0.0 ? static_cast<float>(async.lambda)
                                                : paper_lambda(kind.compensation.variant);
  kind.compensation.mean_square = static_cast<float>(async.mean_square);
  return kind;
}

PsRule ps_rule(const Config& config) {
  PsRule kind{Consistency::synchronous, 0};
  if (config.ps.consistency == "asp") {
    kind.kind = Consistency::asynchronous;
  } else if (config.ps.consistency == "ssp") {
    kind = {Consistency::bounded_stale, config.ps.staleness};
  }
  return with_async(kind, config.async);
}

void refuse_async(const AsyncConfig& async) {
  if (async.rate == "constant" && async.compensate == "none") {
    return;
  }
  throw ConfigError(fmt::format(
      "async.{}: here no server applies stale gradients; allowed: sync=asgd, or sync=ps "
      "with ps.consistency=asp, or ssp with ps.staleness above 0",
      async.rate != "constant" ? "rate=" + async.rate : "compensate=" + async.compensate));
}

void validate_ps(const Config& config, const PsRule& rule) {
  check_one_of("ps.placement", config.ps.placement, {"process", "colocated"});
  check_one_of("ps.transport", config.ps.transport, {"auto", "tcp", "ipc"});
  if (config.ps.servers < 1) {
    throw ConfigError(fmt::format("ps.servers={}: the parameter server needs at least 1 server",
                                  config.ps.servers));
  }
  if (config.ps.placement == "colocated" && config.ps.servers > config.world) {
    throw ConfigError(
        fmt::format("ps.servers={}: with ps.placement=colocated at most one per rank, world is {}",
                    config.ps.servers, config.world));
  }
  if (config.sync_options.exact && !waits_for_all(rule)) {
    throw ConfigError(
        "sync.exact=true: sums are exact only where updates wait for all workers "
        "(ps.consistency=bsp, "
        "or ssp with ps.staleness=0)");
  }
  check_async(config, rule);
  check_techniques(config);
  check_layerwise(config, rule);
}

int ps_server_processes(const Config& config) {
  return config.ps.placement == "colocated" ? 0 : config.ps.servers;
}

Backend ps_backend() {
  Backend backend;
  backend.name = "ps";
  backend.summary = "parameter server over ZeroMQ: bsp, ssp or asp (ps.consistency)";
  backend.traits = {Consistency::synchronous, UpdatePlace::server, false};
  backend.validate = [](const Config& config) {
    check_one_of("ps.consistency", config.ps.consistency, {"bsp", "ssp", "asp"});
    if (config.ps.staleness < 0) {
      throw ConfigError(
          fmt::format("ps.staleness={}: the bound of ssp is 0 or more", config.ps.staleness));
    }
    validate_ps(config, ps_rule(config));
  };
  backend.servers = ps_server_processes;
  backend.make = [](const WorkerContext& context) {
    return make_ps_synchronizer(context, ps_rule(context.config));
  };
  backend.serve = [](const ServerContext& context) { serve_ps(context, ps_rule(context.config)); };
  return backend;
}

}  // namespace paceline
