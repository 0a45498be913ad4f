// SPDX-License-Identifier: Apache-2.0
// Sums the workers' gradients of one key, in the one order that all backends share.
#pragma once

#include <cstddef>
#include <span>

#include "ps/partition.h"

namespace paceline {

/// A worker's gradient of a key, key.elements() floats, or null where a worker takes no part.
using Contribution = const float*;

/// out[i] = sum over workers of element begin + i of the key, 0 <= i < out.size(), in the order of
/// common/sync/reduction_order.h: element j of the key belongs to the chunk of its *bucket* that
/// holds key.bucket_offset + j. At least one contribution is present.
void ring_order_sum(const KeyRange& key, std::span<const Contribution> workers, std::size_t begin,
                    std::span<float> out);

/// The same in fixed point (common/sync/exact_sum.h): the order does not matter. Throws Error
/// naming the worker and the bucket when a gradient is out of its range.
void exact_sum(const KeyRange& key, std::span<const Contribution> workers, std::size_t begin,
               std::span<float> out);

}  // namespace paceline
