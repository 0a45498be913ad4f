// SPDX-License-Identifier: Apache-2.0
#include "ring/ring_synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/comm/transport.h"
#include "ring/bucket_work.h"
#include "ring/collective.h"
#include "ring/communication_thread.h"
#include "ring/launch_order.h"
#include "ring/options.h"

namespace paceline {

namespace {

constexpr Traits kTraits{Consistency::synchronous, UpdatePlace::worker, false};

CollectiveOptions flavoured_options(const Config& config, RingFlavour flavour,
                                    const std::atomic<bool>& stop) {
  CollectiveOptions options = collective_options(config, stop);
  if (flavour == RingFlavour::hierarchical) {
    options.algorithm = Algorithm::hierarchical;
  }
  return options;
}

class RingSynchronizer final : public Synchronizer {
 public:
  RingSynchronizer(const WorkerContext& context, RingFlavour flavour)
      : config_(context.config),
        flavour_(flavour),
        overlap_(context.config.sync_options.overlap),
        abort_(context.abort),
        transport_(make_transport(transport_options(context.config.comm), context.workers,
                                  context.topology, context.fabric, context.abort)),
        collective_(*transport_, context.topology,
                    flavoured_options(context.config, flavour, stop_)) {}

  /// Ends the sending before the arenas go.
  ~RingSynchronizer() override {
    thread_.reset();
    transport_->leave();
  }

  [[nodiscard]] Traits traits() const noexcept override { return kTraits; }

  [[nodiscard]] MemoryUse memory() const noexcept override { return work_->memory(); }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    if (init.size() != plan.elements()) {
      throw Error(fmt::format("{} initial weights for a plan of {}", init.size(), plan.elements()));
    }
    plan_ = plan;
    spec_ = spec;
    const WorkPlace place{config_, *transport_, collective_, plan_, spec_, init};
    work_ =
        flavour_ == RingFlavour::sharded ? make_sharded_work(place) : make_replicated_work(place);
    if (overlap_ && config_.sync_options.priority && plan.count() > 2) {
      order_.emplace(*transport_, plan.count(), config_.comm.timeout, stop_);
    }
    thread_.emplace(
        plan.count(), [this](BucketId b, const StepInfo& step) { return work_->run(b, step); },
        order_ ? &*order_ : nullptr, stop_, abort_);
    return work_->view();
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    step_ = info;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    if (spec_.whole_gradient()) {
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

  void save(StateWriter& writer) const override { work_->save(writer); }
  void load(StateReader& reader) override { work_->load(reader); }

 private:
  const Config& config_;
  RingFlavour flavour_;
  bool overlap_;
  AbortToken& abort_;
  std::atomic<bool> stop_{false};
  BucketPlan plan_;
  OptimizerSpec spec_;
  StepInfo step_;
  std::vector<BucketId> deferred_;
  std::unique_ptr<Transport> transport_;
  Collective collective_;
  std::unique_ptr<BucketWork> work_;
  std::optional<LaunchOrder> order_;
  std::optional<CommunicationThread> thread_;  ///< last: ends before what it uses
};

}  // namespace

std::unique_ptr<Synchronizer> make_ring_synchronizer(const WorkerContext& context,
                                                     RingFlavour flavour) {
  return std::make_unique<RingSynchronizer>(context, flavour);
}

}  // namespace paceline
