// SPDX-License-Identifier: Apache-2.0
#include "common/core/arena_optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "common/base/error.h"
#include "common/core/kernels_tensors.h"

namespace paceline {

namespace {

std::span<float> part(std::span<float> arena, const Range& range) {
  return arena.subspan(range.begin, range.size());
}

std::string update_name(std::size_t b) {
  return fmt::format("updates.{}", b);
}

}  // namespace

float clip_factor(double norm, float clip_norm) noexcept {
  if (clip_norm <= 0.0F) {
    return 1.0F;
  }
  return static_cast<float>(std::min(1.0, static_cast<double>(clip_norm) / (norm + 1e-6)));
}

float lars_ratio(const OptimizerSpec& spec, double weight_norm, double gradient_norm) noexcept {
  return kernels::lars_ratio_of(static_cast<double>(spec.trust),
                                static_cast<double>(spec.weight_decay), weight_norm, gradient_norm);
}

double sum_of_squares(std::span<const float> values) noexcept {
  constexpr std::size_t kLanes = 16;
  constexpr std::size_t kBlock = 4096;
  double total = 0.0;
  for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
    const std::span block = values.subspan(begin, std::min(kBlock, values.size() - begin));
    std::array<double, kLanes> lanes{};
    const std::size_t whole = block.size() / kLanes * kLanes;
    for (std::size_t i = 0; i < whole; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        const auto value = static_cast<double>(block[i + lane]);
        lanes[lane] += value * value;
      }
    }
    for (std::size_t i = whole; i < block.size(); ++i) {
      const auto value = static_cast<double>(block[i]);
      lanes[i - whole] += value * value;
    }
    for (const double lane : lanes) {
      total += lane;
    }
  }
  return total;
}

std::optional<float> gradient_factor(const OptimizerSpec& spec, std::span<const float> gradients,
                                     double scale) noexcept {
  const double norm = std::sqrt(sum_of_squares(gradients)) * scale;
  if (spec.skip_nonfinite && !std::isfinite(norm)) {
    return std::nullopt;
  }
  return clip_factor(norm, spec.clip_norm);
}

ArenaOptimizer::ArenaOptimizer(const OptimizerSpec& spec, const BucketPlan& plan)
    : plan_(plan),
      optimizer_(spec, plan.elements()),
      updates_(static_cast<std::size_t>(plan.count())) {
  const bool layerwise = spec.kind == OptimizerKind::lars || spec.kind == OptimizerKind::lamb;
  if (layerwise && plan.tensors().empty() && plan.elements() > 0) {
    throw Error("optimizer: LARS and LAMB need to know the tensors of the arena");
  }
}

void ArenaOptimizer::apply_bucket(BucketId b, std::span<float> weights,
                                  std::span<const float> gradients, float lr, float scale) {
  const Range range = plan_[b];
  std::int64_t& updates = updates_.at(static_cast<std::size_t>(b));
  const std::span<float> w = part(weights, range);
  optimizer_.apply(range.begin, w, w, gradients.subspan(range.begin, range.size()),
                   {updates, lr, scale});
  ++updates;
}

bool ArenaOptimizer::apply(std::span<float> weights, std::span<float> gradients, float lr,
                           float scale) {
  const OptimizerSpec& rule = spec();
  if (rule.clip_norm > 0.0F || rule.skip_nonfinite) {
    const std::optional<float> factor =
        gradient_factor(rule, gradients, static_cast<double>(scale));
    if (!factor) {
      return false;
    }
    scale *= *factor;
  }
  if (rule.kind == OptimizerKind::lars || rule.kind == OptimizerKind::lamb) {
    apply_layerwise(weights, gradients, lr, scale);
    return true;
  }
  for (BucketId b = 0; b < plan_.count(); ++b) {
    apply_bucket(b, weights, gradients, lr, scale);
  }
  return true;
}

void ArenaOptimizer::apply_layerwise(std::span<float> weights, std::span<float> gradients, float lr,
                                     float scale) {
  for (BucketId b = 0; b < plan_.count(); ++b) {
    for (const TensorRange& tensor : plan_.tensors_of(b)) {
      const UpdateInfo info{updates(b), lr, scale};
      if (spec().kind == OptimizerKind::lars) {
        apply_lars(tensor, weights, gradients, info);
      } else {
        apply_lamb(tensor, weights, gradients, info);
      }
    }
    count_update(b);
  }
}

void ArenaOptimizer::apply_lars(const TensorRange& tensor, std::span<float> weights,
                                std::span<float> gradients, UpdateInfo info) {
  const std::span<float> w = part(weights, tensor.range);
  const std::span<float> g = part(gradients, tensor.range);
  info.decay_scale = 0.0F;
  if (tensor.dimensions > 1) {
    const float ratio =
        lars_ratio(spec(), std::sqrt(sum_of_squares(w)),
                   std::sqrt(sum_of_squares(g)) * static_cast<double>(info.gradient_scale));
    info.gradient_scale *= ratio;
    info.decay_scale = ratio;
  }
  optimizer_.apply(tensor.range.begin, w, w, g, info);
}

void ArenaOptimizer::apply_lamb(const TensorRange& tensor, std::span<float> weights,
                                std::span<float> gradients, UpdateInfo info) {
  const std::span<float> w = part(weights, tensor.range);
  const std::span<float> u = part(gradients, tensor.range);
  const bool scaled = tensor.dimensions > 1;
  info.decay_scale = scaled ? 1.0F : 0.0F;
  optimizer_.lamb_direction(tensor.range.begin, w, u, info);
  const float ratio =
      scaled ? kernels::lamb_ratio(std::sqrt(sum_of_squares(w)), std::sqrt(sum_of_squares(u)))
             : 1.0F;
  const float rate = info.lr * ratio;
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] -= rate * u[i];
  }
}

void ArenaOptimizer::save(StateWriter& writer) const {
  optimizer_.save(writer);
  for (std::size_t b = 0; b < updates_.size(); ++b) {
    writer.put(update_name(b), updates_[b]);
  }
}

void ArenaOptimizer::load(StateReader& reader) {
  optimizer_.load(reader);
  for (std::size_t b = 0; b < updates_.size(); ++b) {
    updates_[b] = reader.get(update_name(b));
  }
}

}  // namespace paceline
