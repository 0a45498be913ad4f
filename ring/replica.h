// SPDX-License-Identifier: Apache-2.0
// One worker's own copy of the model, for backends whose ranks train apart and are pulled together
// now and then (local SGD, elastic averaging, gossip).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "common/comm/transport.h"
#include "common/core/arena_optimizer.h"
#include "common/sync/backend.h"
#include "ring/collective.h"
#include "ring/communication_thread.h"

namespace paceline {

/// Refuses what these backends do not do: compressed or rounded weights on the wire, exact sums,
/// 1-bit Adam, the hierarchical algorithm. Throws ConfigError naming the key.
void check_replica_techniques(const Config& config);

/// The arenas, this worker's optimizer and its connections. Used by the training thread while
/// nothing is submitted for a bucket, by the communication thread while something is.
class Replica {
 public:
  /// Collective over the workers. `stop` ends waits for peers with Stopped; it and the context's
  /// parts outlive this.
  Replica(const WorkerContext& context, const std::atomic<bool>& stop);
  ~Replica() { transport_->leave(); }
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// As Synchronizer::bind.
  ReplicaView bind(const BucketPlan& plan, const OptimizerSpec& spec, std::span<const float> init);
  /// Likewise, but the trainer reads viewed(), which starts as a copy of weights() and is the
  /// caller's to renew; set_aside() is then not needed.
  ReplicaView bind_apart(const BucketPlan& plan, const OptimizerSpec& spec,
                         std::span<const float> init);

  [[nodiscard]] const BucketPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] Transport& transport() noexcept { return *transport_; }
  [[nodiscard]] std::span<float> weights(BucketId b) const;
  [[nodiscard]] std::span<float> gradient(BucketId b) const;
  [[nodiscard]] std::span<float> viewed(BucketId b) const;
  [[nodiscard]] bool whole_gradient() const noexcept { return optimizer_->spec().whole_gradient(); }

  /// This worker's optimizer steps bucket b (update_all: all of them) by the mean over its samples;
  /// nothing without samples. False: the gradient was not finite and is left out.
  void update(BucketId b, const StepInfo& step);
  [[nodiscard]] bool update_all(const StepInfo& step);

  /// `values` becomes the sum over ranks, the same bits on all. Throws as Collective does.
  RunTimes sum(std::span<float> values);

  /// The weights go to the gradient arena, so that a model which all ranks agree on can be shown
  /// in their place; take_back() returns them, if they are aside.
  void set_aside();
  void take_back();
  [[nodiscard]] bool aside() const noexcept { return aside_; }

  /// Of work that took `times` and has just ended.
  [[nodiscard]] BucketCost cost(const RunTimes& times) const;

  [[nodiscard]] MemoryUse memory() const noexcept;
  /// The optimizer, and the weights that are set aside or apart from the trainer's.
  void save(StateWriter& writer) const;
  void load(StateReader& reader);

 private:
  [[nodiscard]] static std::span<float> floats(CommBuffer& buffer, std::size_t elements) noexcept;
  [[nodiscard]] std::span<float> all_weights() const noexcept;
  [[nodiscard]] std::span<float> all_gradients() const noexcept;

  BucketPlan plan_;
  std::unique_ptr<Transport> transport_;
  Collective collective_;
  std::unique_ptr<CommBuffer> weights_;
  std::unique_ptr<CommBuffer> gradients_;
  std::unique_ptr<CommBuffer> view_;  ///< null: the trainer reads weights_
  std::optional<ArenaOptimizer> optimizer_;
  bool aside_ = false;
};

/// now_ns() three times: work that waited for nobody.
[[nodiscard]] RunTimes no_exchange() noexcept;

}  // namespace paceline
