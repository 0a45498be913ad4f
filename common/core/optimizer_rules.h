// SPDX-License-Identifier: Apache-2.0
// The update rules as functors of one element: g++ compiles them into the loops of optimizer.cpp,
// nvcc into kernels. Only for files compiled without contraction of a·b+c (they define
// PACELINE_NO_CONTRACTION beside the flag): with one rounding per operation and IEEE division and
// square root, an element's bits depend neither on its place in a vector nor on the device.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/core/kernels.h"
#include "common/core/update_info.h"
#include "common/sync/optimizer_spec.h"

#if !defined(PACELINE_NO_CONTRACTION)
#error "compile with -ffp-contract=off (nvcc: --fmad=false) and define PACELINE_NO_CONTRACTION"
#endif

namespace paceline::kernels {

struct PlainSgd {
  UpdateOperands at;
  float scale;
  float decay;
  float lr;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float gradient = at.gradient[i] * scale + decay * at.in[i];
    at.out[i] = at.in[i] - lr * gradient;
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(at.in), reads(at.gradient), writes(at.out));
  }
};

struct MomentumSgd {
  UpdateOperands at;
  float scale;
  float decay;
  float lr;
  float momentum;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float gradient = at.gradient[i] * scale + decay * at.in[i];
    const float velocity = momentum * at.moment1[i] + gradient;
    at.moment1[i] = velocity;
    at.out[i] = at.in[i] - lr * velocity;
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(at.in), reads(at.gradient), writes(at.out), changes(at.moment1));
  }
};

struct NesterovSgd {
  UpdateOperands at;
  float scale;
  float decay;
  float lr;
  float momentum;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float gradient = at.gradient[i] * scale + decay * at.in[i];
    const float velocity = momentum * at.moment1[i] + gradient;
    at.moment1[i] = velocity;
    at.out[i] = at.in[i] - lr * (gradient + momentum * velocity);
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(at.in), reads(at.gradient), writes(at.out), changes(at.moment1));
  }
};

/// m <- β1·m + (1−β1)·g;  v <- β2·v + (1−β2)·g²;  w <- w − step_size · m / (√v · inverse_root + ε)
struct Adam {
  UpdateOperands at;
  float scale;
  float decay;
  float beta1;
  float beta2;
  float rest1;         ///< 1 − β1
  float rest2;         ///< 1 − β2
  float step_size;     ///< lr / (1 − β1^t)
  float inverse_root;  ///< 1 / √(1 − β2^t)
  float epsilon;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float gradient = at.gradient[i] * scale + decay * at.in[i];
    const float first = beta1 * at.moment1[i] + rest1 * gradient;
    const float second = beta2 * at.moment2[i] + rest2 * (gradient * gradient);
    at.moment1[i] = first;
    at.moment2[i] = second;
    at.out[i] = at.in[i] - step_size * (first / (std::sqrt(second) * inverse_root + epsilon));
  }
  template <typename Use>
  PACELINE_HD auto operands(const Use& use) {
    return use(reads(at.in), reads(at.gradient), writes(at.out), changes(at.moment1),
               changes(at.moment2));
  }
};

/// u <- m / (√v·inverse_root + ε)·correction + decay·w, in the gradient's place, moments as in
/// Adam; the weights stay.
struct LambDirection {
  Adam adam;  ///< its step_size is the correction 1 / (1 − β1^t)
  float* direction;

  PACELINE_HD void operator()(std::int64_t i) const {
    const float gradient = adam.at.gradient[i] * adam.scale;
    const float first = adam.beta1 * adam.at.moment1[i] + adam.rest1 * gradient;
    const float second = adam.beta2 * adam.at.moment2[i] + adam.rest2 * (gradient * gradient);
    adam.at.moment1[i] = first;
    adam.at.moment2[i] = second;
    direction[i] =
        adam.step_size * (first / (std::sqrt(second) * adam.inverse_root + adam.epsilon)) +
        adam.decay * adam.at.in[i];
  }
};

inline Adam adam_rule(const UpdateOperands& at, const OptimizerSpec& spec, const UpdateInfo& info) {
  const double t = static_cast<double>(info.step + 1);
  const double correction1 = 1.0 - std::pow(static_cast<double>(spec.beta1), t);
  const double correction2 = 1.0 - std::pow(static_cast<double>(spec.beta2), t);
  return {at,
          info.gradient_scale,
          spec.weight_decay * info.decay_scale,
          spec.beta1,
          spec.beta2,
          1.0F - spec.beta1,
          1.0F - spec.beta2,
          static_cast<float>(static_cast<double>(info.lr) / correction1),
          static_cast<float>(1.0 / std::sqrt(correction2)),
          spec.epsilon};
}

/// Calls run(rule) with the functor of SGD that `spec` asks for.
template <typename Run>
void with_sgd_rule(const UpdateOperands& at, const OptimizerSpec& spec, const UpdateInfo& info,
                   Run&& run) {
  const float scale = info.gradient_scale;
  const float decay = spec.weight_decay * info.decay_scale;
  if (spec.momentum == 0.0F) {
    run(PlainSgd{at, scale, decay, info.lr});
  } else if (spec.nesterov) {
    run(NesterovSgd{at, scale, decay, info.lr, spec.momentum});
  } else {
    run(MomentumSgd{at, scale, decay, info.lr, spec.momentum});
  }
}

/// The same of any rule; for LARS the one of a single tensor (its trust ratio is in the scales),
/// not for LAMB.
template <typename Run>
void with_update_rule(const UpdateOperands& at, const OptimizerSpec& spec, const UpdateInfo& info,
                      Run&& run) {
  if (spec.kind == OptimizerKind::adam || spec.kind == OptimizerKind::onebit_adam) {
    run(adam_rule(at, spec, info));
  } else {
    with_sgd_rule(at, spec, info, run);
  }
}

}  // namespace paceline::kernels
