// SPDX-License-Identifier: Apache-2.0
// dst = dst + src on raw message bytes: the arithmetic of Arrival::sum.
#pragma once

#include <cstddef>

#include "common/comm/transport.h"

namespace paceline {

/// Adds `bytes` (a multiple of size_of(type)) of elements at `src` to those at `dst`, in that order
/// of operands. Both aligned to the element; they must not overlap. i64 wraps.
void add_elements(std::byte* dst, const std::byte* src, std::size_t bytes, DataType type) noexcept;

/// Copies or adds, as `arrival` says.
void apply_arrival(const Arrival& arrival, std::byte* dst, const std::byte* src,
                   std::size_t bytes) noexcept;

}  // namespace paceline
