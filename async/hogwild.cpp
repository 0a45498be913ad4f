// SPDX-License-Identifier: Apache-2.0
#include "async/hogwild.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>

#include "async/gpu_hogwild.h"
#include "async/share.h"
#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/config/validate.h"
#include "common/core/arena_optimizer.h"
#include "common/core/optimizer.h"
#include "common/core/sparse.h"

namespace paceline {

namespace {

constexpr Traits kTraits{Consistency::asynchronous, UpdatePlace::shared_memory, true};

struct SharedModel {
  explicit SharedModel(std::span<const float> init) : memory(init.size_bytes()) {
    std::copy(init.begin(), init.end(), memory.as<float>().begin());
  }
  static constexpr std::size_t kCacheLine = 64;
  Buffer memory;
  alignas(kCacheLine) std::atomic<std::int64_t> updates{0};  // apart from what every step reads
};

/// Plain SGD: no state that a step without gradient would change.
bool sparse_updates(const OptimizerSpec& spec) noexcept {
  return spec.kind == OptimizerKind::sgd && spec.momentum == 0.0F && spec.weight_decay == 0.0F &&
         spec.clip_norm == 0.0F && !spec.skip_nonfinite;
}

class HogwildSynchronizer final : public Synchronizer {
 public:
  explicit HogwildSynchronizer(Communicator& workers) : workers_(workers) {}

  [[nodiscard]] Traits traits() const noexcept override { return kTraits; }

  /// The weights are shared by all workers and counted for each.
  [[nodiscard]] MemoryUse memory() const noexcept override {
    return {model_->memory.size(), gradients_.size(), optimizer_->state_bytes(), 0};
  }

  ReplicaView bind(const BucketPlan& plan, Device& /*device*/, const OptimizerSpec& optimizer,
                   std::span<const float> init) override {
    plan_ = plan;
    model_ = share_among_threads<SharedModel>(workers_,
                                              [&] { return std::make_shared<SharedModel>(init); });
    gradients_ = Buffer(plan.elements() * sizeof(float));
    optimizer_ = std::make_unique<Optimizer>(optimizer, plan.elements());
    return {model_->memory.as<float>(), gradients_.as<float>()};
  }

  void begin_step(const StepInfo& info) override {
    info_ = info;
    updates_seen_ = model_->updates.load(std::memory_order_relaxed);
  }

  void parameters_needed(BucketId /*b*/, Stream& /*stream*/) override {}

  /// Applied at once, or at commit where the update depends on this worker's whole gradient.
  void gradient_ready(BucketId b, const Event& done) override {
    done.synchronize();
    if (info_.samples > 0 && !optimizer_->spec().whole_gradient()) {
      update(plan_[b], mean());
    }
  }

  /// Where the update of a weight depends on its own gradient alone and is zero without one.
  [[nodiscard]] bool takes_sparse_gradients() const noexcept override {
    return sparse_updates(optimizer_->spec());
  }

  /// Reads and writes the touched weights alone.
  void sparse_gradient_ready(const SparseGradient& gradient) override {
    const std::span<float> shared = model_->memory.as<float>();
    const float rate = info_.samples > 0 ? info_.lr * mean() : 0.0F;
    for (std::size_t k = 0; k < gradient.elements.size(); ++k) {
      const std::atomic_ref element(shared[gradient.elements[k]]);
      element.store(element.load(std::memory_order_relaxed) - rate * gradient.values[k],
                    std::memory_order_relaxed);
    }
  }

  StepReport commit() override {
    StepReport report;
    if (info_.samples == 0) {
      return report;
    }
    const bool applied = !optimizer_->spec().whole_gradient() || update_all();
    report.skipped = applied ? 0 : 1;
    if (applied) {
      const std::int64_t now = model_->updates.fetch_add(1, std::memory_order_relaxed);
      report.staleness.add(now - updates_seen_);
      ++updates_;
    }
    return report;
  }

  void quiesce() override { workers_.barrier(); }

  void save(StateWriter& writer) const override {
    optimizer_->save(writer);
    writer.put("hogwild.updates", updates_);
  }
  void load(StateReader& reader) override {
    optimizer_->load(reader);
    updates_ = reader.get("hogwild.updates");
  }

 private:
  static constexpr std::size_t kBlock = 2048;

  [[nodiscard]] float mean() const noexcept { return 1.0F / static_cast<float>(info_.samples); }

  /// Clips this worker's gradient by its norm; false: it is not finite and left out.
  bool update_all() {
    const std::optional<float> factor =
        gradient_factor(optimizer_->spec(), gradients_.as<float>(), static_cast<double>(mean()));
    if (factor) {
      update({0, plan_.elements()}, mean() * *factor);
    }
    return factor.has_value();
  }

  void update(const Range& range, float scale) {
    for (std::size_t begin = range.begin; begin < range.end; begin += kBlock) {
      update_block(begin, std::min(kBlock, range.end - begin), scale);
    }
  }

  /// Reads a block, lets the optimizer step a private copy, adds the difference to what the shared
  /// block holds by then.
  void update_block(std::size_t begin, std::size_t count, float scale) {
    std::array<float, kBlock> before;
    std::array<float, kBlock> after;
    const std::span<float> shared = model_->memory.as<float>().subspan(begin, count);
    for (std::size_t i = 0; i < count; ++i) {
      before[i] = std::atomic_ref(shared[i]).load(std::memory_order_relaxed);
    }
    optimizer_->apply(begin, std::span(before).first(count), std::span(after).first(count),
                      gradients_.as<float>().subspan(begin, count), {updates_, info_.lr, scale});
    for (std::size_t i = 0; i < count; ++i) {
      const std::atomic_ref element(shared[i]);
      element.store(element.load(std::memory_order_relaxed) + (after[i] - before[i]),
                    std::memory_order_relaxed);
    }
  }

  Communicator& workers_;
  BucketPlan plan_;
  std::shared_ptr<SharedModel> model_;
  Buffer gradients_;
  std::unique_ptr<Optimizer> optimizer_;
  StepInfo info_;
  std::int64_t updates_seen_ = 0;
  std::int64_t updates_ = 0;
};

/// Techniques that need a wire, or weights that nobody else is writing.
void validate_techniques(const Config& config) {
  if (const std::string format = travelling_format(config); !format.empty()) {
    throw ConfigError(format +
                      " with sync = hogwild: threads share the weights and send nothing; allowed: "
                      "compress = none and sync.wire = fp32");
  }
  const std::string& name = config.optimizer.name;
  if (config.model == "logistic" &&
      (name != "sgd" || config.optimizer.momentum != 0.0 || config.optimizer.weight_decay != 0.0 ||
       config.optimizer.clip_norm != 0.0 || config.train.accumulate != 1)) {
    throw ConfigError(
        "model = logistic with sync = hogwild makes sparse updates: allowed optimizer.name = sgd "
        "with optimizer.momentum, optimizer.weight_decay and optimizer.clip_norm = 0, and "
        "train.accumulate = 1; another way of synchronising takes the rest");
  }
  if (name != "sgd" && name != "adam") {
    throw ConfigError(
        "optimizer.name = " + name +
        " with sync = hogwild: it needs norms or moments of weights that other threads "
        "are writing; allowed: sgd, adam");
  }
}

void validate(const Config& config) {
  validate_techniques(config);
  if (config.device == "cuda") {
    validate_gpu_hogwild(config);
  }
  if (config.sync_options.exact) {
    throw ConfigError(
        "sync.exact = true makes sums independent of their order, but sync=hogwild applies every "
        "update on its own; allowed with hogwild: false");
  }
  if (config.comm.transport != "auto" && config.comm.transport != "inproc") {
    throw ConfigError("comm.transport = " + config.comm.transport +
                      ": sync=hogwild shares one address space; allowed: auto, inproc");
  }
}

std::unique_ptr<Synchronizer> make(const WorkerContext& context) {
  if (context.config.device == "cuda") {
    return make_gpu_hogwild(context);
  }
  return std::make_unique<HogwildSynchronizer>(context.workers);
}

}  // namespace

Backend hogwild_backend() {
  Backend backend;
  backend.name = "hogwild";
  backend.summary = "threads update one shared weight buffer without locks (Niu et al. 2011)";
  backend.traits = kTraits;
  backend.workers = WorkerKind::thread;
  backend.binds_gpu = [](const Config&) { return true; };
  backend.validate = validate;
  backend.make = make;
  return backend;
}

}  // namespace paceline
