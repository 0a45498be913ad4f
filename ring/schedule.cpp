// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "common/base/error.h"
#include "ring/algorithms.h"
#include "ring/schedule_builder.h"

namespace paceline {

namespace {

constexpr std::array<std::pair<Algorithm, std::string_view>, 7> kNames{{
    {Algorithm::ring, "ring"},
    {Algorithm::direct, "direct"},
    {Algorithm::oneshot, "oneshot"},
    {Algorithm::tree, "tree"},
    {Algorithm::halving_doubling, "halving_doubling"},
    {Algorithm::doubling, "doubling"},
    {Algorithm::hierarchical, "hierarchical"},
}};

std::string_view kind_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::allreduce:
      return "allreduce";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::allgather:
      return "allgather";
    case CollectiveKind::all_to_all:
      return "all_to_all";
  }
  return "?";
}

void add_allreduce(ScheduleBuilder& builder, const ScheduleRequest& request) {
  switch (request.algorithm) {
    case Algorithm::ring:
      algorithms::ring_reduce_scatter(builder);
      algorithms::ring_allgather(builder);
      return;
    case Algorithm::direct:
      algorithms::direct_reduce_scatter(builder);
      algorithms::direct_allgather(builder);
      return;
    case Algorithm::oneshot:
      algorithms::oneshot_allreduce(builder);
      return;
    case Algorithm::tree:
      algorithms::tree_allreduce(builder);
      return;
    case Algorithm::halving_doubling:
      algorithms::halving_doubling_allreduce(builder);
      return;
    case Algorithm::doubling:
      algorithms::doubling_allreduce(builder);
      return;
    case Algorithm::hierarchical:
      if (request.topology == nullptr || request.topology->world() != request.world) {
        throw Error("a hierarchical schedule needs the topology of its ranks");
      }
      algorithms::hierarchical_allreduce(builder, *request.topology);
      return;
  }
}

}  // namespace

std::size_t Schedule::elements_sent() const noexcept {
  std::size_t elements = 0;
  for (const Operation& operation : operations) {
    elements += operation.kind == OperationKind::send ? operation.range.size() : 0;
  }
  return elements;
}

bool keeps_ring_order(Algorithm algorithm, int world) noexcept {
  return world <= 2 || algorithm == Algorithm::ring || algorithm == Algorithm::direct ||
         algorithm == Algorithm::oneshot;
}

std::string_view algorithm_name(Algorithm algorithm) noexcept {
  for (const auto& [value, name] : kNames) {
    if (value == algorithm) {
      return name;
    }
  }
  return "?";
}

Algorithm parse_algorithm(std::string_view name) {
  std::string allowed;
  for (const auto& [value, known] : kNames) {
    if (known == name) {
      return value;
    }
    allowed += fmt::format("{}{}", allowed.empty() ? "" : " | ", known);
  }
  throw ConfigError(fmt::format("ring.algorithm={}: allowed are auto | {}", name, allowed));
}

Schedule build_schedule(const ScheduleRequest& request) {
  if (request.world < 1 || request.rank < 0 || request.rank >= request.world) {
    throw Error(fmt::format("rank {} of {} has no schedule", request.rank, request.world));
  }
  ScheduleBuilder builder(request.rank, request.world, request.count, request.piece);
  const bool ring = request.algorithm == Algorithm::ring;
  const auto blocks = static_cast<std::size_t>(request.world) * 2;
  if (request.kind == CollectiveKind::allreduce) {
    add_allreduce(builder, request);
  } else if (request.kind == CollectiveKind::all_to_all && !ring && request.count % blocks == 0) {
    algorithms::direct_all_to_all(builder);
  } else if (request.kind == CollectiveKind::all_to_all ||
             (!ring && request.algorithm != Algorithm::direct)) {
    throw Error(fmt::format("{} does not exist as {}", kind_name(request.kind),
                            algorithm_name(request.algorithm)));
  } else if (request.kind == CollectiveKind::reduce_scatter) {
    ring ? algorithms::ring_reduce_scatter(builder) : algorithms::direct_reduce_scatter(builder);
  } else {
    ring ? algorithms::ring_allgather(builder) : algorithms::direct_allgather(builder);
  }
  return builder.finish();
}

}  // namespace paceline
