// SPDX-License-Identifier: Apache-2.0
#include "ps/ps_synchronizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "common/core/arena_optimizer.h"
#include "common/core/precision.h"
#include "ps/client.h"
#include "ps/server_job.h"
#include "ps/state_blob.h"

namespace paceline {

namespace {

/// A server on a thread of a rank. Its failure ends the rank through the abort token.
class ColocatedServer {
 public:
  ColocatedServer(std::unique_ptr<ServerMailbox> mailbox, const ServerSetup& setup,
                  AbortToken& abort)
      : mailbox_(std::move(mailbox)), server_(*mailbox_, setup, abort), thread_([this, &abort] {
          try {
            server_.run();
          } catch (...) {
            abort.request(std::current_exception());
          }
        }) {}
  ~ColocatedServer() {
    server_.stop();
    thread_.join();
  }
  ColocatedServer(const ColocatedServer&) = delete;
  ColocatedServer& operator=(const ColocatedServer&) = delete;
  [[nodiscard]] MemoryUse memory() const noexcept { return server_.memory(); }

 private:
  std::unique_ptr<ServerMailbox> mailbox_;
  Server server_;
  std::thread thread_;
};

class PsSynchronizer final : public Synchronizer {
 public:
  PsSynchronizer(const WorkerContext& context, const PsRule& rule, CudaSource cuda)
      : context_(context), rule_(rule) {
    const Config& config = context.config;
    keep_message_memory();
    const bool serves = colocated(config) && context.rank < config.ps.servers;
    std::unique_ptr<ServerMailbox> mailbox;
    if (serves) {
      mailbox = std::make_unique<ServerMailbox>(mailbox_options(config));
    }
    const Rendezvous met = meet(context.everyone, config, mailbox.get());
    if (serves) {
      server_ = std::make_unique<ColocatedServer>(
          std::move(mailbox),
          make_server_setup(config, rule, context.topology, context.fabric, context.rank, met, cuda,
                            context.abort),
          context.abort);
    }
    setup_.rank = context.rank;
    setup_.nonce = met.nonce;
    setup_.mailbox = mailbox_options(config);
    setup_.fabric = context.fabric;
    setup_.node = context.topology.node_of_rank(context.rank);
    setup_.abort = &context.abort;
    for (int server = 0; server < config.ps.servers; ++server) {
      setup_.endpoints.push_back(choose_endpoint(met.servers[static_cast<std::size_t>(server)]));
      setup_.server_nodes.push_back(server_node(config, context.topology, server));
    }
  }

  [[nodiscard]] Traits traits() const noexcept override {
    return {rule_.kind == Consistency::bounded_stale && rule_.bound == 0 ? Consistency::synchronous
                                                                         : rule_.kind,
            UpdatePlace::server, false};
  }

  /// With that of the server which this rank runs, if it does; the optimizer's state is there.
  [[nodiscard]] MemoryUse memory() const noexcept override {
    MemoryUse use = server_ ? server_->memory() : MemoryUse{};
    use.weights += weights_.size();
    use.gradients += gradients_.size();
    use.staging += client_ ? client_->staging_bytes() : 0;
    use.residual = client_ ? client_->residual_bytes() : 0;
    return use;
  }

  ReplicaView bind(const BucketPlan& plan, Device& device, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    if (device.kind() != DeviceKind::cpu) {
      throw ConfigError("device: the parameter server keeps its replicas in host memory (cpu)");
    }
    optimizer_ = optimizer;
    plan_ = plan;
    weights_ = Buffer(plan.elements() * sizeof(float));
    gradients_ = Buffer(plan.elements() * sizeof(float));
    std::copy(init.begin(), init.end(), weights_.as<float>().begin());
    JobDescription job;
    job.world = context_.config.world;
    job.servers = context_.config.ps.servers;
    job.rule = rule_;
    job.exact = context_.config.sync_options.exact;
    job.optimizer = optimizer;
    job.format = job_format(context_.config);
    for (BucketId b = 0; b < plan.count(); ++b) {
      job.buckets.push_back(plan[b].size());
    }
    if (optimizer.kind == OptimizerKind::lars) {
      for (const TensorRange& tensor : plan.tensors()) {
        if (tensor.range.size() > 0) {
          job.tensors.push_back(tensor);
        }
      }
    }
    client_ = std::make_unique<PsClient>(setup_, job, weights_.as<float>(), gradients_.as<float>());
    client_->connect();
    if (context_.rank == 0) {
      client_->init_weights();
    }
    pull_all();
    static_cast<void>(client_->take_report());
    return {weights_.as<float>(), gradients_.as<float>()};
  }

  void begin_step(const StepInfo& info) override {
    step_ = info;
    if (std::exchange(pulled_, false)) {
      as_on_the_wire(weights_.as<float>());
    }
  }

  void parameters_needed(BucketId b, Stream& /*stream*/) override {
    const std::int64_t begin = now_ns();
    const std::int64_t held = collect(b);
    waited_ns_ += std::min(held, now_ns() - begin);
  }

  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (context_.config.sync_options.overlap && !looks_first()) {
      client_->push(b, step_);
    } else {
      ready_.push_back(b);
    }
  }

  StepReport commit() override {
    const int skipped = looks_first() && !prepare_whole_gradient() ? 1 : 0;
    for (const BucketId b : ready_) {
      client_->push(b, step_);
    }
    ready_.clear();
    count_update();
    const ClientReport done = client_->take_report();
    StepReport report;
    report.wait_s = seconds(std::exchange(waited_ns_, 0));
    report.communication_s = seconds(done.busy_ns);
    report.bytes_sent = done.bytes_sent;
    report.staleness = std::exchange(staleness_, {});
    report.skipped = done.skipped + skipped;
    report.transfers = std::exchange(transfers_, {});
    return report;
  }

  void quiesce() override {
    const std::int64_t begin = now_ns();
    std::int64_t held = 0;
    for (BucketId b = 0; b < plan_.count(); ++b) {
      held = std::max(held, collect(b));
    }
    count_update();
    waited_ns_ += std::min(held, now_ns() - begin);
    client_->drain();
    if (traits().consistency != Consistency::synchronous ||
        context_.config.sync_options.wire != "fp32") {
      pull_all();
    }
    // Nobody pushes again before all have the same weights.
    context_.workers.barrier();
  }

  /// Rank 0 speaks for the servers: everything they own, key by key, is in its part.
  void save(StateWriter& writer) const override {
    if (context_.rank != 0) {
      return;
    }
    for (std::size_t k = 0; k < client_->partition().count(); ++k) {
      const std::vector<std::byte> state = client_->get_state(k);
      const StateBlobReader blob(state);
      for (const auto& [name, array] : blob.entries()) {
        const std::string path = fmt::format("ps.key{}.{}", k, name);
        if (array.is_integer) {
          writer.put(path, blob.integer(name));
        } else {
          writer.put(path, blob.floats(name));
        }
      }
    }
  }

  /// Collective. Restores the servers' weights too, and gives them to every rank.
  void load(StateReader& reader) override {
    if (context_.rank == 0) {
      for (std::size_t k = 0; k < client_->partition().count(); ++k) {
        const std::vector<std::byte> now = client_->get_state(k);
        client_->put_state(k, read_like(StateBlobReader(now), fmt::format("ps.key{}.", k), reader));
      }
    }
    context_.workers.barrier();
    pull_all();
    context_.workers.barrier();
  }

 private:
  /// Where no server waits for all workers, each worker clips its own gradient, and leaves out one
  /// that is not finite, before it pushes.
  [[nodiscard]] bool looks_first() const {
    return optimizer_.whole_gradient() && !waits_for_all(rule_);
  }

  /// False: this step's gradient is not finite; a push without samples takes its place, which keeps
  /// the clocks going.
  bool prepare_whole_gradient() {
    const std::span<float> gradients = gradients_.as<float>();
    const double scale = step_.samples == 0 ? 0.0 : 1.0 / static_cast<double>(step_.samples);
    const std::optional<float> clip = gradient_factor(optimizer_, gradients, scale);
    if (!clip) {
      std::ranges::fill(gradients, 0.0F);
      step_.samples = 0;
      return false;
    }
    if (*clip < 1.0F) {
      for (float& value : gradients) {
        value *= *clip;
      }
    }
    return true;
  }

  /// The servers' own weights, in fp32 whatever sync.wire is.
  void pull_all() {
    client_->pull_all();
    pulled_ = true;
  }

  /// What the answer to a push would have brought: steps read the same weights whether or not an
  /// evaluation looked at the servers' own in between.
  void as_on_the_wire(std::span<float> weights) const {
    round_values(parse_precision(context_.config.sync_options.wire), weights);
  }

  /// Waits for bucket b; returns how long servers held it for slower workers, in ns.
  std::int64_t collect(BucketId b) {
    const PushOutcome outcome = client_->wait(b);
    update_applied_ = update_applied_ || outcome.applied;
    update_staleness_ = std::max(update_staleness_, outcome.staleness);
    if (outcome.end_ns != 0) {
      transfers_.push_back({b, outcome.begin_ns, outcome.end_ns});
    }
    return outcome.held_ns;
  }

  /// The previous step's push is answered in all its parts: one update, as stale as its stalest
  /// key.
  void count_update() {
    if (std::exchange(update_applied_, false)) {
      staleness_.add(std::exchange(update_staleness_, 0));
    }
  }

  /// The entries of `shape` with the values that `reader` has under `prefix`.
  static std::vector<std::byte> read_like(const StateBlobReader& shape, const std::string& prefix,
                                          StateReader& reader) {
    StateBlobWriter blob;
    for (const auto& [name, array] : shape.entries()) {
      if (array.is_integer) {
        blob.put(name, reader.get(prefix + name));
      } else {
        std::vector<float> values(array.bytes.size() / sizeof(float));
        reader.get(prefix + name, std::span(values));
        blob.put(name, std::span<const float>(values));
      }
    }
    return blob.bytes();
  }

  WorkerContext context_;
  PsRule rule_;
  ClientSetup setup_;
  BucketPlan plan_;
  Buffer weights_;
  Buffer gradients_;
  std::unique_ptr<ColocatedServer> server_;
  std::unique_ptr<PsClient> client_;  // dies first: ZeroMQ lets go of the arenas
  StepInfo step_;
  OptimizerSpec optimizer_;
  bool pulled_ = false;  ///< weights_ came in fp32
  std::vector<BucketId> ready_;
  std::int64_t waited_ns_ = 0;
  Staleness staleness_;
  std::vector<Transfer> transfers_;  ///< since the last commit
  bool update_applied_ = false;
  std::int64_t update_staleness_ = 0;
};

}  // namespace

std::unique_ptr<Synchronizer> make_ps_synchronizer(const WorkerContext& context, const PsRule& rule,
                                                   CudaSource cuda) {
  return std::make_unique<PsSynchronizer>(context, rule, cuda);
}

void serve_ps(const ServerContext& context, const PsRule& rule, CudaSource cuda) {
  keep_message_memory();
  ServerMailbox mailbox(mailbox_options(context.config));
  const Rendezvous met = meet(context.everyone, context.config, &mailbox);
  Server server(mailbox,
                make_server_setup(context.config, rule, context.topology, context.fabric,
                                  context.server, met, cuda, context.abort),
                context.abort);
  server.run();
}

}  // namespace paceline
