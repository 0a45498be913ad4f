// SPDX-License-Identifier: Apache-2.0
// The seam between the training loop and every way of synchronising gradients.
//
// The trainer says which weights it is about to read, which gradient bucket is final, and that a
// step is done. The backend owns freshness, the place where updates are applied, and the memory.
//
// One step, as the trainer calls it:
//     begin_step(info)
//     parameters_needed(b)   for b = last .. 0      (forward reads first layers first)
//     gradient_ready(b)      for b = 0 .. last      (backward finishes last layers first)
//     commit()
//
// Rules that both sides keep:
//  - gradient_ready(b) means: bucket b's gradient is final, and W_b will not be read again in this
//    step. Weights of b change only between that call and the return of the next
//    parameters_needed(b) (or quiesce). The exception is Traits::shared_weights (Hogwild!).
//  - From gradient_ready(b) until the next parameters_needed(b) (or quiesce) returns, the backend
//    may read and overwrite bucket b's gradients; the trainer touches neither.
//  - A gradient is the *sum* over this worker's samples. The backend divides by all samples that
//    contributed to the update, so uneven batches are weighted by samples, never a mean of means.
//  - Every rank launches each bucket exactly once per step, in the same order; zeros if unused.
//  - An error on a background thread is stored and rethrown from the next call of the seam.
//  - The destructor is local (never waits for a peer); quiesce is collective.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/core/device.h"
#include "common/sync/bucket_plan.h"
#include "common/sync/optimizer_spec.h"
#include "common/sync/state_io.h"

namespace paceline {

struct SparseGradient;

enum class Consistency : std::uint8_t { synchronous, bounded_stale, asynchronous };
enum class UpdatePlace : std::uint8_t { worker, server, shared_memory };

struct Traits {
  Consistency consistency = Consistency::synchronous;
  UpdatePlace updates_at = UpdatePlace::worker;
  bool shared_weights = false;  ///< workers read weights that others write at the same time
};

/// Memory that the backend provides. Valid from bind() until the Synchronizer dies.
/// Both are flat arenas of plan.elements() floats, laid out in backward order.
struct ReplicaView {
  std::span<float> weights;
  std::span<float> gradients;
};

struct StepInfo {
  std::int64_t step = 0;            ///< counts this worker's steps from 0
  float lr = 0.0F;                  ///< learning rate of this step
  std::int64_t samples = 0;         ///< samples in this worker's gradient; 0 is allowed
  std::int64_t global_samples = 0;  ///< samples of all workers in this step (the sampler knows)
};

struct Staleness {
  static constexpr std::size_t kBins = 17;
  std::int64_t updates = 0;  ///< updates of this worker that were applied and acknowledged
  double sum = 0.0;          ///< of their staleness, in server updates
  std::int64_t max = 0;
  std::array<std::int64_t, kBins> histogram{};  ///< updates of staleness 0, 1, …, 15, and over 15
  void add(std::int64_t value) noexcept {
    ++updates;
    sum += static_cast<double>(value);
    max = value > max ? value : max;
    const auto bin = static_cast<std::size_t>(value < 0 ? 0 : value);
    ++histogram[bin < kBins ? bin : kBins - 1];
  }
  void merge(const Staleness& other) noexcept {
    updates += other.updates;
    sum += other.sum;
    max = other.max > max ? other.max : max;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      histogram[bin] += other.histogram[bin];
    }
  }
};

/// One bucket's transfer, now_ns() at both ends.
struct Transfer {
  BucketId bucket = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// What happened since the previous commit (communication of step t mostly shows in step t+1's).
struct StepReport {
  double wait_s = 0.0;           ///< part of the blocked time spent waiting for a slower rank
  int waited_for = -1;           ///< the rank whose lateness cost most of wait_s; -1: not known
  double waited_for_s = 0.0;     ///< what it cost, at most wait_s
  double communication_s = 0.0;  ///< time the backend's transfers were in progress, hidden or not
  std::uint64_t bytes_sent = 0;  ///< payload and framing that left this rank
  Staleness staleness;
  int skipped = 0;  ///< updates left out because their gradient held inf or NaN
  std::vector<Transfer> transfers;
};

/// Bytes that a backend holds on this rank, counted; what a transport or library buffers inside
/// itself is left out.
struct MemoryUse {
  std::size_t weights = 0;
  std::size_t gradients = 0;
  std::size_t optimizer = 0;
  std::size_t staging = 0;   ///< besides the arenas
  std::size_t residual = 0;  ///< what error feedback keeps
};

/// One per worker; every call comes from that worker's training thread.
/// All may throw PeerLost, TimeoutError, Interrupted or Error.
class Synchronizer {
 public:
  Synchronizer() = default;
  virtual ~Synchronizer() = default;
  Synchronizer(const Synchronizer&) = delete;
  Synchronizer& operator=(const Synchronizer&) = delete;

  [[nodiscard]] virtual Traits traits() const noexcept = 0;

  /// Valid after bind().
  [[nodiscard]] virtual MemoryUse memory() const noexcept = 0;

  /// Collective, once. `init` holds plan.elements() floats and is equal on every rank; afterwards
  /// the returned weights equal it on every rank and the gradients are zero.
  virtual ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& optimizer,
                           std::span<const float> init) = 0;

  /// Opens a step. Does not block.
  virtual void begin_step(const StepInfo& info) = 0;

  /// Returns when bucket b's weights may be read (GPU: makes the stream wait, not the host).
  virtual void parameters_needed(BucketId b, Stream& stream) = 0;

  /// Hands over bucket b's gradient once `done` is reached. Never blocks on a peer.
  virtual void gradient_ready(BucketId b, const Event& done) = 0;

  /// Whether sparse_gradient_ready may come instead of gradient_ready. Valid after bind().
  [[nodiscard]] virtual bool takes_sparse_gradients() const noexcept { return false; }

  /// Hands over the whole gradient of a step, whose arena then holds nothing of meaning. Only where
  /// takes_sparse_gradients(); borrowed during the call.
  virtual void sparse_gradient_ready(const SparseGradient& /*gradient*/) {}

  /// Closes the step: backward is over.
  virtual StepReport commit() = 0;

  /// Collective: drains what is in flight and agrees; afterwards ReplicaView::weights is the same
  /// on all ranks (synchronous: the model; asynchronous: the server's or the shared model).
  /// Callable between steps, any number of times.
  virtual void quiesce() = 0;

  /// Optimizer state and versions that this rank owns; between steps, after quiesce().
  virtual void save(StateWriter& writer) const = 0;
  virtual void load(StateReader& reader) = 0;
};

}  // namespace paceline
