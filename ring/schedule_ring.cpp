// SPDX-License-Identifier: Apache-2.0
// The algorithms that sum in ring order: ring, direct and oneshot.
#include <numeric>
#include <vector>

#include "common/sync/reduction_order.h"
#include "ring/algorithms.h"

namespace paceline::algorithms {

namespace {

std::vector<int> everyone(int world) {
  std::vector<int> members(static_cast<std::size_t>(world));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

/// A ring over part of the ranks and of the buffer, seen from one of its members.
class RingView {
 public:
  RingView(std::span<const int> members, int position, Range range)
      : members_(members), position_(position), range_(range) {}

  [[nodiscard]] int rounds() const noexcept { return size() - 1; }
  [[nodiscard]] int next() const noexcept { return member(position_ + 1); }
  [[nodiscard]] int previous() const noexcept { return member(position_ - 1); }
  /// The chunk `steps` places behind this member's own.
  [[nodiscard]] Range chunk(int steps) const noexcept {
    const Range chunk = ring_chunk(range_.size(), size(), wrap(position_ - steps));
    return {range_.begin + chunk.begin, range_.begin + chunk.end};
  }

 private:
  [[nodiscard]] int size() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int wrap(int index) const noexcept { return (index % size() + size()) % size(); }
  [[nodiscard]] int member(int index) const noexcept {
    return members_[static_cast<std::size_t>(wrap(index))];
  }

  std::span<const int> members_;
  int position_;
  Range range_;
};

Range chunk_of(const ScheduleBuilder& builder, int rank) {
  return ring_chunk(builder.count(), builder.world(), rank);
}

}  // namespace

void ring_reduce_scatter(ScheduleBuilder& builder, std::span<const int> members, int position,
                         Range range) {
  const RingView ring(members, position, range);
  for (int round = 0; round < ring.rounds(); ++round) {
    builder.exchange(ring.next(), ring.chunk(round + 1), ring.previous(), ring.chunk(round + 2),
                     true);
  }
}

void ring_allgather(ScheduleBuilder& builder, std::span<const int> members, int position,
                    Range range) {
  const RingView ring(members, position, range);
  for (int round = 0; round < ring.rounds(); ++round) {
    builder.exchange(ring.next(), ring.chunk(round), ring.previous(), ring.chunk(round + 1), false);
  }
}

void ring_reduce_scatter(ScheduleBuilder& builder) {
  ring_reduce_scatter(builder, everyone(builder.world()), builder.rank(), {0, builder.count()});
}

void ring_allgather(ScheduleBuilder& builder) {
  ring_allgather(builder, everyone(builder.world()), builder.rank(), {0, builder.count()});
}

// The owner of chunk c folds g[c+1], .., g[c-1] in scratch in order of arrival from those ranks one
// after the other, and adds that to its own g[c] last: the ring's order.
void direct_reduce_scatter(ScheduleBuilder& builder) {
  const int world = builder.world();
  const int rank = builder.rank();
  const Range own = chunk_of(builder, rank);
  if (world == 1) {
    return;
  }
  // Receiver c takes rank c+k in its k-th turn, so rank r sends to r-k in its k-th.
  for (int turn = 1; turn < world; ++turn) {
    const int to = (rank + world - turn) % world;
    builder.send(to, chunk_of(builder, to));
  }
  if (world == 2) {
    builder.receive(1 - rank, own, true);
    return;
  }
  const std::size_t scratch = builder.add_scratch(own.size());
  for (int turn = 1; turn < world; ++turn) {
    builder.receive((rank + turn) % world, {scratch, scratch + own.size()}, turn > 1);
  }
  builder.local(own, scratch, true);
}

void direct_allgather(ScheduleBuilder& builder) {
  const int world = builder.world();
  const int rank = builder.rank();
  builder.for_pieces(chunk_of(builder, rank), [&](Range piece) {
    for (int turn = 1; turn < world; ++turn) {
      builder.send((rank + turn) % world, piece);
    }
  });
  for (int turn = 1; turn < world; ++turn) {
    const int from = (rank + world - turn) % world;
    builder.receive(from, chunk_of(builder, from), false);
  }
}

void direct_all_to_all(ScheduleBuilder& builder) {
  const int world = builder.world();
  const int rank = builder.rank();
  const std::size_t size = builder.count() / (2 * static_cast<std::size_t>(world));
  const auto block = [&](int index) {
    const std::size_t begin = static_cast<std::size_t>(index) * size;
    return Range{begin, begin + size};
  };
  builder.local(block(world + rank), block(rank).begin, false);
  for (int turn = 1; turn < world; ++turn) {
    const int to = (rank + turn) % world;
    const int from = (rank + world - turn) % world;
    builder.exchange(to, block(to), from, block(world + from), false);
  }
}

void oneshot_allreduce(ScheduleBuilder& builder) {
  const int world = builder.world();
  const int rank = builder.rank();
  const std::size_t count = builder.count();
  std::vector<std::size_t> contribution(static_cast<std::size_t>(world));
  for (int turn = 1; turn < world; ++turn) {
    builder.send((rank + turn) % world, {0, count});
  }
  for (int turn = 1; turn < world; ++turn) {
    const int from = (rank + world - turn) % world;
    const std::size_t begin = builder.add_scratch(count);
    contribution[static_cast<std::size_t>(from)] = begin;
    builder.receive(from, {begin, begin + count}, false);
  }
  if (world == 2) {  // one addition, and its order does not matter
    builder.local({0, count}, contribution[static_cast<std::size_t>(1 - rank)], true);
    return;
  }
  for (int c = 0; c < world; ++c) {
    const Range chunk = ring_chunk(count, world, c);
    const auto part = [&](int k) {
      return contribution[static_cast<std::size_t>(ring_summand(world, c, k))] + chunk.begin;
    };
    const std::size_t sum = part(0);
    for (int k = 1; k < world; ++k) {
      builder.local({sum, sum + chunk.size()}, part(k), true);
    }
    if (sum != chunk.begin) {
      builder.local(chunk, sum, false);
    }
  }
}

}  // namespace paceline::algorithms
