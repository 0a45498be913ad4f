// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/core/arena_optimizer.h"
#include "common/core/gpu/gpu_optimizer.h"
#include "ring/nccl_monitor.h"
#include "ring/nccl_sum.h"

namespace paceline {

namespace {

constexpr std::chrono::microseconds kNcclHostPoll{50};

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
    try {
      if (monitor_ && !monitor_->idle()) {
        comms_->give_up();
      }
    } catch (const Error&) {
      comms_->give_up();
    }
    monitor_.reset();
    comms_.reset();
    if (gpu_ != nullptr && stream_) {  // nothing may run on memory that is freed
      static_cast<void>(gpu_->api().synchronize(stream_->native()));
      static_cast<void>(gpu_->api().synchronize(gpu_->stream().native()));
    }
  }

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::synchronous, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    const std::size_t arena = plan_.elements() * sizeof(float);
    return {arena, arena, optimizer_->state_bytes(), staging_.size() + norm_bytes(), 0};
  }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    if (init.size() != plan.elements()) {
      throw Error(fmt::format("{} initial weights for a plan of {}", init.size(), plan.elements()));
    }
    gpu_ = &as_gpu(device);
    plan_ = plan;
    spec_ = spec;
    open_nccl(gpu_->module());
    check_own_gpu(*gpu_, context_.workers);
    check_same_plan(plan, context_.workers);
    stream_.emplace(gpu_->module(), true);
    weights_ = device.allocate(plan.elements(), "the weights");
    gradients_ = device.allocate(plan.elements(), "the gradients");
    device.upload(init, weights_->values());
    connect();
    take_memory();
    warm_up();
    return {weights_->values(), gradients_->values()};
  }

  void begin_step(const StepInfo& info) override {
    comms_->check();
    context_.abort.check();
    step_ = info;
    deferred_.clear();
  }

  void parameters_needed(BucketId b, Stream& stream) override {
    comms_->check();
    decide();
    stream.wait(*updated_.at(static_cast<std::size_t>(b)));
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
    StepReport report;
    report.communication_s = monitor_->take_seconds();
    report.skipped = std::exchange(skipped_, 0);
    return report;
  }

  void quiesce() override {
    decide();
    stream_->record(*drained_);
    wait_on_host(*drained_);
  }

  void save(StateWriter& writer) const override {
    if (sum_->sharded()) {
      writer.put("nccl.shard", context_.rank);
      writer.put("nccl.shards", context_.workers.size());
    }
    optimizer_->save(writer);
  }

  void load(StateReader& reader) override {
    if (sum_->sharded()) {
      const std::int64_t rank = reader.get("nccl.shard");
      const std::int64_t world = reader.get("nccl.shards");
      if (rank != context_.rank || world != context_.workers.size()) {
        throw Error(fmt::format("rank {} of {}: the state is the shard of rank {} of {}",
                                context_.rank, context_.workers.size(), rank, world));
      }
    }
    optimizer_->load(reader);
  }

 private:
  [[nodiscard]] std::size_t norm_bytes() const noexcept {
    const GpuTrustRatios* const ratios = optimizer_->ratios();
    return (norm_ ? norm_->bytes() : 0) + (ratios != nullptr ? ratios->bytes() : 0);
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
    sum_ = nccl.sharded        ? make_sharded_sum(*comms_, *stream_)
           : nccl.hierarchical ? make_hierarchical_sum(*comms_, *stream_, context_.topology)
                               : make_flat_sum(*comms_, *stream_);
    monitor_.emplace(*comms_, *gpu_, *stream_, config_.comm.timeout);
  }

  void take_memory() {
    OwnRanges own;
    std::vector<Range> counted;  // of the norm
    for (BucketId b = 0; b < plan_.count(); ++b) {
      std::vector<Range>& ranges = own.emplace_back(sum_->own(plan_[b].size()));
      for (Range& range : ranges) {
        const bool counts = sum_->counts_in_norm(range, plan_[b].size());
        range = {plan_[b].begin + range.begin, plan_[b].begin + range.end};
        if (counts) {
          counted.push_back(range);
        }
      }
      updated_.push_back(std::make_unique<GpuEvent>(gpu_->module()));
    }
    optimizer_.emplace(*gpu_, *stream_, spec_, plan_, std::move(own), shares(counted));
    if (spec_.clip_norm > 0.0F || spec_.skip_nonfinite) {
      norm_.emplace(*gpu_, *stream_, std::move(counted));
      host_squares_ = Buffer(4096);
      pinned_.emplace(gpu_->module(), std::span(host_squares_.data(), host_squares_.size()));
      norm_known_.emplace(gpu_->module());
    }
    if (wire_ != Precision::fp32) {
      staging_ = GpuMemory(*gpu_, largest_of(plan_) * sizeof(std::uint16_t), "16-bit gradients");
    }
    drained_.emplace(gpu_->module());
  }

  [[nodiscard]] TensorShares shares(std::vector<Range> counted) const {
    return sum_->sharded()
               ? TensorShares{std::move(counted), context_.rank, context_.workers.size()}
               : TensorShares{std::move(counted)};
  }

  /// Every bucket once, of zeros: NCCL connects ranks when they first need it, and no later step is
  /// to wait for that.
  void warm_up() {
    for (BucketId b = 0; b < plan_.count(); ++b) {
      sum(b);
      sum_->share(part(*weights_, b));
    }
    if (norm_) {
      sum_norm();
    }
    if (optimizer_->ratios() != nullptr) {
      share_squares();
    }
    quiesce();
    static_cast<void>(monitor_->take_seconds());
  }

  [[nodiscard]] std::span<float> part(DeviceArena& arena, BucketId b) const {
    return arena.values().subspan(plan_[b].begin, plan_[b].size());
  }

  void launch(BucketId b) {
    const auto where = [&](const Error& error) {
      return fmt::format("{} (step {}, bucket {})", error.what(), step_.step, b);
    };
    try {
      sum(b);
      finish(b);
    } catch (const PeerLost& error) {
      throw PeerLost(where(error));
    } catch (const TimeoutError& error) {
      throw TimeoutError(where(error));
    }
  }

  /// Bucket b's gradients become their sum over ranks.
  void sum(BucketId b) {
    const std::span<float> gradient = part(*gradients_, b);
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
      gpu_->each(
          static_cast<std::int64_t>(own.size()),
          kernels::FromWire<Format>{staging + own.begin, gradient.data() + own.begin, factor},
          *stream_, "widening gradients");
    }
  }

  /// Updates bucket b, or all once the step's last bucket is summed.
  void finish(BucketId b) {
    const bool counts = step_.global_samples > 0;
    const float scale = counts ? 1.0F / static_cast<float>(step_.global_samples) : 0.0F;
    if (!spec_.whole_gradient()) {
      counts ? update(b, step_.lr, scale) : stream_->record(*updated_[static_cast<std::size_t>(b)]);
      return;
    }
    summed_ = (summed_ + 1) % plan_.count();
    if (summed_ != 0) {
      return;
    }
    if (!counts) {
      return;
    }
    if (norm_) {
      find_norm(scale);
    }
    if (!spec_.skip_nonfinite) {
      if (norm_) {
        clip();
      }
      update_all(step_.lr, scale);
    }
  }

  void update(BucketId b, float lr, float scale) {
    optimizer_->update(b, weights_->values(), gradients_->values(), lr, scale);
    sum_->share(part(*weights_, b));
    stream_->record(*updated_[static_cast<std::size_t>(b)]);
  }

  void update_all(float lr, float scale) {
    if (GpuTrustRatios* const ratios = optimizer_->ratios(); ratios != nullptr) {
      optimizer_->find_squares(weights_->values(), gradients_->values(), scale);
      share_squares();
      ratios->find(scale);
    }
    for (BucketId b = 0; b < plan_.count(); ++b) {
      update(b, lr, scale);
    }
  }

  /// The ranks' squares of tensors, as they are: whoever adds them does so in double, in one order.
  void share_squares() {
    if (sum_->sharded()) {
      constexpr std::size_t kFloats = sizeof(kernels::TensorSquares) / sizeof(float);
      GpuTrustRatios& ratios = *optimizer_->ratios();
      comms_->all_gather(NcclCommunicators::kWorld, context_.rank, ratios.squares(),
                         ratios.tensors() * kFloats, Precision::fp32, *stream_);
    }
  }

  void find_norm(float scale) {
    norm_->compute(gradients_->values(), scale);
    sum_norm();
    if (spec_.skip_nonfinite) {
      gpu_->check(gpu_->api().copy_to_host(host_squares_.data(), norm_->squares(), sizeof(float),
                                           stream_->native()),
                  "reading the gradient's norm");
      stream_->record(*norm_known_);
      undecided_ = Update{step_.lr, scale};
    }
  }

  /// Of the ranks' shards.
  void sum_norm() {
    if (sum_->sharded()) {
      comms_->all_reduce(NcclCommunicators::kWorld, norm_->squares(), 1, Precision::fp32, *stream_);
    }
  }

  void clip() {
    gpu_->each(static_cast<std::int64_t>(plan_.elements()),
               kernels::ClipByNorm{gradients_->values().data(), norm_->squares(), spec_.clip_norm},
               *stream_, "clipping");
  }

  /// Takes or leaves the last step's update, whose norm the host has to see first.
  void decide() {
    if (!undecided_) {
      return;
    }
    const Update step = *std::exchange(undecided_, std::nullopt);
    wait_on_host(*norm_known_);
    const double norm = std::sqrt(static_cast<double>(host_squares_.as<float>().front()));
    if (!std::isfinite(norm)) {
      ++skipped_;
      return;
    }
    update_all(step.lr, step.scale * clip_factor(norm, spec_.clip_norm));
  }

  /// Ends by exception soon after the monitor finds that a collective will not end.
  void wait_on_host(const GpuEvent& event) {
    while (!event.reached()) {
      comms_->check();
      std::this_thread::sleep_for(kNcclHostPoll);
    }
    comms_->check();
  }

  struct Update {
    float lr;
    float scale;
  };

  WorkerContext context_;
  const Config& config_;
  Precision wire_;
  Gpu* gpu_ = nullptr;
  BucketPlan plan_;
  OptimizerSpec spec_;
  StepInfo step_;
  std::vector<BucketId> deferred_;
  int summed_ = 0;  ///< buckets of this step (whole_gradient)
  int skipped_ = 0;
  std::optional<Update> undecided_;

  std::optional<GpuStream> stream_;
  std::unique_ptr<DeviceArena> weights_;
  std::unique_ptr<DeviceArena> gradients_;
  GpuMemory staging_;
  std::optional<GpuOptimizer> optimizer_;
  std::optional<GpuNorm> norm_;
  Buffer host_squares_;
  std::optional<PinnedRange> pinned_;
  std::optional<GpuEvent> norm_known_;
  std::optional<GpuEvent> drained_;
  std::vector<std::unique_ptr<GpuEvent>> updated_;  ///< by bucket: its weights may be read
  std::optional<NcclCommunicators> comms_;
  std::unique_ptr<NcclSum> sum_;
  std::optional<NcclMonitor> monitor_;
};

}  // namespace

std::unique_ptr<Synchronizer> make_nccl_synchronizer(const WorkerContext& context) {
  return std::make_unique<NcclSynchronizer>(context);
}

}  // namespace paceline
