// SPDX-License-Identifier: Apache-2.0
#include "common/core/precision.h"

#include <fmt/format.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "common/base/error.h"
#include "common/base/half.h"

namespace paceline {

Precision parse_precision(std::string_view name) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    if (name == precision_name(precision)) {
      return precision;
    }
  }
  throw ConfigError(
      fmt::format("precision.compute = \"{}\" must be one of fp32, bf16, fp16", name));
}

std::string_view precision_name(Precision precision) noexcept {
  return precision == Precision::bf16 ? "bf16" : precision == Precision::fp16 ? "fp16" : "fp32";
}

void round_values(Precision precision, std::span<float> values) noexcept {
  if (precision == Precision::bf16) {
    round_to_bfloat(values);
  } else if (precision == Precision::fp16) {
    round_to_half(values);
  }
}

bool native_precision(Precision precision) {
  // An instruction set's number holds the bits of all those it includes.
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return precision == Precision::fp32 || (precision == Precision::bf16 && (has & wanted) == wanted);
}

std::string precision_note(Precision precision) {
  if (native_precision(precision)) {
    return {};
  }
  return fmt::format(
      "precision.compute={0}: this processor has no {0} arithmetic; it is emulated: computed in "
      "fp32 from values rounded to {0}, so expect {0}'s results and no speed-up",
      precision_name(precision));
}

}  // namespace paceline
