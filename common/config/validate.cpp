// SPDX-License-Identifier: Apache-2.0
#include "common/config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/fault.h"
#include "common/config/schema.h"
#include "common/config/value_text.h"

namespace paceline {
namespace {

void check_backend(const Config& config, std::span<const std::string_view> backends) {
  if (std::ranges::find(backends, config.sync) != backends.end()) return;
  const std::string near = nearest_name(config.sync, backends);
  throw ConfigError(fmt::format(
      "sync = {} is not a backend{}; it must be one of {}", toml_quoted(config.sync),
      near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), fmt::join(backends, ", ")));
}

void check_device(const Config& config, const ValidationRules& rules) {
  if (config.device != "cuda") return;
  const std::string why_not =
      rules.why_not_cuda ? rules.why_not_cuda() : "this program knows no GPU";
  if (why_not.empty()) return;
  throw ConfigError(
      fmt::format("device = \"cuda\" cannot be used here: {}; allowed: cpu", why_not));
}

void check_training(const Config& config) {
  const std::int64_t steps = planned_steps(config);
  if (config.lr.warmup_steps > steps) {
    throw ConfigError(fmt::format(
        "lr.warmup_steps = {} is longer than the run: train.samples = {} with train.batch = {}, "
        "train.accumulate = {} and world = {} make {} steps",
        config.lr.warmup_steps, config.train.samples, config.train.batch, config.train.accumulate,
        config.world, steps));
  }
  if (config.lr.schedule == "cosine" && config.lr.min_lr > config.optimizer.lr) {
    throw ConfigError(fmt::format("lr.min_lr = {} must be at most optimizer.lr = {}",
                                  config.lr.min_lr, config.optimizer.lr));
  }
  if (config.optimizer.nesterov && config.optimizer.name != "sgd") {
    throw ConfigError(
        fmt::format("optimizer.nesterov = true needs optimizer.name = \"sgd\", not {}",
                    toml_quoted(config.optimizer.name)));
  }
  if (config.optimizer.nesterov && config.optimizer.momentum == 0.0) {
    throw ConfigError("optimizer.nesterov = true needs optimizer.momentum above 0");
  }
}

/// Members are the workers and, behind them, at most ps.servers servers.
void check_fault(const Config& config, std::string_view key, std::string_view text) {
  const std::optional<FaultPoint> fault = parse_fault(key, text);
  const int most = config.world + config.ps.servers;
  if (fault && fault->member >= most) {
    throw ConfigError(fmt::format("{} = {} is not allowed: the job's members are 0 to {}", key,
                                  toml_quoted(text), most - 1));
  }
}

void check_places(const Config& config) {
  if (config.comm.host.empty()) {
    throw ConfigError("comm.host = \"\" must be an IPv4 or IPv6 address, such as 127.0.0.1 or ::1");
  }
  if (config.run.dir.empty()) throw ConfigError("run.dir = \"\" must be the path of a folder");
  const bool plain = config.run.name.find('/') == std::string::npos && config.run.name != "." &&
                     config.run.name != ".." && config.run.name.size() <= 100;
  if (!plain) {
    throw ConfigError(fmt::format(
        "run.name = {} must be part of a folder's name: without '/' and at most 100 bytes",
        toml_quoted(config.run.name.substr(0, 120))));
  }
  if (config.data.path.empty() && config.data.name != "synthetic") {
    throw ConfigError("data.path = \"\" must be the folder of the idx.gz files");
  }
}

}  // namespace

std::int64_t planned_steps(const Config& config) noexcept {
  const std::int64_t per_step = config.train.batch * config.train.accumulate * config.world;
  return (config.train.samples + per_step - 1) / per_step;
}

void validate(const Config& config, const ValidationRules& rules) {
  check_backend(config, rules.backends);
  check_device(config, rules);
  check_training(config);
  check_fault(config, "fault.kill", config.fault.kill);
  check_fault(config, "fault.stop", config.fault.stop);
  check_places(config);
  if (rules.check_link) {
    rules.check_link("link.inter", config.link.inter);
    rules.check_link("link.intra", config.link.intra);
  }
}

}  // namespace paceline
