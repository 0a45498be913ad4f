// SPDX-License-Identifier: Apache-2.0
#include "ring/async_gossip.h"

#include <atomic>
#include <optional>

#include "ring/gossip_thread.h"

namespace paceline {

namespace {

class AsyncGossipSynchronizer final : public Synchronizer {
 public:
  explicit AsyncGossipSynchronizer(const WorkerContext& context)
      : config_(context.config),
        abort_(context.abort),
        replica_(context, stop_),
        weights_(replica_) {}

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::asynchronous, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = replica_.memory();
    use.staging += thread_->staging_bytes();
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    const ReplicaView view = replica_.bind_apart(plan, spec, init);
    weights_.bind();
    thread_.emplace(GossipThread::Place{config_, replica_, weights_, stop_, abort_});
    return view;
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    step_ = info;
    open_ = true;
    shown_ = false;
    thread_->begin_step();
    if (thread_->calls() && config_.sync_options.overlap) {
      thread_->want_averaging();
    }
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override { weights_.snapshot(b); }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (!replica_.whole_gradient()) {
      weights_.update(b, step_);
    }
  }

  StepReport commit() override {
    const bool left_out = open_ && replica_.whole_gradient() && !weights_.update_all(step_);
    if (open_ && thread_->calls() && !config_.sync_options.overlap) {
      thread_->want_averaging();
      thread_->wait_averaged();
    }
    StepReport report = thread_->report();
    const std::int64_t staleness = weights_.take_staleness();
    report.skipped = left_out ? 1 : 0;
    if (open_ && step_.samples > 0 && !left_out) {
      report.staleness.add(staleness);
    }
    open_ = false;
    return report;
  }

  void quiesce() override {
    if (!shown_) {
      thread_->show();
      shown_ = true;
    }
  }

  void save(StateWriter& writer) const override {
    replica_.save(writer);
    writer.put("gossip.averagings", thread_->begun());
  }
  void load(StateReader& reader) override {
    replica_.load(reader);
    thread_->set_begun(reader.get("gossip.averagings"));
  }

 private:
  const Config& config_;
  AbortToken& abort_;
  std::atomic<bool> stop_{false};
  Replica replica_;
  GossipReplica weights_;
  StepInfo step_;
  bool open_ = false;                           ///< between begin_step and commit
  bool shown_ = false;                          ///< no step since quiesce()
  mutable std::optional<GossipThread> thread_;  ///< last: ends before what it uses
};

}  // namespace

std::unique_ptr<Synchronizer> make_async_gossip_synchronizer(const WorkerContext& context) {
  return std::make_unique<AsyncGossipSynchronizer>(context);
}

}  // namespace paceline
