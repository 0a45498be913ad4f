// SPDX-License-Identifier: Apache-2.0
#include "common/core/step_driver.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/error.h"
#include "common/base/time.h"

namespace paceline {

template <typename F>
std::int64_t StepDriver::in_seam(const char* name, const F& call) {
  constexpr std::int64_t kWorthASpan = 20'000;
  const std::int64_t begin = now_ns();
  if (idle_) {
    idle_->start();
  }
  call();
  if (idle_) {
    idle_->stop();
  }
  const std::int64_t end = now_ns();
  if (!idle_) {
    blocked_s_ += seconds(end - begin);
  }
  if (end - begin > kWorthASpan) {
    observer_.span(Lane::wait, name, begin, end);
  }
  return end - begin;
}

LayerBuckets::LayerBuckets(const Model& model, const BucketPlan& plan)
    : of_layer_(static_cast<std::size_t>(model.layers())),
      layers_of_(static_cast<std::size_t>(plan.count())) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.range.size() == 0) {
      continue;
    }
    const BucketId first = plan.bucket_of(parameter.range.begin);
    const BucketId last = plan.bucket_of(parameter.range.end - 1);
    for (BucketId b = first; b <= last; ++b) {
      auto& buckets = of_layer_[static_cast<std::size_t>(parameter.layer)];
      if (std::find(buckets.begin(), buckets.end(), b) == buckets.end()) {
        buckets.push_back(b);
        ++layers_of_[static_cast<std::size_t>(b)];
      }
    }
  }
  find_turns();
}

void LayerBuckets::find_turns() {
  needs_first_.resize(of_layer_.size());
  launches_.resize(of_layer_.size());
  std::vector<bool> needed(layers_of_.size());
  for (std::size_t l = 0; l < of_layer_.size(); ++l) {
    for (const BucketId b : of_layer_[l]) {
      const auto at = static_cast<std::size_t>(b);
      needs_first_[l] = needs_first_[l] || !needed[at];
      needed[at] = true;
    }
  }
  std::vector<int> pending = layers_of_;
  std::size_t next = 0;
  for (std::size_t l = of_layer_.size(); l-- > 0;) {
    for (const BucketId b : of_layer_[l]) {
      --pending[static_cast<std::size_t>(b)];
    }
    for (; next < pending.size() && pending[next] == 0; ++next) {
      launches_[l] = true;
    }
  }
}

StepDriver::StepDriver(const Model& model, const BucketPlan& plan, const StepDriverOptions& options,
                       Device& device, Synchronizer& sync, TrainObserver& observer)
    : model_(model),
      options_(options),
      plan_(plan),
      buckets_(model, plan),
      pace_(model, options.emulate),
      sync_(sync),
      observer_(observer),
      device_(device),
      idle_(device.make_stopwatch()) {
  for (BucketId b = 0; b < plan.count(); ++b) {
    events_.push_back(device.make_event());
  }
}

void StepDriver::begin(const StepInfo& info, float gradient_scale) {
  gradient_scale_ = gradient_scale;
  finished_.assign(static_cast<std::size_t>(model_.layers()), false);
  step_ = info.step;
  pending_ = buckets_.layers_of();
  needed_.assign(pending_.size(), false);
  next_ready_ = 0;
  pace_.begin(now_ns(), options_.stretch.factor(info.step));
  sync_.begin_step(info);
}

void StepDriver::begin_micro_batch(bool last, std::span<float> accumulated) {
  last_micro_batch_ = last;
  accumulated_ = accumulated;
  observer_.phase("forward", step_);
  segment_begin_ns_ = now_ns();
}

void StepDriver::before_forward(int layer) {
  for (const BucketId b : buckets_.of_layer(layer)) {
    need(b);
  }
}

void StepDriver::after_forward(int layer) {
  pace_.forward_done(layer);
  if (layer == model_.layers() - 1) {
    close_segment("forward");
    observer_.phase("backward", step_);
  }
}

void StepDriver::after_backward(int layer) {
  pace_.backward_done(layer);
  if (sparse_) {
    return;
  }
  if (!last_micro_batch_) {
    if (layer == 0) {
      close_segment("backward");
    }
    return;
  }
  finished_[static_cast<std::size_t>(layer)] = true;
  for (const BucketId b : buckets_.of_layer(layer)) {
    --pending_[static_cast<std::size_t>(b)];
  }
  launch_ready();
}

bool StepDriver::queues_before_forward(int layer) const {
  const auto open = [&](BucketId b) { return !needed_[static_cast<std::size_t>(b)]; };
  return buckets_.needs_first(layer) && std::ranges::any_of(buckets_.of_layer(layer), open);
}

bool StepDriver::queues_after_backward(int layer) const {
  return last_micro_batch_ && !sparse_ && buckets_.launches(layer);
}

StepReport StepDriver::commit() {
  need_all();
  if (sparse_) {
    sync_.sparse_gradient_ready(model_.sparse_gradient());
  } else {
    clear_unused();
    std::fill(pending_.begin(), pending_.end(), 0);
    launch_ready();
  }
  pace_.finish();
  close_segment("backward");
  StepReport report;
  in_seam("commit", [&] { report = sync_.commit(); });
  return report;
}

void StepDriver::quiesce() {
  in_seam("quiesce", [&] { sync_.quiesce(); });
}

void StepDriver::need_all() {
  for (std::size_t b = 0; b < needed_.size(); ++b) {
    need(static_cast<BucketId>(b));
  }
}

void StepDriver::need(BucketId b) {
  if (needed_[static_cast<std::size_t>(b)]) {
    return;
  }
  needed_[static_cast<std::size_t>(b)] = true;
  const std::int64_t blocked =
      in_seam("parameters", [&] { sync_.parameters_needed(b, device_.stream()); });
  pace_.stalled(blocked, now_ns());
}

/// Layers whose backward came launched their buckets, but for those that share one with a layer
/// whose backward did not.
void StepDriver::clear_unused() {
  for (const Parameter& parameter : model_.parameters()) {
    if (finished_[static_cast<std::size_t>(parameter.layer)] || parameter.range.size() == 0) {
      continue;
    }
    if (!options_.find_unused) {
      throw Error(fmt::format("rank {}: {} got no gradient in step {}; set sync.find_unused=true",
                              options_.rank, parameter.name, step_));
    }
    const auto clear = [&](std::span<float> arena) {
      device_.clear(arena.subspan(parameter.range.begin, parameter.range.size()));
    };
    clear(gradients_);
    if (!accumulated_.empty()) {
      clear(accumulated_);
    }
  }
}

/// Adds what earlier micro-batches made and takes the loss scale out.
void StepDriver::finish_gradient(const Range& range) {
  const std::span<float> gradient = gradients_.subspan(range.begin, range.size());
  if (!accumulated_.empty()) {
    device_.add(gradient, accumulated_.subspan(range.begin, range.size()));
  }
  if (gradient_scale_ != 1.0F) {
    device_.multiply(gradient, gradient_scale_);
  }
}

void StepDriver::launch_ready() {
  while (next_ready_ < pending_.size() && pending_[next_ready_] == 0) {
    const auto b = static_cast<BucketId>(next_ready_);
    finish_gradient(plan_[b]);
    Event& done = *events_[next_ready_];
    device_.stream().record(done);
    sync_.gradient_ready(b, done);
    ++next_ready_;
  }
}

double StepDriver::take_blocked(double most) {
  if (idle_) {
    blocked_s_ += idle_->take_seconds();
  }
  const double taken = std::min(blocked_s_, most);
  blocked_s_ -= taken;
  return taken;
}

void StepDriver::close_segment(const char* name) {
  const std::int64_t now = now_ns();
  observer_.span(Lane::compute, name, segment_begin_ns_, now);
  segment_begin_ns_ = now;
}

}  // namespace paceline
