// SPDX-License-Identifier: Apache-2.0
// What a worker's hello says about its job, so that a server learns the bucket plan and refuses a
// worker that was configured otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/compress/gradient_format.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"
#include "ps/apply_policy.h"

namespace paceline {

struct JobDescription {
  int world = 1;
  int servers = 1;
  PsRule rule;
  bool exact = false;
  OptimizerSpec optimizer;
  GradientFormat format;
  std::vector<std::size_t> buckets;  ///< elements of each
  std::vector<TensorRange> tensors;  ///< of the arena where the optimizer needs them, else none
  [[nodiscard]] BucketPlan plan() const { return BucketPlan(buckets); }
};

[[nodiscard]] std::vector<std::byte> encode(const JobDescription& job);
/// Throws WireError when the bytes are no description: wrong length, values out of range, or more
/// than 2^40 elements.
[[nodiscard]] JobDescription decode_job(std::span<const std::byte> bytes);

/// The first field in which `theirs` differs: "world is 3, here 4"; none when equal.
[[nodiscard]] std::optional<std::string> difference(const JobDescription& ours,
                                                    const JobDescription& theirs);

}  // namespace paceline
