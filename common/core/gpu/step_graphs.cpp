// SPDX-License-Identifier: Apache-2.0
#include "common/core/gpu/step_graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace paceline {

StepGraphs::Batch StepGraphs::begin(const std::optional<StepKey>& key) {
  next_ = 0;
  launched_ = false;
  if (!key) {
    return Batch(*this);
  }
  drop_moved();
  const auto found = std::ranges::find(kept_, *key, &Kept::key);
  if (found == kept_.end()) {
    kept_.push_front({*key, {}, false});
    if (kept_.size() > kMostKeys) {
      kept_.pop_back();
    }
  } else {
    kept_.splice(kept_.begin(), kept_, found);
    mode_ = found->recorded ? Mode::replay : Mode::record;
  }
  return Batch(*this);
}

void StepGraphs::cut() {
  launched_ = false;
  if (capture_) {
    GpuGraph graph = capture_->end();
    capture_.reset();
    graph.launch();
    kept_.front().segments.push_back(std::move(graph));
  }
}

void StepGraphs::launch_next() {
  if (!launched_) {
    kept_.front().segments.at(next_++).launch();
    launched_ = true;
  }
}

void StepGraphs::fail(const Error& error) {
  const std::string text = error.what();
  abandon();
  throw Error(fmt::format("while a step was recorded (cuda.graph = true): {}", text));
}

void StepGraphs::finish() {
  cut();
  if (mode_ == Mode::record) {
    kept_.front().recorded = true;
  }
  replayed_ += mode_ == Mode::replay ? 1 : 0;
  mode_ = Mode::plain;
  drop_moved();
}

void StepGraphs::drop_moved() {
  if (const Memory now = memory(); now != memory_) {
    for (Kept& kept : kept_) {
      kept.segments.clear();
      kept.recorded = false;
    }
    memory_ = now;
  }
}

void StepGraphs::abandon() noexcept {
  capture_.reset();
  if (mode_ == Mode::record) {
    kept_.pop_front();
  }
  mode_ = Mode::plain;
}

}  // namespace paceline
