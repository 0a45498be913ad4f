// SPDX-License-Identifier: Apache-2.0
// The format of activations and of the operands of products. Master weights, sums and the loss stay
// fp32.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace paceline {

enum class Precision : std::uint8_t { fp32, bf16, fp16 };

/// "fp32", "bf16" or "fp16"; throws ConfigError naming precision.compute for anything else.
[[nodiscard]] Precision parse_precision(std::string_view name);
[[nodiscard]] std::string_view precision_name(Precision precision) noexcept;

/// values[i] becomes the nearest value that the format has (base/half.h); nothing for fp32.
void round_values(Precision precision, std::span<float> values) noexcept;

/// Whether this processor multiplies the format's values itself (bf16: AVX512_BF16 or AMX). fp16
/// never does on a CPU.
[[nodiscard]] bool native_precision(Precision precision);

/// One sentence for the user where the format is emulated, empty where it is not.
[[nodiscard]] std::string precision_note(Precision precision);

}  // namespace paceline
