// SPDX-License-Identifier: Apache-2.0
// `paceline memory`: bytes that a rank of a run will hold, without starting it or allocating any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/core/activation_plan.h"
#include "common/sync/synchronizer.h"
#include "experiments/memory_backends.h"
#include "experiments/memory_model.h"

namespace paceline {

/// What all ranks of one machine, or the rank of one GPU, have together.
struct MemoryLimit {
  std::optional<std::int64_t> bytes;
  std::string source;  ///< "given by --memory"; without bytes: why they are not known
};

/// What the user says besides the configuration.
struct MemoryOptions {
  std::optional<std::int64_t> bytes;  ///< instead of asking: of the GPU, or of the machine
  int ranks_here = 0;                 ///< ranks on one machine; 0: all
  /// That a run would compute with on a GPU; null: the process's own.
  const CudaModule* module = nullptr;
};

inline constexpr std::int64_t kMostBatch = std::int64_t{1} << 30;

struct MemoryPlan {
  Config config;
  std::size_t parameters = 0;
  int ranks_here = 1;  ///< that share `limit`
  PlannedUse use;
  ActivationPlan activations;  ///< the most of training and evaluation
  std::optional<PlannedAttention> attention;
  std::size_t workspace = 0;  ///< of a GPU's matrix products
  std::size_t batches = 0;    ///< in host memory: inputs and labels of one to train and one to test
  MemoryLimit limit;
  /// That fits, up to kMostBatch; 0: none. Empty without a limit.
  std::optional<std::int64_t> largest_batch;
  std::size_t optimizer_if_sharded = 0;  ///< with sync=sharded in this world

  /// A rank's arenas in the memory that is asked about: what does not depend on the batch.
  [[nodiscard]] std::size_t arena_bytes() const noexcept;
  /// A rank's in host memory besides a GPU's; its servers there as well.
  [[nodiscard]] std::size_t host_bytes() const noexcept;
  /// A rank's.
  [[nodiscard]] std::size_t rank_bytes() const noexcept;
  /// Of everything that shares the limit: the ranks, and servers() times a server.
  [[nodiscard]] std::size_t needed_bytes() const noexcept;
  /// That are processes of their own and share the limit.
  [[nodiscard]] int servers() const noexcept;
  /// Empty without a limit.
  [[nodiscard]] std::optional<bool> fits() const noexcept;
};

/// Throws ConfigError as a run would, but for a missing GPU.
[[nodiscard]] MemoryPlan plan_memory(const Config& config, const MemoryOptions& options);

/// What to do where it does not fit, most useful first; empty where it does.
[[nodiscard]] std::vector<std::string> memory_advice(const MemoryPlan& plan);

[[nodiscard]] std::string memory_text(const MemoryPlan& plan);
[[nodiscard]] std::string memory_json(const MemoryPlan& plan);

/// "97.5 MiB", "312 B" (powers of 1024).
[[nodiscard]] std::string binary_bytes(std::size_t bytes);

}  // namespace paceline
