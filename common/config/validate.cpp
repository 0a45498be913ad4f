// SPDX-License-Identifier: Apache-2.0
#include "common/config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "common/base/error.h"
#include "common/base/fault.h"
#include "common/config/load_imbalance.h"
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

void check_device(const Config& config) {
  const CudaConfig standard;
  const bool servers = config.ps.device == "cuda";
  if (config.device != "cuda") {
    if (config.cuda.device != standard.device && !servers) {
      throw ConfigError(fmt::format("cuda.device = {} needs device = cuda or ps.device = cuda",
                                    config.cuda.device));
    }
    const auto need_cuda = [](std::string_view key, const auto& value, const auto& usual) {
      if (value != usual) {
        throw ConfigError(fmt::format("cuda.{} = {} needs device = cuda", key, value));
      }
    };
    need_cuda("tf32", config.cuda.tf32, standard.tf32);
    need_cuda("tune", config.cuda.tune, standard.tune);
    need_cuda("attention", config.cuda.attention, standard.attention);
    need_cuda("norm", config.cuda.norm, standard.norm);
    need_cuda("pool", config.cuda.pool, standard.pool);
    need_cuda("graph", config.cuda.graph, standard.graph);
    need_cuda("collectives", config.cuda.collectives, standard.collectives);
    return;
  }
  if (config.model == "logistic") {
    throw ConfigError(
        "model = logistic computes on sparse rows, on the CPU alone; allowed: device = cpu");
  }
  if (config.compute.emulate.count() > 0) {
    throw ConfigError(
        "compute.emulate pads a step on the CPU to a device's time; with device = cuda allowed: 0");
  }
  if (config.cuda.graph && config.norm.kind == "sync_batch") {
    throw ConfigError(
        "cuda.graph = true with norm.kind = sync_batch: statistics are summed over the ranks in "
        "the "
        "midst of a step; allowed: false, or another norm.kind");
  }
  if (config.cuda.norm == "cudnn" && config.norm.kind == "sync_batch") {
    throw ConfigError(
        "cuda.norm = cudnn with norm.kind = sync_batch: cuDNN's batch norm does not give its sums "
        "to be added over the ranks; allowed: own, auto, or norm.kind = batch");
  }
  if (config.cuda.norm == "cudnn" && (config.norm.kind == "group" || config.norm.kind == "layer")) {
    throw ConfigError(fmt::format(
        "cuda.norm = cudnn computes norm.kind = batch alone, not {}; allowed: own, auto",
        config.norm.kind));
  }
}

void check_training(const Config& config) {
  const std::int64_t steps = planned_steps(config);
  if (config.lr.warmup_steps > steps && config.data.shares.empty()) {
    throw ConfigError(fmt::format(
        "lr.warmup_steps = {} is longer than the run: train.samples = {} with train.batch = {}, "
        "train.accumulate = {} and world = {} make {} steps",
        config.lr.warmup_steps, config.train.samples, config.train.batch, config.train.accumulate,
        config.world, steps));
  }
  if (config.lr.schedule == "cosine" && config.lr.min_lr > peak_rate(config)) {
    throw ConfigError(fmt::format(
        "lr.min_lr = {} must be at most optimizer.lr = {}{}", config.lr.min_lr, config.optimizer.lr,
        config.lr.scale == "none" ? ""
                                  : fmt::format(", which lr.scale = {} makes {}",
                                                toml_quoted(config.lr.scale), peak_rate(config))));
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

/// Techniques that exclude each other whatever the backend.
void check_techniques(const Config& config) {
  static_cast<void>(parse_shares(config.data.shares, config.world));
  if (config.compress.method != "none" && config.sync_options.wire != "fp32") {
    throw ConfigError(fmt::format(
        "sync.wire = {} and compress.method = {} both say how gradients travel; allowed: one of "
        "them",
        toml_quoted(config.sync_options.wire), toml_quoted(config.compress.method)));
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
}

/// What the samples of a data set are, and what a model takes.
std::string_view samples_of(const DataConfig& data) {
  if (data.name == "libsvm" || data.name == "sparse") return "sparse rows";
  return data.name == "text" ? "text" : "images";
}
std::string_view samples_for(const std::string& model) {
  return model == "logistic" ? "sparse rows" : model == "gpt" ? "text" : "images";
}

/// Keys that describe made-up data, or how a file is cut, and so belong to one data.name.
void check_data_keys(const DataConfig& data) {
  const DataConfig standard;
  const auto refuse = [&](const std::string& keys, std::string_view name) {
    throw ConfigError(fmt::format("{} need data.name = {}: {} has its own", keys, name, data.name));
  };
  if (data.name != "synthetic" &&
      (data.shape != standard.shape || data.classes != standard.classes)) {
    refuse(fmt::format("data.shape = {} and data.classes = {}",
                       toml_quoted(data.shape.substr(0, 80)), data.classes),
           "synthetic");
  }
  if (data.name != "sparse" &&
      (data.features != standard.features || data.nonzeros != standard.nonzeros)) {
    refuse(fmt::format("data.features = {} and data.nonzeros = {}", data.features, data.nonzeros),
           "sparse");
  }
  if (data.name != "text" && data.context != standard.context) {
    throw ConfigError(fmt::format("data.context = {} needs data.name = text", data.context));
  }
  if (data.nonzeros > data.features) {
    throw ConfigError(fmt::format("data.nonzeros = {} must be at most data.features = {}",
                                  data.nonzeros, data.features));
  }
}

void check_data(const Config& config) {
  const DataConfig& data = config.data;
  if (data.path.empty() && data.name != "synthetic" && data.name != "sparse") {
    throw ConfigError(fmt::format("data.path = \"\" must be the folder of {}'s files", data.name));
  }
  if ((data.name == "libsvm" || data.name == "text") && data.path == DataConfig().path) {
    throw ConfigError(fmt::format("data.name = {} needs data.path, the file to read", data.name));
  }
  if (samples_of(data) != samples_for(config.model)) {
    throw ConfigError(fmt::format("model = {} takes {}, and data.name = {} has {}", config.model,
                                  samples_for(config.model), data.name, samples_of(data)));
  }
  if (data.augment != "none" && samples_of(data) != "images") {
    throw ConfigError(
        fmt::format("data.augment = {} needs images, not data.name = {}", data.augment, data.name));
  }
  check_data_keys(data);
}

}  // namespace

std::int64_t planned_steps(const Config& config) noexcept {
  const std::int64_t per_step = config.train.batch * config.train.accumulate * config.world;
  return (config.train.samples + per_step - 1) / per_step;
}

double peak_rate(const Config& config) noexcept {
  const double per_step =
      static_cast<double>(config.train.batch * config.train.accumulate * config.world);
  const double k = per_step / static_cast<double>(config.lr.base_batch);
  return config.optimizer.lr * (config.lr.scale == "linear" ? k
                                : config.lr.scale == "sqrt" ? std::sqrt(k)
                                                            : 1.0);
}

std::string travelling_format(const Config& config) {
  if (config.compress.method != "none") {
    return fmt::format("compress = {}", config.compress.method);
  }
  if (config.sync_options.wire != "fp32") {
    return fmt::format("sync.wire = {}", config.sync_options.wire);
  }
  return {};
}

std::vector<double> parse_shares(std::string_view text, int world) {
  constexpr double kMost = 1e9;
  std::vector<double> shares;
  const auto fail = [&](std::string_view what) {
    throw ConfigError(fmt::format(
        "data.shares = {} {}; allowed: one number above 0 for each of the {} ranks, as in 2,1,1",
        toml_quoted(text.substr(0, 80)), what, world));
  };
  for (std::string_view left = text; !text.empty();) {
    const std::size_t comma = std::min(left.find(','), left.size());
    const std::optional<double> share = parse_number(left.substr(0, comma));
    if (!share || *share <= 0.0 || *share > kMost) {
      fail("holds what is no number above 0 and up to 1e9");
    }
    shares.push_back(*share);
    if (shares.size() > static_cast<std::size_t>(world)) break;
    if (comma == left.size()) break;
    left.remove_prefix(comma + 1);
  }
  if (!shares.empty() && shares.size() != static_cast<std::size_t>(world)) {
    fail("has a wrong number of entries");
  }
  return shares;
}

void validate(const Config& config, const ValidationRules& rules) {
  check_backend(config, rules.backends);
  check_device(config);
  check_training(config);
  check_techniques(config);
  check_fault(config, "fault.kill", config.fault.kill);
  check_fault(config, "fault.stop", config.fault.stop);
  static_cast<void>(parse_slow_ranks(config.fault.slow_rank, config.world));
  static_cast<void>(parse_jitter(config.fault.jitter));
  check_places(config);
  check_data(config);
  if (rules.check_link) {
    rules.check_link("link.inter", config.link.inter);
    rules.check_link("link.intra", config.link.intra);
  }
}

}  // namespace paceline
