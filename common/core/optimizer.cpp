// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of a·b+c (see CMakeLists.txt), so that an element's bits do not
// depend on whether it lands in a vectorised loop's body or its remainder.
#include "common/core/optimizer.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/optimizer_rules.h"

namespace paceline {

namespace {

bool has_second_moment(const OptimizerSpec& spec) {
  return spec.kind == OptimizerKind::adam || spec.kind == OptimizerKind::lamb ||
         spec.kind == OptimizerKind::onebit_adam;
}

std::size_t moments(const OptimizerSpec& spec) {
  if (has_second_moment(spec)) {
    return 2;
  }
  return spec.momentum != 0.0F ? 1 : 0;
}

}  // namespace

std::size_t optimizer_state_bytes(const OptimizerSpec& spec, std::size_t elements) {
  return moments(spec) * elements * sizeof(float);
}

Optimizer::Optimizer(const OptimizerSpec& spec, std::size_t elements)
    : spec_(spec), elements_(elements), state_(optimizer_state_bytes(spec, elements)) {}

void Optimizer::check(std::size_t begin, std::size_t count, std::size_t in, std::size_t out) const {
  if (begin > elements_ || count > elements_ - begin || in != count || out != count) {
    throw Error(
        fmt::format("optimizer: range [{}, {}) with {} weights in and {} out does not fit "
                    "its {} elements",
                    begin, begin + count, in, out, elements_));
  }
}

std::span<float> Optimizer::moment(int index, std::size_t begin, std::size_t count) {
  check(begin, count, count, count);
  if (static_cast<std::size_t>(index) >= moments(spec_)) {
    return {};
  }
  return state_.as<float>().subspan(static_cast<std::size_t>(index) * elements_ + begin, count);
}

kernels::UpdateOperands Optimizer::operands(std::size_t begin, const float* in, float* out,
                                            std::span<const float> gradient) noexcept {
  const auto at = [&](std::size_t index) {
    return index < moments(spec_) ? state_.as<float>().data() + index * elements_ + begin : nullptr;
  };
  return {in, out, gradient.data(), at(0), at(1)};
}

void Optimizer::apply(std::size_t begin, std::span<const float> weights_in,
                      std::span<float> weights_out, std::span<const float> gradient,
                      const UpdateInfo& info) {
  check(begin, gradient.size(), weights_in.size(), weights_out.size());
  if (spec_.kind == OptimizerKind::lamb) {
    throw Error("optimizer: LAMB has no update of elements alone");
  }
  kernels::with_update_rule(operands(begin, weights_in.data(), weights_out.data(), gradient), spec_,
                            info, [n = gradient.size()](const auto& rule) {
                              kernels::for_each(static_cast<std::int64_t>(n), rule);
                            });
}

void Optimizer::lamb_direction(std::size_t begin, std::span<const float> weights,
                               std::span<float> gradient, const UpdateInfo& info) {
  check(begin, gradient.size(), weights.size(), weights.size());
  UpdateInfo unit = info;
  unit.lr = 1.0F;
  const kernels::Adam adam =
      kernels::adam_rule(operands(begin, weights.data(), nullptr, gradient), spec_, unit);
  kernels::for_each(static_cast<std::int64_t>(gradient.size()),
                    kernels::LambDirection{adam, gradient.data()});
}

void Optimizer::save(StateWriter& writer) const {
  const std::span<const float> state = state_.as<float>();
  if (has_second_moment(spec_)) {
    writer.put("adam.first_moment", state.first(elements_));
    writer.put("adam.second_moment", state.last(elements_));
  } else if (spec_.momentum != 0.0F) {
    writer.put("sgd.momentum", state);
  }
}

void Optimizer::load(StateReader& reader) {
  const std::span<float> state = state_.as<float>();
  if (has_second_moment(spec_)) {
    reader.get("adam.first_moment", state.first(elements_));
    reader.get("adam.second_moment", state.last(elements_));
  } else if (spec_.momentum != 0.0F) {
    reader.get("sgd.momentum", state);
  }
}

}  // namespace paceline
