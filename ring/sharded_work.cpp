// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/core/arena_optimizer.h"
#include "common/sync/reduction_order.h"
#include "ring/bucket_work.h"
#include "ring/gradient_reducer.h"

namespace paceline {

namespace {

constexpr std::string_view kShardRank = "sharded.rank";
constexpr std::string_view kShardWorld = "sharded.world";

/// This rank's elements: a chunk of each bucket, one after the other.
class Shard {
 public:
  Shard(const BucketPlan& plan, int rank, int world) {
    for (BucketId b = 0; b < plan.count(); ++b) {
      const Range chunk = ring_chunk(plan[b].size(), world, rank);
      parts_.push_back({elements_, {plan[b].begin + chunk.begin, plan[b].begin + chunk.end}});
      elements_ += chunk.size();
    }
  }
  struct Part {
    std::size_t begin;  ///< in the shard
    Range arena;        ///< where its elements are
  };
  [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
  [[nodiscard]] const Part& operator[](BucketId b) const {
    return parts_.at(static_cast<std::size_t>(b));
  }

 private:
  std::vector<Part> parts_;
  std::size_t elements_ = 0;
};

class ShardedWork final : public BucketWork {
 public:
  explicit ShardedWork(const WorkPlace& place)
      : rank_(place.transport.rank()),
        world_(place.transport.size()),
        plan_(place.plan),
        transport_(place.transport),
        collective_(place.collective),
        shard_(place.plan, rank_, world_),
        weights_(place.transport.allocate(place.init.size_bytes())),
        gradients_(place.transport.allocate(place.init.size_bytes())),
        squares_(place.transport.allocate(static_cast<std::size_t>(world_) * sizeof(double))),
        optimizer_(place.spec, shard_.elements()),
        updates_(static_cast<std::size_t>(place.plan.count())) {
    if (place.spec.kind != OptimizerKind::sgd && place.spec.kind != OptimizerKind::adam) {
      throw Error("a sharded optimizer steps with SGD or Adam only");
    }
    std::ranges::copy(place.init, floats(*weights_).begin());
    ReducerPlace reducer{place.config, place.transport, place.collective, plan_,
                         place.spec.skip_nonfinite};
    reducer.own_chunk_only = true;
    reducer_ = make_gradient_reducer(reducer);
    for (BucketId b = 0; b < plan_.count(); ++b) {
      collective_.prepare(CollectiveKind::allgather, plan_[b].size(), DataType::f32);
    }
  }

  [[nodiscard]] ReplicaView view() noexcept override {
    return {floats(*weights_), floats(*gradients_)};
  }

  BucketCost run(BucketId b, const StepInfo& step) override {
    BucketCost cost;
    cost.times = reducer_->reduce(b, part(*gradients_, plan_[b]), step);
    const bool whole = optimizer_.spec().whole_gradient();
    summed_ = (summed_ + 1) % plan_.count();
    if (step.global_samples > 0 && (!whole || summed_ == 0)) {
      const float scale = 1.0F / static_cast<float>(step.global_samples);
      if (whole) {
        cost.skipped = update_all(step.lr, scale);
      } else {
        update(b, step.lr, scale);
      }
      cost.times.end_ns = now_ns();
    }
    cost.bytes_sent_total = transport_.bytes_sent();
    return cost;
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    const std::size_t arena = plan_.elements() * sizeof(float);
    return {arena, arena, optimizer_.state_bytes(),
            reducer_->staging_bytes() + squares_->bytes().size(), reducer_->residual_bytes()};
  }

  void save(StateWriter& writer) const override {
    writer.put(kShardRank, rank_);
    writer.put(kShardWorld, world_);
    optimizer_.save(writer);
    for (std::size_t b = 0; b < updates_.size(); ++b) {
      writer.put(fmt::format("updates.{}", b), updates_[b]);
    }
  }

  void load(StateReader& reader) override {
    const std::int64_t rank = reader.get(kShardRank);
    const std::int64_t world = reader.get(kShardWorld);
    if (rank != rank_ || world != world_) {
      throw Error(fmt::format("rank {} of {}: the state is the shard of rank {} of {}", rank_,
                              world_, rank, world));
    }
    optimizer_.load(reader);
    for (std::size_t b = 0; b < updates_.size(); ++b) {
      updates_[b] = reader.get(fmt::format("updates.{}", b));
    }
  }

 private:
  [[nodiscard]] std::span<float> floats(CommBuffer& buffer) const noexcept {
    return {reinterpret_cast<float*>(buffer.bytes().data()), plan_.elements()};
  }
  [[nodiscard]] std::span<float> part(CommBuffer& buffer, const Range& range) const noexcept {
    return floats(buffer).subspan(range.begin, range.size());
  }

  /// Steps this rank's chunk of bucket b and takes the others' over.
  void update(BucketId b, float lr, float scale) {
    const Shard::Part& own = shard_[b];
    std::int64_t& updates = updates_[static_cast<std::size_t>(b)];
    const std::span<float> w = part(*weights_, own.arena);
    optimizer_.apply(own.begin, w, w, part(*gradients_, own.arena), {updates, lr, scale});
    ++updates;
    collective_.allgather(std::as_writable_bytes(part(*weights_, plan_[b])), DataType::f32);
  }

  /// Returns the updates left out.
  int update_all(float lr, float scale) {
    const double norm = std::sqrt(sum_of_all_squares()) * static_cast<double>(scale);
    const OptimizerSpec& spec = optimizer_.spec();
    if (spec.skip_nonfinite && !std::isfinite(norm)) {
      return 1;
    }
    scale *= clip_factor(norm, spec.clip_norm);
    for (BucketId b = 0; b < plan_.count(); ++b) {
      update(b, lr, scale);
    }
    return 0;
  }

  /// Of the summed gradient; the same bits on every rank.
  double sum_of_all_squares() {
    double mine = 0.0;
    for (BucketId b = 0; b < plan_.count(); ++b) {
      mine += sum_of_squares(part(*gradients_, shard_[b].arena));
    }
    const std::span<std::byte> bytes =
        squares_->bytes().first(static_cast<std::size_t>(world_) * sizeof(double));
    std::memcpy(bytes.data() + static_cast<std::size_t>(rank_) * sizeof(double), &mine,
                sizeof(mine));
    collective_.allgather(bytes, DataType::i64);
    double total = 0.0;
    for (int rank = 0; rank < world_; ++rank) {
      double one = 0.0;
      std::memcpy(&one, bytes.data() + static_cast<std::size_t>(rank) * sizeof(one), sizeof(one));
      total += one;
    }
    return total;
  }

  int rank_;
  int world_;
  const BucketPlan& plan_;
  Transport& transport_;
  Collective& collective_;
  Shard shard_;
  std::unique_ptr<CommBuffer> weights_;
  std::unique_ptr<CommBuffer> gradients_;
  std::unique_ptr<CommBuffer> squares_;  ///< a double of each rank
  Optimizer optimizer_;
  std::vector<std::int64_t> updates_;  ///< by bucket
  std::unique_ptr<GradientReducer> reducer_;
  int summed_ = 0;  ///< buckets of this step
};

}  // namespace

std::unique_ptr<BucketWork> make_sharded_work(const WorkPlace& place) {
  return std::make_unique<ShardedWork>(place);
}

}  // namespace paceline
