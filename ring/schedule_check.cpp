// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/sync/reduction_order.h"

namespace paceline {

ScheduleStepper::ScheduleStepper(std::span<const Schedule> schedules)
    : schedules_(schedules),
      missing_(schedules.size()),
      enables_(schedules.size()),
      sends_(schedules.size() * schedules.size()),
      receives_(schedules.size() * schedules.size()) {
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    const Schedule& schedule = schedules[r];
    const auto operations = static_cast<Schedule::Index>(schedule.operations.size());
    const int rank = static_cast<int>(r);
    left_ += operations;
    enables_[r].resize(operations);
    for (Schedule::Index i = 0; i < operations; ++i) {
      const Operation& op = schedule.operations[i];
      missing_[r].push_back(static_cast<Schedule::Index>(schedule.dependencies_of(i).size()));
      for (const Schedule::Index on : schedule.dependencies_of(i)) {
        enables_[r][on].push_back(i);
      }
      if (op.kind == OperationKind::send) {
        queue(sends_, rank, op.peer).operations.push_back(i);
      } else if (op.kind == OperationKind::receive) {
        queue(receives_, op.peer, rank).operations.push_back(i);
      }
    }
    for (Schedule::Index i = 0; i < operations; ++i) {
      if (missing_[r][i] == 0) {
        ready(rank, i);
      }
    }
  }
}

void ScheduleStepper::ready(int rank, Schedule::Index index) {
  const Operation& op = operation(rank, index);
  switch (op.kind) {
    case OperationKind::local:
      locals_.emplace_back(rank, index);
      break;
    case OperationKind::send:
      pairs_.emplace_back(rank, op.peer);
      break;
    case OperationKind::receive:
      pairs_.emplace_back(op.peer, rank);
      break;
  }
}

void ScheduleStepper::complete(int rank, Schedule::Index index) {
  --left_;
  const auto r = static_cast<std::size_t>(rank);
  for (const Schedule::Index enabled : enables_[r][index]) {
    if (--missing_[r][enabled] == 0) {
      ready(rank, enabled);
    }
  }
}

bool ScheduleStepper::try_message(int from, int to, Step& step) {
  Queue& sends = queue(sends_, from, to);
  Queue& receives = queue(receives_, from, to);
  if (sends.head == sends.operations.size() || receives.head == receives.operations.size()) {
    return false;
  }
  const Schedule::Index send = sends.operations[sends.head];
  const Schedule::Index receive = receives.operations[receives.head];
  if (missing_[static_cast<std::size_t>(from)][send] > 0 ||
      missing_[static_cast<std::size_t>(to)][receive] > 0) {
    return false;
  }
  const std::size_t sent = operation(from, send).range.size();
  const std::size_t expected = operation(to, receive).range.size();
  if (sent != expected) {
    problem_ = fmt::format("rank {} sends {} elements to rank {}, which expects {}", from, sent, to,
                           expected);
    return false;
  }
  ++sends.head;
  ++receives.head;
  step = {from, send, to, receive};
  pairs_.emplace_back(from, to);  // the next message of this pair may be ready already
  complete(from, send);
  complete(to, receive);
  return true;
}

bool ScheduleStepper::next(Step& step) {
  while (problem_.empty()) {
    if (!locals_.empty()) {
      step = {locals_.back().first, locals_.back().second, -1, 0};
      locals_.pop_back();
      complete(step.rank, step.index);
      return true;
    }
    if (pairs_.empty()) {
      break;
    }
    const auto [from, to] = pairs_.back();
    pairs_.pop_back();
    if (try_message(from, to, step)) {
      return true;
    }
  }
  if (problem_.empty() && left_ > 0) {
    problem_ = describe_stall();
  }
  return false;
}

std::string ScheduleStepper::describe_stall() const {
  for (std::size_t pair = 0; pair < sends_.size(); ++pair) {
    const std::size_t from = pair / schedules_.size();
    const std::size_t to = pair % schedules_.size();
    if (sends_[pair].head < sends_[pair].operations.size()) {
      return fmt::format("{} operations never run; rank {} still has a send to rank {}", left_,
                         from, to);
    }
    if (receives_[pair].head < receives_[pair].operations.size()) {
      return fmt::format("{} operations never run; rank {} still expects a message from rank {}",
                         left_, to, from);
    }
  }
  return fmt::format("{} local operations never run", left_);
}

namespace {

/// How often each rank's contribution is in a sum.
struct Contributions {
  std::vector<std::uint8_t> of_rank;
  Contributions operator+(const Contributions& other) const {
    Contributions sum = *this;
    sum.of_rank.resize(std::max(of_rank.size(), other.of_rank.size()));
    for (std::size_t r = 0; r < other.of_rank.size(); ++r) {
      const int total = sum.of_rank[r] + other.of_rank[r];
      sum.of_rank[r] = static_cast<std::uint8_t>(std::min(total, 255));
    }
    return sum;
  }
};

/// The operations that each operation comes after, as bits.
class Order {
 public:
  explicit Order(const Schedule& schedule)
      : words_((schedule.operations.size() + 63) / 64), bits_(words_ * schedule.operations.size()) {
    for (Schedule::Index i = 0; i < schedule.operations.size(); ++i) {
      for (const Schedule::Index on : schedule.dependencies_of(i)) {
        for (std::size_t w = 0; w < words_; ++w) {
          bits_[i * words_ + w] |= bits_[on * words_ + w];
        }
        bits_[i * words_ + on / 64] |= std::uint64_t{1} << (on % 64);
      }
    }
  }
  [[nodiscard]] bool after(Schedule::Index later, Schedule::Index earlier) const {
    return ((bits_[later * words_ + earlier / 64] >> (earlier % 64)) & 1) != 0;
  }

 private:
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
};

/// Whether any two operations that touch an element, one of them writing, are ordered.
class HazardCheck {
 public:
  explicit HazardCheck(const Schedule& schedule)
      : schedule_(schedule), order_(schedule), elements_(schedule.count + schedule.scratch) {}

  std::string operator()() {
    for (index_ = 0; index_ < schedule_.operations.size(); ++index_) {
      const Operation& op = schedule_.operations[index_];
      const Range read{op.source, op.source + op.range.size()};
      const bool local = op.kind == OperationKind::local;
      if (op.range.size() == 0 || op.range.end > elements_.size() ||
          (local && read.end > elements_.size()) ||
          (!local && (op.peer < 0 || op.peer >= schedule_.world || op.peer == schedule_.rank))) {
        return fmt::format("rank {}: operation {} is out of bounds", schedule_.rank, index_);
      }
      for (const Schedule::Index on : schedule_.dependencies_of(index_)) {
        if (on >= index_) {
          return fmt::format("rank {}: operation {} depends on a later one", schedule_.rank,
                             index_);
        }
      }
      if (local) {
        touch(read, false);
      }
      touch(op.range, op.kind != OperationKind::send);
      if (!problem_.empty()) {
        return problem_;
      }
    }
    return {};
  }

 private:
  struct Element {
    bool written = false;
    Schedule::Index writer = 0;
    std::vector<Schedule::Index> readers;
  };

  void touch(Range range, bool write) {
    for (std::size_t e = range.begin; e < range.end; ++e) {
      Element& element = elements_[e];
      if (element.written && element.writer != index_) {
        require(element.writer, e);
      }
      if (write) {
        for (const Schedule::Index reader : element.readers) {
          if (reader != index_) {
            require(reader, e);
          }
        }
        element = {true, index_, {}};
      } else {
        element.readers.push_back(index_);
      }
    }
  }

  void require(Schedule::Index earlier, std::size_t element) {
    if (!order_.after(index_, earlier)) {
      problem_ = fmt::format("rank {}: operations {} and {} both touch element {} in no order",
                             schedule_.rank, earlier, index_, element);
    }
  }

  const Schedule& schedule_;
  Order order_;
  std::vector<Element> elements_;
  Schedule::Index index_ = 0;
  std::string problem_;
};

bool expected(CollectiveKind kind, int world, int contributor, int chunk) {
  return kind != CollectiveKind::allgather || contributor == chunk || world == 1;
}

std::string check_contributions(std::span<const Schedule> schedules, CollectiveKind kind) {
  const auto world = static_cast<int>(schedules.size());
  std::vector<std::vector<Contributions>> memory(schedules.size());
  for (std::size_t r = 0; r < schedules.size(); ++r) {
    memory[r].resize(schedules[r].count + schedules[r].scratch);
    for (std::size_t e = 0; e < schedules[r].count; ++e) {
      memory[r][e].of_rank.resize(schedules.size());
      memory[r][e].of_rank[r] = 1;
    }
  }
  if (std::string problem = run_in_memory<Contributions>(schedules, memory); !problem.empty()) {
    return problem;
  }
  for (int rank = 0; rank < world; ++rank) {
    const auto& mine = memory[static_cast<std::size_t>(rank)];
    const std::size_t count = schedules[static_cast<std::size_t>(rank)].count;
    for (int chunk = 0; chunk < world; ++chunk) {
      if (kind == CollectiveKind::reduce_scatter && chunk != rank) {
        continue;
      }
      const Range range = ring_chunk(count, world, chunk);
      for (std::size_t e = range.begin; e < range.end; ++e) {
        for (int from = 0; from < world; ++from) {
          const int times = mine[e].of_rank[static_cast<std::size_t>(from)];
          if (times != (expected(kind, world, from, chunk) ? 1 : 0)) {
            return fmt::format("rank {}: element {} holds rank {}'s contribution {} times", rank, e,
                               from, times);
          }
        }
      }
    }
  }
  return {};
}

}  // namespace

std::string check_schedules(std::span<const Schedule> schedules, CollectiveKind kind) {
  for (const Schedule& schedule : schedules) {
    if (std::string problem = HazardCheck(schedule)(); !problem.empty()) {
      return problem;
    }
  }
  return check_contributions(schedules, kind);
}

}  // namespace paceline
