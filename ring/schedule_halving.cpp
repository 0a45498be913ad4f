// SPDX-License-Identifier: Apache-2.0
// Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005, section 4).
#include <algorithm>
#include <bit>
#include <vector>

#include "ring/algorithms.h"

namespace paceline::algorithms {

namespace {

/// Of the largest power of two p <= world, ranks 0..2(world-p)-1 work in pairs: the even one hands
/// its buffer to the odd one, sits out and gets the result back.
class Hypercube {
 public:
  Hypercube(int rank, int world)
      : size_(static_cast<int>(std::bit_floor(static_cast<unsigned>(world)))),
        paired_(2 * (world - size_)),
        rank_(rank) {}

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] bool paired() const noexcept { return rank_ < paired_; }
  [[nodiscard]] bool sits_out() const noexcept { return paired() && rank_ % 2 == 0; }
  [[nodiscard]] int partner() const noexcept { return rank_ ^ 1; }
  [[nodiscard]] int node() const noexcept { return paired() ? rank_ / 2 : rank_ - paired_ / 2; }
  [[nodiscard]] int rank_of(int node) const noexcept {
    return node < paired_ / 2 ? 2 * node + 1 : node + paired_ / 2;
  }

 private:
  int size_;
  int paired_;
  int rank_;
};

/// Runs `core` on the hypercube's nodes with folding before and after.
template <typename Core>
void fold_around(ScheduleBuilder& builder, const Hypercube& cube, Core core) {
  const Range all{0, builder.count()};
  if (cube.sits_out()) {
    builder.send(cube.partner(), all);
    builder.receive(cube.partner(), all, false);
    return;
  }
  if (cube.paired()) {
    builder.receive(cube.partner(), all, true);
  }
  core();
  if (cube.paired()) {
    builder.send(cube.partner(), all);
  }
}

}  // namespace

void halving_doubling_allreduce(ScheduleBuilder& builder) {
  const Hypercube cube(builder.rank(), builder.world());
  fold_around(builder, cube, [&] {
    struct Round {
      int peer;
      Range kept;
      Range given;
    };
    std::vector<Round> rounds;
    Range range{0, builder.count()};
    for (int mask = cube.size() / 2; mask > 0; mask /= 2) {
      const std::size_t middle = range.begin + (range.size() + 1) / 2;
      const Range low{range.begin, middle};
      const Range high{middle, range.end};
      const bool upper = (cube.node() & mask) != 0;
      rounds.push_back({cube.rank_of(cube.node() ^ mask), upper ? high : low, upper ? low : high});
      range = rounds.back().kept;
    }
    for (const Round& round : rounds) {
      builder.exchange(round.peer, round.given, round.peer, round.kept, true);
    }
    std::reverse(rounds.begin(), rounds.end());
    for (const Round& round : rounds) {
      builder.exchange(round.peer, round.kept, round.peer, round.given, false);
    }
  });
}

// Both partners add the same two sums, and a + b = b + a: all ranks end with the same bits.
void doubling_allreduce(ScheduleBuilder& builder) {
  const Hypercube cube(builder.rank(), builder.world());
  fold_around(builder, cube, [&] {
    if (cube.size() == 1) {
      return;
    }
    const std::size_t count = builder.count();
    const std::size_t scratch = builder.add_scratch(count);
    for (int mask = 1; mask < cube.size(); mask *= 2) {
      const int peer = cube.rank_of(cube.node() ^ mask);
      builder.exchange(peer, {0, count}, peer, {scratch, scratch + count}, false);
      builder.local({0, count}, scratch, true);
    }
  });
}

}  // namespace paceline::algorithms
