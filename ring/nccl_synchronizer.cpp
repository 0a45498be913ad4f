// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/core/statistics_reducer.h"
#include "ring/nccl_backend.h"
#include "ring/nccl_monitor.h"
#include "ring/nccl_statistics.h"
#include "ring/nccl_sum.h"
#include "ring/shard_state.h"
#include "ring/wire_overflow.h"

namespace paceline {

namespace {

/// Collective. Counts that differ between ranks would let NCCL hang or write past the arenas.
void check_same_plan(const BucketPlan& plan, Communicator& workers) {
  std::string text;
  for (BucketId b = 0; b < plan.count(); ++b) {
    text += fmt::format("{},", plan[b].size());
  }
  const std::vector<std::string> all =
      workers.allgather(fmt::format("{} buckets of {} elements ({})", plan.count(), plan.elements(),
                                    sha256_hex(text).substr(0, 8)));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw Error(fmt::format("rank {} has another bucket plan than rank 0: {}, not {}", rank,
                              all[rank], all[0]));
    }
  }
}

std::size_t largest_of(const BucketPlan& plan) {
  std::size_t largest = 0;
  for (BucketId b = 0; b < plan.count(); ++b) {
    largest = std::max(largest, plan[b].size());
  }
  return largest;
}

class NcclSynchronizer final : public Synchronizer {
 public:
  explicit NcclSynchronizer(const WorkerContext& context)
      : context_(context), config_(context.config), wire_(wire_of(context.config)) {}

  ~NcclSynchronizer() override {
    if (statistics_) {
      context_.statistics->use(nullptr);
    }
    try {
      if (monitor_ && !monitor_->idle()) {
        comms_->give_up();
      }
    } catch (const Error&) {
      comms_->give_up();
    }
    statistics_.reset();
    monitor_.reset();
    comms_.reset();
    if (gpu_ != nullptr && stream_) {  // nothing may run on memory that is freed
      stream_->drain();
      gpu_->stream().drain();
    }
  }

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::synchronous, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = updates_->memory();
    use.staging += staging_.size();
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    gpu_ = &as_gpu(device);
    plan_ = plan;
    spec_ = spec;
    const NcclUser user = nccl_user(config_);
    open_nccl_for(user, gpu_->module());
    check_own_gpu(user, *gpu_, context_.workers);
    check_same_plan(plan, context_.workers);
    stream_.emplace(*gpu_, "of NCCL", true);
    arenas_.emplace(device, plan, init);
    connect();
    take_memory();
    warm_up();
    if (context_.statistics != nullptr) {
      statistics_.emplace(*gpu_, *stream_, *comms_, *monitor_, step_);
      context_.statistics->use(&*statistics_);
    }
    return arenas_->view();
  }

  void begin_step(const StepInfo& info) override {
    comms_->check();
    context_.abort.check();
    if (overflow_) {
      overflow_->check();
    }
    step_ = info;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& stream) override {
    comms_->check();
    stream.wait(updates_->updated(b));
  }

  void gradient_ready(BucketId b, const Event& done) override {
    comms_->check();
    stream_->wait(done);
    if (config_.sync_options.overlap) {
      launch(b);
    } else {
      deferred_.push_back(b);
    }
  }

  StepReport commit() override {
    if (config_.sync_options.priority) {
      std::ranges::reverse(deferred_);
    }
    for (const BucketId b : deferred_) {
      launch(b);
    }
    deferred_.clear();
    comms_->check();
    if (overflow_) {
      overflow_->check();
      overflow_->send();
    }
    StepReport report;
    report.communication_s = monitor_->take_seconds();
    report.skipped = updates_->take_skipped();
    return report;
  }

  void quiesce() override {
    updates_->decide();
    drain();
    if (overflow_) {
      overflow_->check();
      overflow_->send();  // of steps after those that the last copy was of
      drain();
      overflow_->check();
    }
  }

  void save(StateWriter& writer) const override {
    if (sharded()) {
      save_shard(shard(), writer);
    }
    updates_->optimizer().save(writer);
  }

  void load(StateReader& reader) override {
    if (sharded()) {
      check_shard(shard(), reader);
    }
    updates_->optimizer().load(reader);
  }

 private:
  [[nodiscard]] bool sharded() const { return config_.sync == "sharded"; }

  [[nodiscard]] ShardState shard() const {
    return {context_.rank, context_.workers.size(), ShardCut::nccl};
  }

  static Precision wire_of(const Config& config) {
    const std::string& wire = config.sync_options.wire;
    return wire == "fp16" ? Precision::fp16 : wire == "bf16" ? Precision::bf16 : Precision::fp32;
  }

  void connect() {
    const NcclConfig& nccl = config_.nccl;
    comms_.emplace(*gpu_, context_.workers,
                   NcclOptions{{nccl.min_ctas, nccl.max_ctas}, config_.comm.timeout},
                   context_.abort);
    const bool by_nodes = config_.sync == "hierarchical";
    sum_ = sharded()  ? make_sharded_sum(*comms_, *stream_)
           : by_nodes ? make_hierarchical_sum(*comms_, *stream_, context_.topology)
                      : make_flat_sum(*comms_, *stream_);
    monitor_.emplace(*comms_, *gpu_, *stream_, config_.comm.timeout);
  }

  void take_memory() {
    updates_.emplace(*gpu_, *stream_, *sum_, plan_, spec_, arenas_->view());
    if (wire_ != Precision::fp32) {
      staging_ = GpuMemory(*gpu_, largest_of(plan_) * sizeof(std::uint16_t), "16-bit gradients");
    }
    if (wire_ == Precision::fp16 && !spec_.skip_nonfinite) {
      overflow_.emplace(*gpu_, *stream_, context_.rank, plan_.count());
    }
    drained_.emplace(*gpu_);
  }

  /// Every bucket once, of zeros: NCCL connects ranks when they first need it, and no later step is
  /// to wait for that.
  void warm_up() {
    for (BucketId b = 0; b < plan_.count(); ++b) {
      sum(b);
      sum_->share(part(arenas_->view().weights, b));
    }
    updates_->warm_up();
    quiesce();
    static_cast<void>(monitor_->take_seconds());
  }

  [[nodiscard]] std::span<float> part(std::span<float> arena, BucketId b) const {
    return arena.subspan(plan_[b].begin, plan_[b].size());
  }

  void launch(BucketId b) {
    const auto where = [&](const Error& error) {
      return fmt::format("{} (step {}, bucket {})", error.what(), step_.step, b);
    };
    try {
      sum(b);
      updates_->finish(b, step_);
    } catch (const PeerLost& error) {
      throw PeerLost(where(error));
    } catch (const TimeoutError& error) {
      throw TimeoutError(where(error));
    }
  }

  /// Bucket b's gradients become their sum over ranks.
  void sum(BucketId b) {
    const std::span<float> gradient = part(arenas_->view().gradients, b);
    if (gradient.empty()) {
      return;
    }
    monitor_->begin(b, step_.step);
    if (wire_ == Precision::fp32) {
      sum_->sum(gradient.data(), gradient.size(), wire_);
    } else if (wire_ == Precision::fp16) {
      // Averages, as the sum of what just fits would not.
      sum_as<Half>(b, gradient, static_cast<float>(context_.workers.size()));
    } else {
      sum_as<Bfloat>(b, gradient, 1.0F);
    }
    monitor_->end();
  }

  template <typename Format>
  void sum_as(BucketId b, std::span<float> gradient, float factor) {
    auto* const staging = staging_.as<Format>();
    gpu_->each(static_cast<std::int64_t>(gradient.size()),
               kernels::ToWire<Format>{gradient.data(), staging, 1.0F / factor}, *stream_,
               "rounding gradients");
    sum_->sum(staging, gradient.size(), wire_);
    for (const Range& own : sum_->own(plan_[b].size())) {
      gpu_->each(static_cast<std::int64_t>(own.size()),
                 kernels::FromWire<Format>{staging + own.begin, gradient.data() + own.begin, factor,
                                           overflow_ ? overflow_->mark(b) : nullptr},
                 *stream_, "widening gradients");
    }
  }

  void drain() {
    stream_->record(*drained_);
    sum_->wait(*drained_);
  }

  WorkerContext context_;
  const Config& config_;
  Precision wire_;
  Gpu* gpu_ = nullptr;
  BucketPlan plan_;
  OptimizerSpec spec_;
  StepInfo step_;
  std::vector<BucketId> deferred_;

  std::optional<GpuStream> stream_;
  std::optional<GpuArenas> arenas_;
  GpuMemory staging_;
  std::optional<WireOverflow> overflow_;
  std::optional<GpuUpdates> updates_;
  std::optional<GpuEvent> drained_;
  std::optional<NcclCommunicators> comms_;
  std::unique_ptr<NcclSum> sum_;
  std::optional<NcclMonitor> monitor_;
  std::optional<NcclStatistics> statistics_;
};

}  // namespace

std::unique_ptr<Synchronizer> make_nccl_synchronizer(const WorkerContext& context) {
  return std::make_unique<NcclSynchronizer>(context);
}

}  // namespace paceline
