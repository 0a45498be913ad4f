// SPDX-License-Identifier: Apache-2.0
// Checks the schedules of all ranks of a collective without any I/O, and runs them on values in
// memory. Sends are rendezvous: one completes only together with its receive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ring/schedule.h"

namespace paceline {

/// Finds which operations can run next, keeping to the schedule's rules. For one thread.
class ScheduleStepper {
 public:
  /// `schedules[r]` is rank r's; they outlive this.
  explicit ScheduleStepper(std::span<const Schedule> schedules);

  /// Calls on_local(rank, operation) and on_message(sender, send, receiver, receive) for each
  /// operation in an order that the dependencies allow. Returns an empty string, or what is wrong:
  /// a mismatched message, a wait that never ends.
  template <typename OnLocal, typename OnMessage>
  std::string run(OnLocal on_local, OnMessage on_message) {
    Step step;
    while (next(step)) {
      if (step.receiver < 0) {
        on_local(step.rank, operation(step.rank, step.index));
      } else {
        on_message(step.rank, operation(step.rank, step.index), step.receiver,
                   operation(step.receiver, step.receiver_index));
      }
    }
    return problem_;
  }

 private:
  struct Step {
    int rank = 0;
    Schedule::Index index = 0;
    int receiver = -1;  ///< -1: a local operation
    Schedule::Index receiver_index = 0;
  };
  struct Queue {
    std::vector<Schedule::Index> operations;
    std::size_t head = 0;
  };

  [[nodiscard]] const Operation& operation(int rank, Schedule::Index index) const {
    return schedules_[static_cast<std::size_t>(rank)].operations[index];
  }
  bool next(Step& step);
  bool try_message(int from, int to, Step& step);
  void complete(int rank, Schedule::Index index);
  void ready(int rank, Schedule::Index index);
  [[nodiscard]] Queue& queue(std::vector<Queue>& queues, int from, int to) {
    return queues[static_cast<std::size_t>(from) * schedules_.size() +
                  static_cast<std::size_t>(to)];
  }
  [[nodiscard]] std::string describe_stall() const;

  std::span<const Schedule> schedules_;
  std::vector<std::vector<Schedule::Index>> missing_;               ///< dependencies left
  std::vector<std::vector<std::vector<Schedule::Index>>> enables_;  ///< reverse dependencies
  std::vector<Queue> sends_;                                        ///< [from][to]
  std::vector<Queue> receives_;                                     ///< [from][to]
  std::vector<std::pair<int, Schedule::Index>> locals_;             ///< ready to run
  std::vector<std::pair<int, int>> pairs_;                          ///< that may have become ready
  std::size_t left_ = 0;
  std::string problem_;
};

/// Runs the schedules on values: memory[r] holds rank r's buffer and scratch, at least
/// count + scratch elements, and is changed in place. Returns what is wrong, or an empty string.
template <typename T>
std::string run_in_memory(std::span<const Schedule> schedules, std::span<std::vector<T>> memory) {
  const auto apply = [](std::vector<T>& to, const Operation& into, const std::vector<T>& from,
                        std::size_t source) {
    for (std::size_t i = 0; i < into.range.size(); ++i) {
      T& target = to[into.range.begin + i];
      const T& value = from[source + i];
      target = into.add ? target + value : value;
    }
  };
  ScheduleStepper stepper(schedules);
  return stepper.run(
      [&](int rank, const Operation& op) {
        auto& own = memory[static_cast<std::size_t>(rank)];
        apply(own, op, own, op.source);
      },
      [&](int sender, const Operation& send, int receiver, const Operation& receive) {
        apply(memory[static_cast<std::size_t>(receiver)], receive,
              memory[static_cast<std::size_t>(sender)], send.range.begin);
      });
}

/// Checks that the schedules of all ranks do the collective: every contribution reaches every
/// element it should exactly once; messages match; nothing waits forever; operations of a rank that
/// touch the same element (a receive into a range that is being sent, say) are ordered by
/// dependencies; ranges lie inside the memory. Returns what is wrong, or an empty string. Takes
/// memory and time proportional to world² · elements: for tests.
[[nodiscard]] std::string check_schedules(std::span<const Schedule> schedules, CollectiveKind kind);

}  // namespace paceline
