// SPDX-License-Identifier: Apache-2.0
#include "ring/techniques.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/compress/codec.h"
#include "common/config/validate.h"

namespace paceline {

namespace {

void check_one_bit_adam(const Config& config, bool flat) {
  const auto refuse = [](std::string_view with, std::string_view reason) {
    throw ConfigError(fmt::format("optimizer.name = onebit_adam with {}: {}", with, reason));
  };
  if (const std::string format = travelling_format(config); !format.empty()) {
    refuse(format, "it compresses its momentum itself; allowed: compress = none, sync.wire = fp32");
  }
  if (!flat) {
    refuse(
        "sums within nodes or along a tree",
        "each rank averages a part of everybody's compressed momentum; allowed: sync = ring with "
        "ring.algorithm = auto or ring");
  }
  if (config.optimizer.clip_norm > 0.0) {
    refuse("optimizer.clip_norm",
           "after its warm-up no rank sees the reduced gradient; allowed: 0");
  }
  if (config.precision.compute == "fp16" || config.precision.loss_scale == "dynamic" ||
      config.precision.loss_scale == "fixed") {
    refuse("loss scaling",
           "after its warm-up no rank sees whether the reduced gradient is finite; allowed: "
           "precision fp32 or bf16 with precision.loss_scale = auto or none");
  }
  if (config.optimizer.freeze_step >= planned_steps(config)) {
    throw ConfigError(fmt::format(
        "optimizer.freeze_step = {}: the run has {} steps, so its warm-up would never end; "
        "allowed: 1..{}",
        config.optimizer.freeze_step, planned_steps(config), planned_steps(config) - 1));
  }
}

}  // namespace

void check_collective_techniques(const Config& config, bool flat) {
  if (config.optimizer.name == "onebit_adam") {
    check_one_bit_adam(config, flat);
  }
  const std::string format = travelling_format(config);
  if (format.empty()) {
    return;
  }
  if (config.sync_options.exact) {
    throw ConfigError(fmt::format(
        "{} with sync.exact = true: what is rounded before it travels has no exact sum; "
        "allowed: sync.exact = false",
        format));
  }
  if (config.compress.method == "powersgd") {
    return;
  }
  const auto codec = make_codec(config.compress, config.sync_options.wire);
  if (!flat && !codec->summable()) {
    throw ConfigError(fmt::format(
        "{}: its messages cannot be added on the way, so sums within nodes or along a tree would "
        "be "
        "wrong; allowed there: fp16, bf16, randomk, powersgd (or sync = ring with ring.algorithm = "
        "auto or ring)",
        format));
  }
}

void check_sharded_techniques(const Config& config) {
  if (config.optimizer.name == "onebit_adam") {
    throw ConfigError(
        "optimizer.name = onebit_adam with sync = sharded: every rank needs all of the momentum "
        "that it compresses, not a shard of it; allowed: sgd, adam, lars, lamb");
  }
  if (config.compress.method != "none") {
    throw ConfigError(fmt::format(
        "compress = {} with sync = sharded: a reduce-scatter sums elements, not compressed "
        "messages; allowed: compress = none with sync.wire = fp32, bf16 or fp16",
        config.compress.method));
  }
  check_collective_techniques(config, true);
}

void check_no_wire(const Config& config) {
  if (const std::string format = travelling_format(config); !format.empty()) {
    throw ConfigError(
        fmt::format("{} with sync = {}: nothing is sent; allowed: compress = none and "
                    "sync.wire = fp32",
                    format, config.sync));
  }
  if (config.optimizer.name == "onebit_adam") {
    throw ConfigError(fmt::format(
        "optimizer.name = onebit_adam with sync = {}: it exists to send less, and nothing is sent; "
        "allowed: sgd, adam, lars, lamb",
        config.sync));
  }
}

}  // namespace paceline
