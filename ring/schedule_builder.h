// SPDX-License-Identifier: Apache-2.0
// Builds a Schedule from operations listed in a sequential order: the dependencies follow from
// which elements each one reads and writes, so independent pieces pipeline by themselves.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <vector>

#include "ring/schedule.h"

namespace paceline {

class ScheduleBuilder {
 public:
  /// `piece`: no message is longer (elements); 0: no limit. Both sides of a message must pass the
  /// same range, as they are cut alike.
  ScheduleBuilder(int rank, int world, std::size_t count, std::size_t piece);

  [[nodiscard]] int rank() const noexcept { return schedule_.rank; }
  [[nodiscard]] int world() const noexcept { return schedule_.world; }
  [[nodiscard]] std::size_t count() const noexcept { return schedule_.count; }

  /// Reserves scratch; returns its first element.
  std::size_t add_scratch(std::size_t elements);

  /// An empty range adds nothing.
  void send(int peer, Range range);
  void receive(int peer, Range range, bool add);
  /// Sends one range to, and receives another from, a peer each, piece by piece in turn.
  void exchange(int to, Range sent, int from, Range received, bool add);
  void local(Range range, std::size_t source, bool add);

  /// Calls `visit` with the pieces of `range`, in order.
  void for_pieces(Range range, const std::function<void(Range)>& visit) const;

  [[nodiscard]] Schedule finish();

 private:
  /// What the elements of an interval were last used for.
  struct Use {
    std::size_t end = 0;
    bool written = false;
    Schedule::Index writer = 0;
    std::vector<Schedule::Index> readers;  ///< since then
  };
  using Uses = std::map<std::size_t, Use>;  ///< by first element; disjoint; gaps are unused

  void append(Operation operation);
  void note_read(Range range);
  void note_write(Range range);
  /// Makes `at` a boundary of intervals; returns the first interval at or after it.
  Uses::iterator split(std::size_t at);
  void depend(Schedule::Index on);
  [[nodiscard]] Schedule::Index next() const noexcept {
    return static_cast<Schedule::Index>(schedule_.operations.size());
  }
  [[nodiscard]] Range piece_of(Range range, std::size_t index) const noexcept;

  Schedule schedule_;
  std::size_t piece_;
  Uses uses_;
};

}  // namespace paceline
