// SPDX-License-Identifier: Apache-2.0
#include "ring/replica.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/config/validate.h"
#include "ring/options.h"

namespace paceline {

void check_replica_techniques(const Config& config) {
  if (const std::string format = travelling_format(config); !format.empty()) {
    throw ConfigError(
        fmt::format("{} with sync = {}: weights travel, not gradients, and what rounding takes "
                    "from them is lost; allowed: compress = none and sync.wire = fp32",
                    format, config.sync));
  }
  if (config.sync_options.exact) {
    throw ConfigError(
        fmt::format("sync.exact = true with sync = {}: it makes sums of gradients exact, but here "
                    "weights are averaged; allowed: false",
                    config.sync));
  }
  if (config.optimizer.name == "onebit_adam") {
    throw ConfigError(
        fmt::format("optimizer.name = onebit_adam with sync = {}: its ranks average their momentum "
                    "in every step, here they train apart; allowed: sgd, adam, lars, lamb",
                    config.sync));
  }
  if (config.ring.algorithm == "hierarchical") {
    throw ConfigError(
        fmt::format("ring.algorithm = hierarchical with sync = {}; allowed: auto, ring, tree, "
                    "halving_doubling",
                    config.sync));
  }
}

RunTimes no_exchange() noexcept {
  const std::int64_t now = now_ns();
  return {now, now, now};
}

Replica::Replica(const WorkerContext& context, const std::atomic<bool>& stop)
    : transport_(make_transport(transport_options(context.config.comm), context.workers,
                                context.topology, context.fabric, context.abort)),
      collective_(*transport_, context.topology, collective_options(context.config, stop)) {}

ReplicaView Replica::bind(const BucketPlan& plan, const OptimizerSpec& spec,
                          std::span<const float> init) {
  if (init.size() != plan.elements()) {
    throw Error(fmt::format("{} initial weights for a plan of {}", init.size(), plan.elements()));
  }
  plan_ = plan;
  weights_ = transport_->allocate(init.size_bytes());
  gradients_ = transport_->allocate(init.size_bytes());
  std::ranges::copy(init, all_weights().begin());
  optimizer_.emplace(spec, plan_);
  for (BucketId b = 0; b < plan_.count(); ++b) {
    collective_.prepare_allreduce(plan_[b].size(), DataType::f32);
  }
  return {all_weights(), all_gradients()};
}

ReplicaView Replica::bind_apart(const BucketPlan& plan, const OptimizerSpec& spec,
                                std::span<const float> init) {
  const ReplicaView own = bind(plan, spec, init);
  view_ = transport_->allocate(init.size_bytes());
  const std::span<float> view = floats(*view_, plan_.elements());
  std::ranges::copy(init, view.begin());
  return {view, own.gradients};
}

std::span<float> Replica::floats(CommBuffer& buffer, std::size_t elements) noexcept {
  return {reinterpret_cast<float*>(buffer.bytes().data()), elements};
}

std::span<float> Replica::all_weights() const noexcept {
  return floats(*weights_, plan_.elements());
}

std::span<float> Replica::all_gradients() const noexcept {
  return floats(*gradients_, plan_.elements());
}

std::span<float> Replica::weights(BucketId b) const {
  return all_weights().subspan(plan_[b].begin, plan_[b].size());
}

std::span<float> Replica::gradient(BucketId b) const {
  return all_gradients().subspan(plan_[b].begin, plan_[b].size());
}

std::span<float> Replica::viewed(BucketId b) const {
  return floats(*view_, plan_.elements()).subspan(plan_[b].begin, plan_[b].size());
}

void Replica::update(BucketId b, const StepInfo& step) {
  if (step.samples > 0) {
    optimizer_->apply_bucket(b, all_weights(), all_gradients(), step.lr,
                             1.0F / static_cast<float>(step.samples));
  }
}

bool Replica::update_all(const StepInfo& step) {
  return step.samples == 0 || optimizer_->apply(all_weights(), all_gradients(), step.lr,
                                                1.0F / static_cast<float>(step.samples));
}

RunTimes Replica::sum(std::span<float> values) {
  return collective_.allreduce(std::as_writable_bytes(values), DataType::f32, true);
}

void Replica::set_aside() {
  std::ranges::copy(all_weights(), all_gradients().begin());
  aside_ = true;
}

void Replica::take_back() {
  if (aside_) {
    std::ranges::copy(all_gradients(), all_weights().begin());
    aside_ = false;
  }
}

BucketCost Replica::cost(const RunTimes& times) const {
  return {times, transport_->bytes_sent()};
}

MemoryUse Replica::memory() const noexcept {
  const std::size_t arena = plan_.elements() * sizeof(float);
  MemoryUse use;
  use.weights = arena;
  use.gradients = arena;
  use.optimizer = optimizer_->state_bytes();
  use.staging = view_ ? arena : 0;
  return use;
}

void Replica::save(StateWriter& writer) const {
  optimizer_->save(writer);
  writer.put("replica.aside", aside_ ? 1 : 0);
  if (aside_) {
    writer.put("replica.weights", all_gradients());
  } else if (view_) {
    writer.put("replica.weights", all_weights());
  }
}

void Replica::load(StateReader& reader) {
  optimizer_->load(reader);
  aside_ = reader.get("replica.aside") != 0;
  if (aside_) {
    reader.get("replica.weights", all_gradients());
  } else if (view_) {
    reader.get("replica.weights", all_weights());
  }
}

}  // namespace paceline
