// SPDX-License-Identifier: Apache-2.0
#include "ring/averaging_synchronizer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace paceline {

namespace {

class AveragingSynchronizer final : public Synchronizer {
 public:
  AveragingSynchronizer(const WorkerContext& context, std::int64_t period,
                        std::unique_ptr<Mixing> mixing)
      : config_(context.config),
        period_(period),
        abort_(context.abort),
        replica_(context, stop_),
        mixing_(std::move(mixing)) {}

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::bounded_stale, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = replica_.memory();
    mixing_->count_memory(use);
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    const ReplicaView view = replica_.bind(plan, spec, init);
    mixing_->bind(replica_, init);
    const SyncConfig& options = config_.sync_options;
    if (options.overlap && options.priority && plan.count() > 2) {
      order_.emplace(replica_.transport(), plan.count(), config_.comm.timeout, stop_);
    }
    thread_.emplace(
        plan.count(),
        [this](BucketId b, const StepInfo& step) {
          return replica_.cost(showing_ ? mixing_->show(b, step) : mixing_->mix(b, step));
        },
        order_ ? &*order_ : nullptr, stop_, abort_);
    return view;
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    replica_.take_back();
    step_ = info;
    open_ = true;
    ++age_;
    samples_ += info.samples;
    all_samples_ += info.global_samples;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override { thread_->wait(b); }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (!replica_.whole_gradient()) {
      replica_.update(b, step_);
    }
    if (!due()) {
      return;
    }
    if (config_.sync_options.overlap && !replica_.whole_gradient()) {
      thread_->submit(b, since_mix());
    } else {
      deferred_.push_back(b);
    }
  }

  StepReport commit() override {
    const bool left_out = open_ && replica_.whole_gradient() && !replica_.update_all(step_);
    submit_deferred();
    StepReport report = thread_->report();
    report.skipped = left_out ? 1 : 0;
    if (open_ && step_.samples > 0 && !left_out) {
      report.staleness.add(age_ - 1);
    }
    if (open_ && due()) {
      age_ = samples_ = all_samples_ = 0;
    }
    open_ = false;
    return report;
  }

  void quiesce() override {
    thread_->wait_all();
    if (replica_.aside()) {
      return;
    }
    replica_.set_aside();
    showing_ = true;
    for (BucketId b = replica_.plan().count() - 1; b >= 0; --b) {
      thread_->submit(b, since_mix());
    }
    thread_->wait_all();
    showing_ = false;
  }

  void save(StateWriter& writer) const override {
    replica_.save(writer);
    mixing_->save(writer);
    writer.put("mix.age", age_);
    writer.put("mix.samples", samples_);
    writer.put("mix.all_samples", all_samples_);
  }
  void load(StateReader& reader) override {
    replica_.load(reader);
    mixing_->load(reader);
    age_ = reader.get("mix.age");
    samples_ = reader.get("mix.samples");
    all_samples_ = reader.get("mix.all_samples");
  }

 private:
  [[nodiscard]] bool due() const noexcept { return age_ >= period_; }

  [[nodiscard]] StepInfo since_mix() const noexcept {
    return {step_.step, step_.lr, samples_, all_samples_};
  }

  void submit_deferred() {
    if (config_.sync_options.priority) {
      std::ranges::reverse(deferred_);
    }
    for (const BucketId b : deferred_) {
      thread_->submit(b, since_mix());
    }
    deferred_.clear();
  }

  const Config& config_;
  std::int64_t period_;
  AbortToken& abort_;
  std::atomic<bool> stop_{false};
  Replica replica_;
  std::unique_ptr<Mixing> mixing_;
  StepInfo step_;
  bool open_ = false;     ///< between begin_step and commit
  std::int64_t age_ = 0;  ///< steps begun since the last mix; this and below as StepInfo counts
  std::int64_t samples_ = 0;
  std::int64_t all_samples_ = 0;
  std::vector<BucketId> deferred_;
  bool showing_ = false;  ///< changes only while nothing is submitted
  std::optional<LaunchOrder> order_;
  std::optional<CommunicationThread> thread_;  ///< last: ends before what it uses
};

}  // namespace

std::unique_ptr<Synchronizer> make_averaging_synchronizer(const WorkerContext& context,
                                                          std::int64_t period,
                                                          std::unique_ptr<Mixing> mixing) {
  return std::make_unique<AveragingSynchronizer>(context, period, std::move(mixing));
}

}  // namespace paceline
