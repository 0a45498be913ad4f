// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/core/arena_optimizer.h"
#include "common/core/kernels_tensors.h"
#include "common/sync/reduction_order.h"
#include "ring/bucket_work.h"
#include "ring/gradient_reducer.h"
#include "ring/shard_state.h"

namespace paceline {

namespace {

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

bool scales_tensors(const OptimizerSpec& spec) noexcept {
  return spec.kind == OptimizerKind::lars || spec.kind == OptimizerKind::lamb;
}

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
        squares_(scales_tensors(place.spec) ? plan_.tensors().size() : 0),
        ranks_values_(place.transport.allocate(static_cast<std::size_t>(world_) * sizeof(double) *
                                               std::max<std::size_t>(squares_.size(), 1))),
        optimizer_(place.spec, shard_.elements()),
        updates_(static_cast<std::size_t>(place.plan.count())) {
    if (place.spec.kind == OptimizerKind::onebit_adam) {
      throw Error("1-bit Adam has no sharded state");
    }
    if (scales_tensors(place.spec) && squares_.empty() && plan_.elements() > 0) {
      throw Error("optimizer: LARS and LAMB need to know the tensors of the arena");
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
            reducer_->staging_bytes() + ranks_values_->bytes().size(), reducer_->residual_bytes()};
  }

  void save(StateWriter& writer) const override {
    save_shard({rank_, world_, ShardCut::host}, writer);
    optimizer_.save(writer);
    for (std::size_t b = 0; b < updates_.size(); ++b) {
      writer.put(fmt::format("updates.{}", b), updates_[b]);
    }
  }

  void load(StateReader& reader) override {
    check_shard({rank_, world_, ShardCut::host}, reader);
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

  [[nodiscard]] std::int64_t& updates(BucketId b) { return updates_[static_cast<std::size_t>(b)]; }

  /// Steps this rank's chunk of bucket b and takes the others' over.
  void update(BucketId b, float lr, float scale) {
    const Shard::Part& own = shard_[b];
    const std::span<float> w = part(*weights_, own.arena);
    optimizer_.apply(own.begin, w, w, part(*gradients_, own.arena), {updates(b), lr, scale});
    exchange(b);
  }

  void exchange(BucketId b) {
    ++updates(b);
    collective_.allgather(std::as_writable_bytes(part(*weights_, plan_[b])), DataType::f32);
  }

  /// Returns the updates left out.
  int update_all(float lr, float scale) {
    const OptimizerSpec& spec = optimizer_.spec();
    if (spec.clip_norm > 0.0F || spec.skip_nonfinite) {
      const double norm = std::sqrt(sum_of_all_squares()) * static_cast<double>(scale);
      if (spec.skip_nonfinite && !std::isfinite(norm)) {
        return 1;
      }
      scale *= clip_factor(norm, spec.clip_norm);
    }
    const bool layerwise = scales_tensors(spec);
    if (layerwise) {
      spec.kind == OptimizerKind::lars ? apply_lars(lr, scale) : apply_lamb(lr, scale);
    }
    for (BucketId b = 0; b < plan_.count(); ++b) {
      layerwise ? exchange(b) : update(b, lr, scale);
    }
    return 0;
  }

  /// What of a tensor this rank owns, for all tensors in order: visit(tensor's number, tensor, the
  /// part's begin in the shard, its range in the arena, updates of its bucket so far).
  template <typename Visit>
  void for_tensors(Visit visit) {
    std::size_t t = 0;
    for (BucketId b = 0; b < plan_.count(); ++b) {
      const Shard::Part& own = shard_[b];
      for (const TensorRange& tensor : plan_.tensors_of(b)) {
        const std::size_t begin = std::max(tensor.range.begin, own.arena.begin);
        const std::size_t end = std::max(begin, std::min(tensor.range.end, own.arena.end));
        if (begin < end) {
          visit(t, tensor, own.begin + begin - own.arena.begin, Range{begin, end}, updates(b));
        }
        ++t;
      }
    }
  }

  /// Before this rank moves its part of it.
  [[nodiscard]] double weight_norm(const TensorRange& tensor) const noexcept {
    return std::sqrt(sum_of_squares(part(*weights_, tensor.range)));
  }

  /// As ArenaOptimizer::apply_lars, on this rank's parts.
  void apply_lars(float lr, float scale) {
    std::ranges::fill(squares_, 0.0);
    for_tensors([&](std::size_t t, const TensorRange&, std::size_t, Range range, std::int64_t) {
      squares_[t] = sum_of_squares(part(*gradients_, range));
    });
    sum_over_ranks(squares_);
    for_tensors([&](std::size_t t, const TensorRange& tensor, std::size_t begin, Range range,
                    std::int64_t updates) {
      UpdateInfo info{updates, lr, scale};
      info.decay_scale = 0.0F;
      if (tensor.dimensions > 1) {
        info.decay_scale = lars_ratio(optimizer_.spec(), weight_norm(tensor),
                                      std::sqrt(squares_[t]) * static_cast<double>(scale));
        info.gradient_scale *= info.decay_scale;
      }
      const std::span<float> w = part(*weights_, range);
      optimizer_.apply(begin, w, w, part(*gradients_, range), info);
    });
  }

  /// As ArenaOptimizer::apply_lamb, likewise; the gradients become directions.
  void apply_lamb(float lr, float scale) {
    std::ranges::fill(squares_, 0.0);
    for_tensors([&](std::size_t t, const TensorRange& tensor, std::size_t begin, Range range,
                    std::int64_t updates) {
      UpdateInfo info{updates, lr, scale};
      info.decay_scale = tensor.dimensions > 1 ? 1.0F : 0.0F;
      const std::span<float> u = part(*gradients_, range);
      optimizer_.lamb_direction(begin, part(*weights_, range), u, info);
      squares_[t] = sum_of_squares(u);
    });
    sum_over_ranks(squares_);
    for_tensors(
        [&](std::size_t t, const TensorRange& tensor, std::size_t, Range range, std::int64_t) {
          const float ratio = tensor.dimensions > 1
                                  ? kernels::lamb_ratio(weight_norm(tensor), std::sqrt(squares_[t]))
                                  : 1.0F;
          const float rate = lr * ratio;
          const std::span<const float> u = part(*gradients_, range);
          const std::span<float> w = part(*weights_, range);
          for (std::size_t i = 0; i < w.size(); ++i) {
            w[i] -= rate * u[i];
          }
        });
  }

  /// Of the summed gradient; the same bits on every rank.
  double sum_of_all_squares() {
    double mine = 0.0;
    for (BucketId b = 0; b < plan_.count(); ++b) {
      mine += sum_of_squares(part(*gradients_, shard_[b].arena));
    }
    sum_over_ranks({&mine, 1});
    return mine;
  }

  /// Added in rank order.
  void sum_over_ranks(std::span<double> values) {
    const std::size_t block = values.size_bytes();
    const std::span<std::byte> all =
        ranks_values_->bytes().first(block * static_cast<std::size_t>(world_));
    const auto block_of = [&](int rank) {
      return all.data() + static_cast<std::size_t>(rank) * block;
    };
    std::memcpy(block_of(rank_), values.data(), block);
    collective_.allgather(all, DataType::i64);
    std::ranges::fill(values, 0.0);
    for (int rank = 0; rank < world_; ++rank) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        double one = 0.0;
        std::memcpy(&one, block_of(rank) + i * sizeof(one), sizeof(one));
        values[i] += one;
      }
    }
  }

  int rank_;
  int world_;
  const BucketPlan& plan_;
  Transport& transport_;
  Collective& collective_;
  Shard shard_;
  std::unique_ptr<CommBuffer> weights_;
  std::unique_ptr<CommBuffer> gradients_;
  std::vector<double> squares_;               ///< by tensor (LARS, LAMB)
  std::unique_ptr<CommBuffer> ranks_values_;  ///< as many doubles of each rank, at least one
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
