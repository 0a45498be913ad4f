// SPDX-License-Identifier: Apache-2.0
#include "ring/ring_synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/comm/transport.h"
#include "common/core/arena_optimizer.h"
#include "ring/collective.h"
#include "ring/communication_thread.h"
#include "ring/gradient_reducer.h"
#include "ring/launch_order.h"
#include "ring/one_bit_adam.h"

namespace paceline {

namespace {

constexpr Traits kTraits{Consistency::synchronous, UpdatePlace::worker, false};

CollectiveOptions collective_options(const Config& config, RingFlavour flavour,
                                     const std::atomic<bool>& stop) {
  CollectiveOptions options;
  if (flavour == RingFlavour::hierarchical) {
    options.algorithm = Algorithm::hierarchical;
  } else if (config.ring.algorithm != "auto") {
    options.algorithm = parse_algorithm(config.ring.algorithm);
  }
  options.chunk = config.ring.chunk;
  options.any_order = config.sync_options.exact;
  options.timeout = config.comm.timeout;
  options.stop = &stop;
  return options;
}

TransportOptions transport_options(const CommConfig& config) {
  TransportOptions options;
  options.kind = config.transport;
  options.host = config.host;
  options.tcp_connections = config.tcp_connections;
  options.timeout = config.timeout;
  return options;
}

class RingSynchronizer final : public Synchronizer {
 public:
  RingSynchronizer(const WorkerContext& context, RingFlavour flavour)
      : config_(context.config),
        overlap_(context.config.sync_options.overlap),
        abort_(context.abort),
        transport_(make_transport(transport_options(context.config.comm), context.workers,
                                  context.topology, context.fabric, context.abort)),
        collective_(*transport_, context.topology,
                    collective_options(context.config, flavour, stop_)) {}

  [[nodiscard]] Traits traits() const noexcept override { return kTraits; }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use{weights_.size(), gradient_span().size_bytes(), optimizer_->state_bytes(),
                  reducer_->staging_bytes(), reducer_->residual_bytes()};
    if (one_bit_) {
      use.staging += one_bit_->staging_bytes();
      use.residual += one_bit_->residual_bytes();
    }
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    if (init.size() != plan.elements()) {
      throw Error(fmt::format("{} initial weights for a plan of {}", init.size(), plan.elements()));
    }
    plan_ = plan;
    weights_ = Buffer(init.size_bytes());
    std::copy(init.begin(), init.end(), weights_.as<float>().begin());
    gradients_ = transport_->allocate(init.size_bytes());
    optimizer_.emplace(spec, plan_);
    const ReducerPlace place{config_, *transport_, collective_, plan_, spec.skip_nonfinite};
    reducer_ = make_gradient_reducer(place);
    if (spec.kind == OptimizerKind::onebit_adam) {
      one_bit_.emplace(place, *optimizer_);
    }
    if (overlap_ && config_.sync_options.priority && plan.count() > 2) {
      order_.emplace(*transport_, plan.count(), config_.comm.timeout, stop_);
    }
    thread_.emplace(
        plan.count(), [this](BucketId b, const StepInfo& step) { return guarded(b, step); },
        order_ ? &*order_ : nullptr, stop_, abort_);
    return {weights_.as<float>(), gradient_span()};
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    step_ = info;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    if (optimizer_->spec().whole_gradient()) {
      thread_->wait_all();
    } else {
      thread_->wait(b);
    }
  }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (overlap_) {
      thread_->submit(b, step_);
    } else {
      deferred_.push_back(b);
    }
  }

  StepReport commit() override {
    if (config_.sync_options.priority) {
      std::ranges::reverse(deferred_);
    }
    for (const BucketId b : deferred_) {
      thread_->submit(b, step_);
    }
    deferred_.clear();
    return thread_->report();
  }

  void quiesce() override { thread_->wait_all(); }

  void save(StateWriter& writer) const override { optimizer_->save(writer); }
  void load(StateReader& reader) override { optimizer_->load(reader); }

 private:
  [[nodiscard]] std::span<float> gradient_span() const noexcept {
    const std::span<std::byte> bytes = gradients_->bytes();
    return {reinterpret_cast<float*>(bytes.data()), plan_.elements()};
  }

  // --- communication thread ---

  BucketCost guarded(BucketId b, const StepInfo& step) {
    const auto where = [&](const Error& error) {
      return fmt::format("{} (step {}, bucket {})", error.what(), step.step, b);
    };
    try {
      return synchronise(b, step);
    } catch (const PeerLost& error) {
      throw PeerLost(where(error));
    } catch (const TimeoutError& error) {
      throw TimeoutError(where(error));
    }
  }

  BucketCost synchronise(BucketId b, const StepInfo& step) {
    const Range range = plan_[b];
    const std::span<float> gradient = gradient_span().subspan(range.begin, range.size());
    const std::span<float> weights = weights_.as<float>().subspan(range.begin, range.size());
    BucketCost cost;
    if (one_bit_ && one_bit_->frozen(b)) {
      cost.times = one_bit_->step(b, weights, gradient, step);
    } else {
      cost.times = reducer_->reduce(b, gradient, step);
      cost.skipped = update(b, step);
    }
    cost.bytes_sent_total = transport_->bytes_sent();
    return cost;
  }

  /// Of bucket b, or of all once the step's last bucket is summed; returns the updates left out.
  int update(BucketId b, const StepInfo& step) {
    const float scale = 1.0F / static_cast<float>(std::max<std::int64_t>(step.global_samples, 1));
    if (!optimizer_->spec().whole_gradient()) {
      if (step.global_samples > 0) {
        optimizer_->apply_bucket(b, weights_.as<float>(), gradient_span(), step.lr, scale);
      }
      return 0;
    }
    summed_ = (summed_ + 1) % plan_.count();
    if (summed_ != 0 || step.global_samples == 0) {
      return 0;
    }
    return optimizer_->apply(weights_.as<float>(), gradient_span(), step.lr, scale) ? 0 : 1;
  }

  const Config& config_;
  bool overlap_;
  AbortToken& abort_;
  std::atomic<bool> stop_{false};
  BucketPlan plan_;
  StepInfo step_;
  std::vector<BucketId> deferred_;
  std::unique_ptr<Transport> transport_;
  Collective collective_;
  Buffer weights_;
  std::unique_ptr<CommBuffer> gradients_;
  std::optional<ArenaOptimizer> optimizer_;
  std::unique_ptr<GradientReducer> reducer_;
  std::optional<OneBitAdam> one_bit_;
  std::optional<LaunchOrder> order_;
  int summed_ = 0;                             ///< buckets of this step (whole_gradient)
  std::optional<CommunicationThread> thread_;  ///< last: ends before what it uses
};

}  // namespace

std::unique_ptr<Synchronizer> make_ring_synchronizer(const WorkerContext& context,
                                                     RingFlavour flavour) {
  return std::make_unique<RingSynchronizer>(context, flavour);
}

}  // namespace paceline
