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
#include "common/core/optimizer.h"
#include "common/sync/exact_sum.h"
#include "ring/collective.h"
#include "ring/communication_thread.h"

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
      : rank_(context.rank),
        exact_(context.config.sync_options.exact),
        overlap_(context.config.sync_options.overlap),
        abort_(context.abort),
        transport_(make_transport(transport_options(context.config.comm), context.workers,
                                  context.topology, context.fabric, context.abort)),
        collective_(*transport_, context.topology,
                    collective_options(context.config, flavour, stop_)) {}

  [[nodiscard]] Traits traits() const noexcept override { return kTraits; }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    return {weights_.size(), gradient_span().size_bytes(), optimizer_->state_bytes(),
            staging_ ? staging_->bytes().size() : 0};
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
    optimizer_.emplace(spec, plan.elements());
    updates_.assign(static_cast<std::size_t>(plan.count()), 0);
    prepare();
    thread_.emplace(
        plan.count(), [this](BucketId b, const StepInfo& step) { return guarded(b, step); }, stop_,
        abort_);
    return {weights_.as<float>(), gradient_span()};
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    step_ = info;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override { thread_->wait(b); }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (overlap_) {
      thread_->submit(b, step_);
    } else {
      deferred_.push_back(b);
    }
  }

  StepReport commit() override {
    for (const BucketId b : deferred_) {
      thread_->submit(b, step_);
    }
    deferred_.clear();
    return thread_->report();
  }

  void quiesce() override { thread_->wait_all(); }

  void save(StateWriter& writer) const override {
    optimizer_->save(writer);
    for (std::size_t b = 0; b < updates_.size(); ++b) {
      writer.put(update_name(b), updates_[b]);
    }
  }

  void load(StateReader& reader) override {
    optimizer_->load(reader);
    for (std::size_t b = 0; b < updates_.size(); ++b) {
      updates_[b] = reader.get(update_name(b));
    }
  }

 private:
  static std::string update_name(std::size_t b) { return fmt::format("ring.updates.{}", b); }

  [[nodiscard]] std::span<float> gradient_span() const noexcept {
    const std::span<std::byte> bytes = gradients_->bytes();
    return {reinterpret_cast<float*>(bytes.data()), plan_.elements()};
  }

  /// Schedules and staging memory, so that no step pays for them.
  void prepare() {
    std::size_t largest = 0;
    for (BucketId b = 0; b < plan_.count(); ++b) {
      largest = std::max(largest, plan_[b].size());
      collective_.prepare_allreduce(plan_[b].size(), exact_ ? DataType::i64 : DataType::f32);
    }
    if (exact_) {
      staging_ = transport_->allocate(largest * sizeof(std::int64_t));
    }
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
    BucketCost cost;
    if (exact_) {
      cost.times = allreduce_exact(b, gradient);
    } else {
      cost.times = collective_.allreduce(std::as_writable_bytes(gradient), DataType::f32, true);
    }
    cost.bytes_sent_total = transport_->bytes_sent();
    if (step.global_samples > 0) {
      const std::span<float> weights = weights_.as<float>().subspan(range.begin, range.size());
      std::int64_t& updates = updates_[static_cast<std::size_t>(b)];
      optimizer_->apply(range.begin, weights, weights, gradient,
                        {updates, step.lr, 1.0F / static_cast<float>(step.global_samples)});
      ++updates;
    }
    return cost;
  }

  RunTimes allreduce_exact(BucketId b, std::span<float> gradient) {
    const std::span<std::byte> bytes =
        staging_->bytes().first(gradient.size() * sizeof(std::int64_t));
    const std::span<std::int64_t> sums{reinterpret_cast<std::int64_t*>(bytes.data()),
                                       gradient.size()};
    const int world = transport_->size();
    if (!to_fixed(gradient, sums, world)) {
      throw fixed_range_error(rank_, b, world);
    }
    const RunTimes times = collective_.allreduce(bytes, DataType::i64, true);
    from_fixed(sums, gradient);
    return times;
  }

  int rank_;
  bool exact_;
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
  std::unique_ptr<CommBuffer> staging_;  ///< exact only: one bucket of i64
  std::optional<Optimizer> optimizer_;
  std::vector<std::int64_t> updates_;          ///< per bucket
  std::optional<CommunicationThread> thread_;  ///< last: ends before what it uses
};

}  // namespace

std::unique_ptr<Synchronizer> make_ring_synchronizer(const WorkerContext& context,
                                                     RingFlavour flavour) {
  return std::make_unique<RingSynchronizer>(context, flavour);
}

}  // namespace paceline
