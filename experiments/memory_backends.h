// SPDX-License-Identifier: Apache-2.0
// What each backend's Synchronizer::memory() will count, said without one.
#pragma once

#include <optional>

#include "common/sync/backend.h"

namespace paceline {

/// Of the server that holds most.
struct PlannedServer {
  std::size_t weights = 0;
  std::size_t optimizer = 0;
  std::size_t gradients = 0;  ///< with ps.device=cuda: of its largest key
  /// At most: in host memory weights that answers carry or workers compute on, besides `weights`.
  std::size_t versions = 0;
  std::size_t pushes = 0;  ///< at most: gradients that wait for those of the other workers
  std::size_t on_gpu = 0;  ///< of them all; with ps.device=cuda
  [[nodiscard]] std::size_t total() const noexcept {
    return weights + optimizer + gradients + versions + pushes;
  }
  [[nodiscard]] std::size_t on_host() const noexcept { return total() - on_gpu; }
};

struct PlannedUse {
  MemoryUse worker;                     ///< rank 0's, of which none is smaller
  std::optional<PlannedServer> server;  ///< where weights live on servers
  bool server_in_worker = false;        ///< `worker` includes it: it is a thread of the rank
  bool shared_weights = false;          ///< `worker.weights` are those of all ranks
  /// device=cuda under a backend of the host: weights and gradients are the GPU's, with copies in
  /// `worker.staging`; that, the optimizer's state and error feedback are in host memory.
  bool staged = false;
};

/// Of a validated configuration. A backend that this does not know counts as one whose ranks hold
/// all weights, gradients and optimizer state and stage nothing.
[[nodiscard]] PlannedUse plan_backend(const Config& config, const Backend& backend,
                                      const BucketPlan& plan, const OptimizerSpec& spec);

}  // namespace paceline
