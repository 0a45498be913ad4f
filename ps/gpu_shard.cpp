// SPDX-License-Identifier: Apache-2.0
#include "ps/gpu_shard.h"

#include <fmt/format.h>

#include <map>
#include <numeric>

#include "common/base/buffer.h"
#include "common/base/error.h"
#include "common/core/optimizer.h"

namespace paceline {

namespace {

std::size_t largest_of(std::span<const std::size_t> elements) {
  return elements.empty() ? 0 : std::ranges::max(elements);
}

class GpuShard final : public Shard {
 public:
  GpuShard(const CudaModule& module, const GpuOptions& options, const OptimizerSpec& spec,
           std::span<const std::size_t> elements)
      : Shard(elements),
        spec_(spec),
        begins_(elements.size()),
        total_(std::reduce(elements.begin(), elements.end())),
        moments_(optimizer_state_bytes(spec, 1) / sizeof(float)),
        gpu_(module, options),
        weights_(gpu_.allocate(total_, "a server's weights")),
        state_(gpu_.allocate(moments_ * total_, "a server's optimizer state")),
        gradient_(gpu_.allocate(largest_of(elements), "a server's gradient")),
        staging_(largest_of(elements) * sizeof(float)),
        pinned_staging_(gpu_, {staging_.data(), staging_.size()}) {
    std::exclusive_scan(elements.begin(), elements.end(), begins_.begin(), std::size_t{0});
  }

  /// An update that threw may have left copies under way.
  ~GpuShard() override { gpu_.stream().drain(); }

  void set_weights(std::size_t key, std::span<const float> values) override {
    const std::span<float> version = next_version(key);
    std::ranges::copy(values, version.begin());
    gpu_.upload(version, on_device(*weights_, key));
    versions(key).publish();
  }

  void update(std::size_t key, std::span<const RangeUpdate> updates,
              const GradientBlocks& gradient) override {
    const std::span<float> version = next_version(key);
    const std::span<float> staged = staging_.as<float>().first(version.size());
    for (const RangeUpdate& part : updates) {
      for_blocks(part.range, [&](std::size_t begin, std::size_t count) {
        std::ranges::copy(gradient(begin, count), staged.subspan(begin).begin());
      });
    }
    void* stream = gpu_.stream().native();
    gpu_.check(gpu_.api().copy_to_device(gradient_->values().data(), staged.data(),
                                         staged.size_bytes(), stream),
               "copying a server's gradient to the GPU");
    for (const RangeUpdate& part : updates) {
      launch(key, part);
    }
    gpu_.check(gpu_.api().copy_to_host(version.data(), on_device(*weights_, key).data(),
                                       version.size_bytes(), stream),
               "copying a server's weights to the host");
    gpu_.stream().synchronize();
    versions(key).publish();
  }

  void save_optimizer(std::size_t key, StateWriter& writer) override {
    const std::size_t count = weights(key).size();
    Optimizer host(spec_, count);
    for (std::size_t i = 0; i < moments_; ++i) {
      gpu_.download(moment(i, key), host.moment(static_cast<int>(i), 0, count));
    }
    host.save(writer);
  }

  void load_optimizer(std::size_t key, StateReader& reader) override {
    const std::size_t count = weights(key).size();
    Optimizer host(spec_, count);
    host.load(reader);
    for (std::size_t i = 0; i < moments_; ++i) {
      gpu_.upload(host.moment(static_cast<int>(i), 0, count), moment(i, key));
    }
  }

  [[nodiscard]] MemoryUse memory() const override {
    MemoryUse use;
    use.weights = weights_->values().size_bytes();
    use.optimizer = state_->values().size_bytes();
    use.gradients = gradient_->values().size_bytes();
    use.staging = version_bytes() + staging_.size();
    return use;
  }

 private:
  /// A key's part of an arena in device memory.
  [[nodiscard]] std::span<float> on_device(DeviceArena& arena, std::size_t key) const {
    return arena.values().subspan(begins_.at(key), weights(key).size());
  }
  [[nodiscard]] std::span<float> moment(std::size_t index, std::size_t key) const {
    return state_->values().subspan(index * total_ + begins_.at(key), weights(key).size());
  }

  /// Page-locked at its first use.
  [[nodiscard]] std::span<float> next_version(std::size_t key) {
    const std::span<float> version = versions(key).next();
    pinned_versions_.try_emplace(version.data(), gpu_, std::as_writable_bytes(version));
    return version;
  }

  void launch(std::size_t key, const RangeUpdate& part) {
    const std::size_t begin = part.range.begin;
    const auto state = [&](std::size_t index) {
      return index < moments_ ? moment(index, key).data() + begin : nullptr;
    };
    float* w = on_device(*weights_, key).data() + begin;
    const kernels::UpdateOperands operands{w, w, gradient_->values().data() + begin, state(0),
                                           state(1)};
    gpu_.check(
        gpu_.api().update(&spec_, &part.info, &operands,
                          static_cast<std::int64_t>(part.range.size()), gpu_.stream().native()),
        "updating a server's weights");
  }

  OptimizerSpec spec_;
  std::vector<std::size_t> begins_;  ///< of each key in an arena
  std::size_t total_;                ///< elements of all keys
  std::size_t moments_;              ///< floats of optimizer state per weight
  Gpu gpu_;
  std::unique_ptr<DeviceArena> weights_;
  std::unique_ptr<DeviceArena> state_;     ///< first moments, then second ones
  std::unique_ptr<DeviceArena> gradient_;  ///< of the key that is being updated
  Buffer staging_;                         ///< the same on the host
  PinnedRange pinned_staging_;
  std::map<const float*, PinnedRange> pinned_versions_;  ///< end before the versions
};

}  // namespace

ShardMaker gpu_shard_maker(const CudaModule& module, const GpuOptions& options) {
  require_cuda(module, "ps.device");
  check_gpu_index(module, options.index);
  return [&module, options](const OptimizerSpec& spec, std::span<const std::size_t> elements) {
    return std::make_unique<GpuShard>(module, options, spec, elements);
  };
}

}  // namespace paceline
