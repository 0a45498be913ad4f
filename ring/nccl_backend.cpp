// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_backend.h"

#include <fmt/format.h>

#include <array>
#include <optional>
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

/// A setting that NCCL cannot follow, why, and what it can.
struct Unable {
  std::string setting;
  std::string_view reason;
};

/// The first one; a host can follow all of them, where its form of sync does.
std::optional<Unable> unable(const Config& config) {
  if (config.compress.method != "none") {
    return Unable{"compress = " + config.compress.method,
                  "NCCL sums elements, not compressed messages; allowed: compress = none with "
                  "sync.wire = fp32, bf16 or fp16"};
  }
  if (config.sync_options.exact) {
    return Unable{"sync.exact = true", "NCCL picks the order of its sums; allowed: false"};
  }
  if (config.optimizer.name == "onebit_adam") {
    return Unable{"optimizer.name = onebit_adam",
                  "1-bit Adam sends signs and scales of its momentum, and NCCL sums elements; "
                  "allowed: sgd, adam, lars, lamb"};
  }
  if (config.link.inter != "none" || config.link.intra != "none") {
    return Unable{"link.inter or link.intra", "NCCL uses the machine's own links; allowed: none"};
  }
  return std::nullopt;
}

/// Whether NCCL can make the sums of `sync`, and a host can as well.
bool either_way(const Config& config) {
  return config.sync == "hierarchical" || config.sync == "sharded";
}

bool has_choice(const Config& config) {
  return config.device == "cuda" && either_way(config);
}

[[noreturn]] void refuse(const Config& config, const std::string& setting, std::string_view reason,
                         std::string_view also = {}) {
  throw ConfigError(fmt::format("{} with sync = {}: {}{}", setting, config.sync, reason, also));
}

void check_limits(const Config& config) {
  const NcclConfig& nccl = config.nccl;
  if (config.sync != "nccl" && nccl.algo != "auto" && nccl.algo != "ring") {
    refuse(config, "nccl.algo = " + nccl.algo,
           "reduce-scatter, all-gather and broadcast are not run by it; allowed: auto, ring");
  }
  if (nccl.max_ctas > 0 && nccl.min_ctas > nccl.max_ctas) {
    refuse(config, fmt::format("nccl.min_ctas = {}", nccl.min_ctas),
           fmt::format("it is more than nccl.max_ctas = {}", nccl.max_ctas));
  }
}

void validate_nccl(const Config& config) {
  if (config.device != "cuda") {
    throw ConfigError(fmt::format(
        "sync = nccl with device = {}: NCCL sums between GPUs; allowed: device = cuda (sync = ring "
        "is the same sum between CPUs)",
        config.device));
  }
  check_nccl_settings(config);
}

}  // namespace

Backend nccl_backend() {
  Backend row;
  row.name = "nccl";
  row.summary = "allreduce of each bucket between GPUs by NCCL (device=cuda)";
  row.traits = {Consistency::synchronous, UpdatePlace::worker, false};
  row.binds_gpu = [](const Config&) { return true; };
  row.validate = validate_nccl;
  row.make = [](const WorkerContext& context) { return make_nccl_synchronizer(context); };
  return row;
}

std::map<std::string, std::string> nccl_variables(const Config& config) {
  std::map<std::string, std::string> variables;
  if (!sums_by_nccl(config)) {
    return variables;
  }
  const NcclConfig& nccl = config.nccl;
  const auto set = [&](const char* name, bool given, std::string value) {
    if (given) {
      variables[name] = std::move(value);
    }
  };
  set("NCCL_ALGO", nccl.algo != "auto", nccl_name(nccl.algo));
  set("NCCL_PROTO", nccl.proto != "auto", nccl_name(nccl.proto));
  set("NCCL_MIN_CTAS", nccl.min_ctas > 0, fmt::format("{}", nccl.min_ctas));
  set("NCCL_MAX_CTAS", nccl.max_ctas > 0, fmt::format("{}", nccl.max_ctas));
  return variables;
}

bool sums_by_nccl(const Config& config) {
  if (!has_choice(config)) {
    return config.sync == "nccl";
  }
  const std::string& who = config.cuda.collectives;
  return who == "nccl" || (who == "auto" && !unable(config));
}

std::optional<std::string> collectives_of(const Config& config) {
  if (sums_by_nccl(config)) {
    return "nccl";
  }
  return has_choice(config) ? std::optional<std::string>("host") : std::nullopt;
}

std::string collectives_note(const Config& config) {
  if (!has_choice(config)) {
    return {};
  }
  if (sums_by_nccl(config)) {
    return fmt::format("sync={}: gradients are summed by NCCL between the GPUs", config.sync);
  }
  const std::string why = config.cuda.collectives == "host" ? "cuda.collectives = host"
                                                            : unable(config).value().setting;
  return fmt::format("sync={}: gradients are summed on the host, not by NCCL, because of {}",
                     config.sync, why);
}

void check_collectives(const Config& config) {
  if (config.cuda.collectives == "auto" || either_way(config)) {
    return;
  }
  throw ConfigError(fmt::format(
      "cuda.collectives = {} with sync = {}: {}; allowed: auto, or sync = hierarchical or sharded",
      config.cuda.collectives, config.sync,
      config.sync == "nccl" ? "it always sums by NCCL"
                            : "it never sums by NCCL (sync = nccl is the flat sum)"));
}

void check_nccl_settings(const Config& config) {
  if (!sums_by_nccl(config)) {
    return;
  }
  check_limits(config);
  if (const auto found = unable(config)) {
    const bool choice = has_choice(config);
    refuse(config, found->setting + (choice ? " and cuda.collectives = nccl" : ""), found->reason,
           choice ? ", or cuda.collectives = host" : "");
  }
}

NcclUser nccl_user(const Config& config) {
  return {"sync = " + config.sync, has_choice(config) ? "cuda.collectives = host"
                                                      : "sync = ring, which goes through the host"};
}

void check_nccl(const CudaModule& module, int world, const NcclUser& user) {
  const auto gpus = static_cast<int>(module.devices().size());
  if (world > gpus) {
    throw ConfigError(fmt::format(
        "world = {} with {}: this machine has {} GPU{}, and NCCL refuses two ranks on one GPU; "
        "use {}, or at most {} rank{}",
        world, user.setting, gpus, gpus == 1 ? "" : "s", user.instead, gpus, gpus == 1 ? "" : "s"));
  }
  open_nccl_for(user, module);
}

}  // namespace paceline
