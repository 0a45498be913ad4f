// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction of a·b+c (see CMakeLists.txt), so that an element's bits do not
// depend on whether it lands in a vectorised loop's body or its remainder.
#include "common/core/optimizer.h"

#include <fmt/format.h>

#include "common/base/error.h"
#include "common/core/optimizer_rules.h"

namespace paceline {

namespace {

std::size_t moments(const OptimizerSpec& spec) {
  if (spec.kind == OptimizerKind::adam) {
    return 2;
  }
  return spec.momentum != 0.0F ? 1 : 0;
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
  const auto moment = [&](std::size_t index) {
    return index < moments(spec_) ? state_.as<float>().data() + index * elements_ + begin : nullptr;
  };
  const kernels::UpdateOperands operands{weights_in.data(), weights_out.data(), gradient.data(),
                                         moment(0), moment(1)};
  kernels::with_update_rule(operands, spec_, info, [n](const auto& rule) {
    kernels::for_each(static_cast<std::int64_t>(n), rule);
  });
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
