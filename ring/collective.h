// SPDX-License-Identifier: Apache-2.0
// Collectives on a buffer: picks an algorithm, keeps its schedules, runs them.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/comm/transport.h"
#include "ring/executor.h"
#include "ring/schedule.h"

namespace paceline {

struct CollectiveOptions {
  std::optional<Algorithm> algorithm;  ///< none: picked by size among those that keep ring order
  std::size_t chunk = 0;               ///< bytes per message at most; 0: picked by size
  bool any_order = false;  ///< the order of sums does not matter (integers): no scratch for it
  Nanoseconds timeout = std::chrono::seconds(30);  ///< without any progress
  const std::atomic<bool>* stop = nullptr;         ///< ends a run with Stopped; outlives this
};

/// The algorithm of an allreduce of `bytes` under these options ("auto" resolved).
[[nodiscard]] Algorithm pick_algorithm(const CollectiveOptions& options, int world,
                                       std::size_t bytes);

/// One per rank; used by one thread at a time. All ranks call the same collectives with the same
/// lengths and options, in the same order. Throws as Executor::run does; is unusable afterwards.
class Collective {
 public:
  /// `transport` and `topology` outlive this.
  Collective(Transport& transport, const Topology& topology, const CollectiveOptions& options);

  /// `data` holds whole elements of `type` and is worked on in place; memory from
  /// transport.allocate() is fastest.
  /// Every element becomes the sum over ranks.
  RunTimes allreduce(std::span<std::byte> data, DataType type, bool announce = false);
  /// This rank's chunk (ring_chunk) becomes the sum over ranks; the rest is unspecified.
  RunTimes reduce_scatter(std::span<std::byte> data, DataType type, bool announce = false);
  /// Every rank's chunk (ring_chunk) is taken over from that rank.
  RunTimes allgather(std::span<std::byte> data, DataType type, bool announce = false);
  /// `data` is 2N equal blocks: block r goes to rank r, block N + r comes from rank r.
  RunTimes all_to_all(std::span<std::byte> data, DataType type, bool announce = false);

  /// Builds the schedule and takes the scratch memory for collectives on `count` elements ahead of
  /// time.
  void prepare(CollectiveKind kind, std::size_t count, DataType type);
  void prepare_allreduce(std::size_t count, DataType type) {
    prepare(CollectiveKind::allreduce, count, type);
  }

 private:
  struct Key {
    CollectiveKind kind;
    std::size_t count;
    DataType type;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::unique_ptr<CompiledSchedule> plan;
  };

  const CompiledSchedule& plan_for(const Key& key);
  [[nodiscard]] Algorithm algorithm_for(const Key& key) const;
  RunTimes run(CollectiveKind kind, std::span<std::byte> data, DataType type, bool announce);

  Transport& transport_;
  const Topology& topology_;
  CollectiveOptions options_;
  Executor executor_;
  std::vector<Entry> plans_;
  std::size_t last_plan_ = 0;
  std::unique_ptr<CommBuffer> scratch_;
};

}  // namespace paceline
