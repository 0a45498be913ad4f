// SPDX-License-Identifier: Apache-2.0
#include "ring/gossip.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "ring/async_gossip.h"
#include "ring/gossip_matching.h"
#include "ring/peer_wait.h"
#include "ring/replica.h"

namespace paceline {

namespace {

class GossipSynchronizer final : public Synchronizer {
 public:
  explicit GossipSynchronizer(const WorkerContext& context)
      : config_(context.config),
        graph_(parse_gossip_graph(config_.gossip.graph)),
        rank_(context.rank),
        abort_(context.abort),
        replica_(context, stop_) {}

  [[nodiscard]] Traits traits() const noexcept override {
    return {Consistency::bounded_stale, UpdatePlace::worker, false};
  }

  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = replica_.memory();
    use.staging += received_->bytes().size();
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& spec,
                   std::span<const float> init) override {
    const ReplicaView view = replica_.bind(plan, spec, init);
    received_ = replica_.transport().allocate(init.size_bytes());
    turn_.assign(static_cast<std::size_t>(plan.count()), Turn::exchange);
    thread_.emplace(
        plan.count(), [this](BucketId b, const StepInfo& step) { return work(b, step); }, nullptr,
        stop_, abort_);
    return view;
  }

  void begin_step(const StepInfo& info) override {
    abort_.check();
    replica_.take_back();
    step_ = info;
    open_ = true;
    needed_.assign(turn_.size(), false);
    next_exchange_ = static_cast<BucketId>(turn_.size()) - 1;
  }

  /// Behind it the bucket's weights of this step's begin may travel. Both partners send buckets in
  /// one order, whichever layers their steps leave out.
  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    wait_for_last_step(b);
    needed_.at(static_cast<std::size_t>(b)) = true;
    while (config_.sync_options.overlap && next_exchange_ >= 0 &&
           needed_[static_cast<std::size_t>(next_exchange_)]) {
      thread_->submit(next_exchange_--, step_);
    }
  }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (config_.sync_options.overlap) {
      thread_->submit(b, step_);
    }
  }

  StepReport commit() override {
    if (open_ && !config_.sync_options.overlap) {
      submit_all();
      submit_all();
    }
    StepReport report = thread_->report();
    if (open_ && step_.samples > 0) {
      report.staleness.add(partner(step_.step) ? 1 : 0);
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
    submit_all();
    thread_->wait_all();
    showing_ = false;
  }

  void save(StateWriter& writer) const override { replica_.save(writer); }
  void load(StateReader& reader) override { replica_.load(reader); }

 private:
  /// What comes next for a bucket; they alternate.
  enum class Turn : std::uint8_t { exchange, update };

  void submit_all() {
    for (auto b = static_cast<BucketId>(turn_.size()) - 1; b >= 0; --b) {
      thread_->submit(b, step_);
    }
  }

  /// An update of the whole gradient ends for all buckets at once; by then none of this step's
  /// exchanges may be waited for.
  void wait_for_last_step(BucketId b) {
    if (!replica_.whole_gradient()) {
      thread_->wait(b);
    } else if (next_exchange_ == static_cast<BucketId>(turn_.size()) - 1) {
      thread_->wait_all();
    }
  }

  [[nodiscard]] std::optional<int> partner(std::int64_t step) const {
    return gossip_partner(graph_, config_.seed, step, rank_, config_.world);
  }

  // --- communication thread ---

  BucketCost work(BucketId b, const StepInfo& step) {
    if (showing_) {
      return replica_.cost(show(b));
    }
    Turn& turn = turn_[static_cast<std::size_t>(b)];
    if (std::exchange(turn, turn == Turn::exchange ? Turn::update : Turn::exchange) ==
        Turn::exchange) {
      const std::optional<int> peer = partner(step.step);
      return replica_.cost(peer ? exchange(b, *peer) : no_exchange());
    }
    const int skipped = update(b, step);
    BucketCost cost = replica_.cost(no_exchange());
    cost.skipped = skipped;
    return cost;
  }

  [[nodiscard]] std::span<float> received(BucketId b) const {
    const Range range = replica_.plan()[b];
    return std::span(reinterpret_cast<float*>(received_->bytes().data()),
                     replica_.plan().elements())
        .subspan(range.begin, range.size());
  }

  /// Empty messages first, so that waiting for the partner can be told from transferring.
  RunTimes exchange(BucketId b, int peer) {
    Transport& transport = replica_.transport();
    RunTimes times;
    times.begin_ns = now_ns();
    const Ticket hello = transport.isend(peer, {});
    const Ticket data = transport.isend(peer, std::as_bytes(replica_.weights(b)));
    const Ticket answer = transport.irecv(peer, {}, Arrival::copy());
    const Ticket weights =
        transport.irecv(peer, std::as_writable_bytes(received(b)), Arrival::copy());
    wait(answer);
    times.peers_ready_ns = now_ns();
    for (const Ticket& ticket : {weights, hello, data}) {
      wait(ticket);
    }
    times.end_ns = now_ns();
    times.last_to_begin = peer;
    return times;
  }

  void wait(const Ticket& ticket) {
    wait_for_peer(replica_.transport(), ticket, config_.comm.timeout, stop_, "exchange weights");
  }

  /// Returns the updates left out.
  int update(BucketId b, const StepInfo& step) {
    if (partner(step.step)) {
      const std::span<float> mine = replica_.weights(b);
      const std::span<const float> theirs = received(b);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        mine[i] = 0.5F * (mine[i] + theirs[i]);
      }
    }
    if (!replica_.whole_gradient()) {
      replica_.update(b, step);
      return 0;
    }
    mixed_ = (mixed_ + 1) % replica_.plan().count();
    return mixed_ != 0 || replica_.update_all(step) ? 0 : 1;
  }

  /// The mean over ranks.
  RunTimes show(BucketId b) {
    const std::span<float> weights = replica_.weights(b);
    const float share = 1.0F / static_cast<float>(config_.world);
    for (float& w : weights) {
      w *= share;
    }
    return replica_.sum(weights);
  }

  const Config& config_;
  GossipGraph graph_;
  int rank_;
  AbortToken& abort_;
  std::atomic<bool> stop_{false};
  Replica replica_;
  std::unique_ptr<CommBuffer> received_;  ///< the partner's weights
  StepInfo step_;
  bool open_ = false;  ///< between begin_step and commit
  std::vector<bool> needed_;
  BucketId next_exchange_ = -1;
  bool showing_ = false;                       ///< changes only while nothing is submitted
  std::vector<Turn> turn_;                     ///< communication thread's, as is mixed_
  int mixed_ = 0;                              ///< buckets of this step (whole_gradient)
  std::optional<CommunicationThread> thread_;  ///< last: ends before what it uses
};

void validate_gossip(const Config& config) {
  if (config.world < 2) {
    throw ConfigError(fmt::format(
        "world = {}: gossip with one rank has no partner to average with; allowed: 2 and more",
        config.world));
  }
  check_replica_techniques(config);
}

}  // namespace

Backend gossip_backend() {
  Backend backend;
  backend.name = "gossip";
  backend.summary = "weights averaged with one partner at a time, beside the gradient (AD-PSGD)";
  backend.traits = {Consistency::bounded_stale, UpdatePlace::worker, false};
  backend.validate = validate_gossip;
  backend.make = [](const WorkerContext& context) -> std::unique_ptr<Synchronizer> {
    if (context.config.gossip.mode == "asynchronous") {
      return make_async_gossip_synchronizer(context);
    }
    return std::make_unique<GossipSynchronizer>(context);
  };
  return backend;
}

}  // namespace paceline
