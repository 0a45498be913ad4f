// SPDX-License-Identifier: Apache-2.0
// What NCCL's double does with the parts of all ranks once they are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/core/cuda/nccl_abi.h"
#include "common/core/precision.h"

namespace paceline::test {

enum class NcclKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, doubles };

/// One rank's in a collective; pointers are device memory.
struct NcclPart {
  NcclKind kind = NcclKind::all_reduce;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  Precision format = Precision::fp32;
  cuda::NcclSum sum = cuda::NcclSum::sum;
  int root = 0;

  [[nodiscard]] bool matches(const NcclPart& other) const {
    return kind == other.kind && count == other.count && format == other.format &&
           sum == other.sum && root == other.root;
  }
};

using NcclParts = std::vector<NcclPart>;  ///< by rank

/// Whether they are of one collective.
[[nodiscard]] bool match(const NcclParts& parts);
/// Sums in rank order, copies; of parts that match.
void carry_out(const NcclParts& parts);

}  // namespace paceline::test
