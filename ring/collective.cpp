// SPDX-License-Identifier: Apache-2.0
#include "ring/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "common/base/error.h"

namespace paceline {

namespace {

/// Up to here one round with everything beats two with a part (whole buffer, bytes).
constexpr std::size_t kOneshotBytes = 8 * 1024;
constexpr int kOneshotWorld = 8;
/// Beyond this many ranks, talking to all of them at once costs more than going around.
constexpr int kDirectWorld = 16;
/// From here on one neighbour at a time beats several that share the caches (three or more ranks).
constexpr std::size_t kRingBytes = std::size_t{4} << 20;
/// halving_doubling exchanges whole buffers up to here.
constexpr std::size_t kDoublingBytes = 8 * 1024;

/// Messages of this size hide the per-message cost and still pipeline.
constexpr std::size_t kPieceBytes = 512 * 1024;

}  // namespace

Algorithm pick_algorithm(const CollectiveOptions& options, int world, std::size_t bytes) {
  if (options.algorithm == Algorithm::halving_doubling && bytes <= kDoublingBytes) {
    return Algorithm::doubling;
  }
  if (options.algorithm) {
    return *options.algorithm;
  }
  if (world <= kOneshotWorld && bytes <= kOneshotBytes) {
    return Algorithm::oneshot;
  }
  if (options.any_order && world > 2) {
    return Algorithm::ring;
  }
  const bool around = world > kDirectWorld || (world > 2 && bytes >= kRingBytes);
  return around ? Algorithm::ring : Algorithm::direct;
}

Collective::Collective(Transport& transport, const Topology& topology,
                       const CollectiveOptions& options)
    : transport_(transport),
      topology_(topology),
      options_(options),
      executor_(transport, options.timeout, options.stop) {}

RunTimes Collective::allreduce(std::span<std::byte> data, DataType type, bool announce) {
  return run(CollectiveKind::allreduce, data, type, announce);
}

RunTimes Collective::reduce_scatter(std::span<std::byte> data, DataType type, bool announce) {
  return run(CollectiveKind::reduce_scatter, data, type, announce);
}

RunTimes Collective::allgather(std::span<std::byte> data, DataType type, bool announce) {
  return run(CollectiveKind::allgather, data, type, announce);
}

RunTimes Collective::all_to_all(std::span<std::byte> data, DataType type, bool announce) {
  return run(CollectiveKind::all_to_all, data, type, announce);
}

void Collective::prepare(CollectiveKind kind, std::size_t count, DataType type) {
  static_cast<void>(plan_for({kind, count, type}));
}

RunTimes Collective::run(CollectiveKind kind, std::span<std::byte> data, DataType type,
                         bool announce) {
  if (data.size() % size_of(type) != 0) {
    throw Error(
        fmt::format("a collective on {} bytes of {}-byte elements", data.size(), size_of(type)));
  }
  const CompiledSchedule& plan = plan_for({kind, data.size() / size_of(type), type});
  std::byte* scratch = scratch_ != nullptr ? scratch_->bytes().data() : nullptr;
  return executor_.run(plan, data.data(), scratch, type, announce);
}

Algorithm Collective::algorithm_for(const Key& key) const {
  const int world = transport_.size();
  if (key.kind == CollectiveKind::allreduce) {
    return pick_algorithm(options_, world, key.count * size_of(key.type));
  }
  const bool around = world > kDirectWorld || options_.algorithm == Algorithm::ring;
  return around && key.kind != CollectiveKind::all_to_all ? Algorithm::ring : Algorithm::direct;
}

const CompiledSchedule& Collective::plan_for(const Key& key) {
  if (last_plan_ < plans_.size() && plans_[last_plan_].key == key) {
    return *plans_[last_plan_].plan;
  }
  const auto known = std::find_if(plans_.begin(), plans_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  last_plan_ = static_cast<std::size_t>(known - plans_.begin());
  if (known != plans_.end()) {
    return *known->plan;
  }
  ScheduleRequest request;
  request.kind = key.kind;
  request.rank = transport_.rank();
  request.world = transport_.size();
  request.count = key.count;
  request.topology = &topology_;
  const std::size_t element = size_of(key.type);
  request.algorithm = algorithm_for(key);
  const std::size_t chunk = options_.chunk > 0 ? options_.chunk : kPieceBytes;
  request.piece = std::max<std::size_t>(1, chunk / element);
  plans_.push_back({key, std::make_unique<CompiledSchedule>(build_schedule(request))});
  const CompiledSchedule& plan = *plans_.back().plan;
  const std::size_t bytes = plan.schedule().scratch * element;
  if (bytes > 0 && (scratch_ == nullptr || scratch_->bytes().size() < bytes)) {
    scratch_.reset();
    scratch_ = transport_.allocate(std::bit_ceil(bytes));
  }
  return plan;
}

}  // namespace paceline
