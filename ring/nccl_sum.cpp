// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_sum.h"

#include <chrono>
#include <span>
#include <thread>

namespace paceline {

namespace {

constexpr std::chrono::microseconds kNcclHostPoll{50};

void* element(void* values, std::size_t index, Precision format) {
  const std::size_t size = format == Precision::fp32 ? sizeof(float) : sizeof(std::uint16_t);
  return static_cast<std::byte*>(values) + index * size;
}

class FlatNcclSum final : public NcclSum {
 public:
  using NcclSum::NcclSum;
  void sum(void* values, std::size_t count, Precision format) override {
    comms_.all_reduce(NcclCommunicators::kWorld, values, count, format, stream_);
  }
};

class ShardedNcclSum final : public NcclSum {
 public:
  using NcclSum::NcclSum;

  [[nodiscard]] int ranks() const noexcept override { return comms_.size(); }
  [[nodiscard]] int rank() const noexcept override { return comms_.rank(); }
  [[nodiscard]] bool counts_in_norm(const Range& own_part, std::size_t count) const override {
    return rank() == 0 || own_part.begin < count / n() * n();
  }

  [[nodiscard]] std::vector<Range> own(std::size_t count) const override {
    const std::size_t block = count / n();
    const std::size_t begin = block * static_cast<std::size_t>(rank());
    std::vector<Range> parts;
    if (block > 0) {
      parts.push_back({begin, begin + block});
    }
    if (block * n() < count) {
      parts.push_back({block * n(), count});
    }
    return parts;
  }

  void sum(void* values, std::size_t count, Precision format) override {
    const std::size_t block = count / n();
    const std::size_t whole = block * n();
    if (block > 0) {
      comms_.reduce_scatter(NcclCommunicators::kWorld, rank(), values, block, format, stream_);
    }
    if (whole < count) {
      comms_.all_reduce(NcclCommunicators::kWorld, element(values, whole, format), count - whole,
                        format, stream_);
    }
  }

  void share(std::span<float> weights) override {
    if (const std::size_t block = weights.size() / n(); block > 0) {
      all_gather(weights.data(), block);
    }
  }
  void add_up(float* squares) override {
    comms_.all_reduce(NcclCommunicators::kWorld, squares, 1, Precision::fp32, stream_);
  }
  void gather(GpuTrustRatios& ratios) override {
    constexpr std::size_t kFloats = sizeof(kernels::TensorSquares) / sizeof(float);
    all_gather(ratios.squares(), ratios.tensors() * kFloats);
  }

 private:
  [[nodiscard]] std::size_t n() const noexcept { return static_cast<std::size_t>(ranks()); }
  void all_gather(void* blocks, std::size_t block) {
    comms_.all_gather(NcclCommunicators::kWorld, rank(), blocks, block, Precision::fp32, stream_);
  }
};

class HierarchicalNcclSum final : public NcclSum {
 public:
  HierarchicalNcclSum(NcclCommunicators& comms, GpuStream& stream, const Topology& topology)
      : NcclSum(comms, stream),
        node_size_(topology.ranks_of_node(topology.node_of_rank(comms.rank())).size()),
        place_(comms.rank() % topology.ranks_per_node()),
        even_(comms.size() % topology.ranks_per_node() == 0),
        node_(comms.split(topology.node_of_rank(comms.rank()), comms.rank())),
        peers_(comms.split(place_, comms.rank())) {}

  void sum(void* values, std::size_t count, Precision format) override {
    const std::size_t block = even_ ? count / node_size_ : 0;
    const std::size_t whole = block * node_size_;
    if (block > 0) {
      comms_.reduce_scatter(node_, place_, values, block, format, stream_);
      comms_.all_reduce(peers_, element(values, block * static_cast<std::size_t>(place_), format),
                        block, format, stream_);
      comms_.all_gather(node_, place_, values, block, format, stream_);
    }
    if (whole < count) {
      through_leader(element(values, whole, format), count - whole, format);
    }
  }

 private:
  void through_leader(void* values, std::size_t count, Precision format) {
    comms_.all_reduce(node_, values, count, format, stream_);
    if (place_ == 0) {
      comms_.all_reduce(peers_, values, count, format, stream_);
    }
    comms_.broadcast(node_, 0, values, count, format, stream_);
  }

  std::size_t node_size_;
  int place_;  ///< of this rank in its node
  bool even_;
  NcclCommunicators::Id node_;
  NcclCommunicators::Id peers_;  ///< of this place in all nodes
};

}  // namespace

void NcclSum::wait(const GpuEvent& event) const {
  while (!event.reached()) {
    comms_.check();
    std::this_thread::sleep_for(kNcclHostPoll);
  }
  comms_.check();
}

std::unique_ptr<NcclSum> make_flat_sum(NcclCommunicators& comms, GpuStream& stream) {
  return std::make_unique<FlatNcclSum>(comms, stream);
}

std::unique_ptr<NcclSum> make_sharded_sum(NcclCommunicators& comms, GpuStream& stream) {
  return std::make_unique<ShardedNcclSum>(comms, stream);
}

std::unique_ptr<NcclSum> make_hierarchical_sum(NcclCommunicators& comms, GpuStream& stream,
                                               const Topology& topology) {
  return std::make_unique<HierarchicalNcclSum>(comms, stream, topology);
}

}  // namespace paceline
