// SPDX-License-Identifier: Apache-2.0
#include "ps/shard.h"

#include "common/core/optimizer.h"

namespace paceline {

namespace {

class HostShard final : public Shard {
 public:
  HostShard(const OptimizerSpec& spec, std::span<const std::size_t> elements) : Shard(elements) {
    optimizers_.reserve(elements.size());
    for (const std::size_t count : elements) {
      optimizers_.emplace_back(spec, count);
      weight_bytes_ += count * sizeof(float);
    }
  }

  void set_weights(std::size_t key, std::span<const float> values) override {
    std::ranges::copy(values, versions(key).next().begin());
    versions(key).publish();
  }

  void update(std::size_t key, std::span<const RangeUpdate> updates,
              const GradientBlocks& gradient) override {
    const std::span<const float> before = versions(key).current();
    const std::span<float> after = versions(key).next();
    for (const RangeUpdate& part : updates) {
      for_blocks(part.range, [&](std::size_t begin, std::size_t count) {
        optimizers_[key].apply(begin, before.subspan(begin, count), after.subspan(begin, count),
                               gradient(begin, count), part.info);
      });
    }
    versions(key).publish();
  }

  void save_optimizer(std::size_t key, StateWriter& writer) override {
    optimizers_.at(key).save(writer);
  }
  void load_optimizer(std::size_t key, StateReader& reader) override {
    optimizers_.at(key).load(reader);
  }

  [[nodiscard]] MemoryUse memory() const override {
    MemoryUse use;
    use.weights = weight_bytes_;
    use.staging = version_bytes() - weight_bytes_;
    for (const Optimizer& optimizer : optimizers_) {
      use.optimizer += optimizer.state_bytes();
    }
    return use;
  }

 private:
  std::vector<Optimizer> optimizers_;
  std::size_t weight_bytes_ = 0;
};

}  // namespace

Shard::Shard(std::span<const std::size_t> elements) {
  versions_.reserve(elements.size());
  for (const std::size_t count : elements) {
    versions_.emplace_back(count);
  }
}

std::size_t Shard::version_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const WeightStore& store : versions_) {
    bytes += store.bytes();
  }
  return bytes;
}

std::unique_ptr<Shard> make_host_shard(const OptimizerSpec& spec,
                                       std::span<const std::size_t> elements) {
  return std::make_unique<HostShard>(spec, elements);
}

}  // namespace paceline
