// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of a·b+c (see CMakeLists.txt), so that an element's bits do not
// depend on whether it lands in a vectorised loop's body or its remainder.
#include "common/core/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"

namespace paceline {

namespace {

std::size_t moments(const OptimizerSpec& spec) {
  if (spec.kind == OptimizerKind::adam) {
    return 2;
  }
  return spec.momentum != 0.0F ? 1 : 0;
}

/// One call's pointers, all at the first element of the range.
struct Operands {
  const float* w;
  float* out;
  const float* g;
  std::size_t n;
};

void plain_sgd(const Operands& o, const OptimizerSpec& spec, const UpdateInfo& info) {
  const float scale = info.gradient_scale;
  const float decay = spec.weight_decay;
  const float lr = info.lr;
#pragma omp simd
  for (std::size_t i = 0; i < o.n; ++i) {
    const float gradient = o.g[i] * scale + decay * o.w[i];
    o.out[i] = o.w[i] - lr * gradient;
  }
}

void momentum_sgd(const Operands& o, float* v, const OptimizerSpec& spec, const UpdateInfo& info) {
  const float scale = info.gradient_scale;
  const float decay = spec.weight_decay;
  const float lr = info.lr;
  const float momentum = spec.momentum;
#pragma omp simd
  for (std::size_t i = 0; i < o.n; ++i) {
    const float gradient = o.g[i] * scale + decay * o.w[i];
    const float velocity = momentum * v[i] + gradient;
    v[i] = velocity;
    o.out[i] = o.w[i] - lr * velocity;
  }
}

void nesterov_sgd(const Operands& o, float* v, const OptimizerSpec& spec, const UpdateInfo& info) {
  const float scale = info.gradient_scale;
  const float decay = spec.weight_decay;
  const float lr = info.lr;
  const float momentum = spec.momentum;
#pragma omp simd
  for (std::size_t i = 0; i < o.n; ++i) {
    const float gradient = o.g[i] * scale + decay * o.w[i];
    const float velocity = momentum * v[i] + gradient;
    v[i] = velocity;
    o.out[i] = o.w[i] - lr * (gradient + momentum * velocity);
  }
}

void adam(const Operands& o, float* m, float* v, const OptimizerSpec& spec,
          const UpdateInfo& info) {
  const double t = static_cast<double>(info.step + 1);
  const double correction1 = 1.0 - std::pow(static_cast<double>(spec.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(spec.beta2), t);
  const auto step_size = static_cast<float>(static_cast<double>(info.lr) / correction1);
  const auto inverse_root = static_cast<float>(1.0 / std::sqrt(correction2));
  const float scale = info.gradient_scale;
  const float decay = spec.weight_decay;
  const float beta1 = spec.beta1;
  const float beta2 = spec.beta2;
  const float rest1 = 1.0F - beta1;
  const float rest2 = 1.0F - beta2;
  const float epsilon = spec.epsilon;
#pragma omp simd
  for (std::size_t i = 0; i < o.n; ++i) {
    const float gradient = o.g[i] * scale + decay * o.w[i];
    const float first = beta1 * m[i] + rest1 * gradient;
    const float second = beta2 * v[i] + rest2 * (gradient * gradient);
    m[i] = first;
    v[i] = second;
    o.out[i] = o.w[i] - step_size * (first / (std::sqrt(second) * inverse_root + epsilon));
  }
}

}  // namespace

Optimizer::Optimizer(const OptimizerSpec& spec, std::size_t elements)
    : spec_(spec), elements_(elements), state_(moments(spec) * elements * sizeof(float)) {}

void Optimizer::apply(std::size_t begin, std::span<const float> weights_in,
                      std::span<float> weights_out, std::span<const float> gradient,
                      const UpdateInfo& info) {
  const std::size_t n = gradient.size();
  if (begin > elements_ || n > elements_ - begin || weights_in.size() != n ||
      weights_out.size() != n) {
    throw Error(
        fmt::format("optimizer: range [{}, {}) with {} weights in and {} out does not fit "
                    "its {} elements",
                    begin, begin + n, weights_in.size(), weights_out.size(), elements_));
  }
  const Operands operands{weights_in.data(), weights_out.data(), gradient.data(), n};
  float* state = state_.as<float>().data();
  if (spec_.kind == OptimizerKind::adam) {
    adam(operands, state + begin, state + elements_ + begin, spec_, info);
  } else if (spec_.momentum == 0.0F) {
    plain_sgd(operands, spec_, info);
  } else if (spec_.nesterov) {
    nesterov_sgd(operands, state + begin, spec_, info);
  } else {
    momentum_sgd(operands, state + begin, spec_, info);
  }
}

void Optimizer::save(StateWriter& writer) const {
  const std::span<const float> state = state_.as<float>();
  if (spec_.kind == OptimizerKind::adam) {
    writer.put("adam.first_moment", state.first(elements_));
    writer.put("adam.second_moment", state.last(elements_));
  } else if (spec_.momentum != 0.0F) {
    writer.put("sgd.momentum", state);
  }
}

void Optimizer::load(StateReader& reader) {
  const std::span<float> state = state_.as<float>();
  if (spec_.kind == OptimizerKind::adam) {
    reader.get("adam.first_moment", state.first(elements_));
    reader.get("adam.second_moment", state.last(elements_));
  } else if (spec_.momentum != 0.0F) {
    reader.get("sgd.momentum", state);
  }
}

}  // namespace paceline
