// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule_builder.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace paceline {

ScheduleBuilder::ScheduleBuilder(int rank, int world, std::size_t count, std::size_t piece)
    : piece_(piece > 0 ? piece : std::numeric_limits<std::size_t>::max()) {
  schedule_.rank = rank;
  schedule_.world = world;
  schedule_.count = count;
}

std::size_t ScheduleBuilder::add_scratch(std::size_t elements) {
  const std::size_t begin = schedule_.count + schedule_.scratch;
  schedule_.scratch += elements;
  return begin;
}

Range ScheduleBuilder::piece_of(Range range, std::size_t index) const noexcept {
  if (range.size() <= piece_) {
    return index == 0 ? range : Range{range.end, range.end};
  }
  const std::size_t begin = std::min(range.end, range.begin + index * piece_);
  return {begin, begin + std::min(piece_, range.end - begin)};
}

void ScheduleBuilder::for_pieces(Range range, const std::function<void(Range)>& visit) const {
  std::size_t index = 0;
  for (Range piece = piece_of(range, 0); piece.size() > 0; piece = piece_of(range, ++index)) {
    visit(piece);
  }
}

void ScheduleBuilder::send(int peer, Range range) {
  for_pieces(range, [&](Range piece) { append({OperationKind::send, false, peer, piece, 0}); });
}

void ScheduleBuilder::receive(int peer, Range range, bool add) {
  for_pieces(range, [&](Range piece) { append({OperationKind::receive, add, peer, piece, 0}); });
}

void ScheduleBuilder::exchange(int to, Range sent, int from, Range received, bool add) {
  std::size_t index = 0;
  while (true) {
    const Range out = piece_of(sent, index);
    const Range in = piece_of(received, index);
    if (out.size() == 0 && in.size() == 0) {
      return;
    }
    send(to, out);
    receive(from, in, add);
    ++index;
  }
}

void ScheduleBuilder::local(Range range, std::size_t source, bool add) {
  for_pieces(range, [&](Range piece) {
    append({OperationKind::local, add, schedule_.rank, piece, source + piece.begin - range.begin});
  });
}

void ScheduleBuilder::append(Operation operation) {
  schedule_.first_dependency.push_back(static_cast<Schedule::Index>(schedule_.dependencies.size()));
  if (operation.kind == OperationKind::local) {
    note_read({operation.source, operation.source + operation.range.size()});
  }
  if (operation.kind == OperationKind::send) {
    note_read(operation.range);
  } else {
    note_write(operation.range);
  }
  schedule_.operations.push_back(operation);
}

ScheduleBuilder::Uses::iterator ScheduleBuilder::split(std::size_t at) {
  auto after = uses_.lower_bound(at);
  if (after != uses_.begin()) {
    const auto before = std::prev(after);
    if (before->second.end > at) {
      Use tail = before->second;
      before->second.end = at;
      after = uses_.emplace_hint(after, at, std::move(tail));
    }
  }
  return after;
}

void ScheduleBuilder::note_read(Range range) {
  auto use = split(range.begin);
  split(range.end);
  std::size_t at = range.begin;
  while (at < range.end) {
    if (use == uses_.end() || use->first > at) {
      const std::size_t end = use == uses_.end() ? range.end : std::min(range.end, use->first);
      use = uses_.emplace_hint(use, at, Use{end, false, 0, {}});
    }
    if (use->second.written) {
      depend(use->second.writer);
    }
    use->second.readers.push_back(next());
    at = use->second.end;
    ++use;
  }
}

void ScheduleBuilder::note_write(Range range) {
  const auto first = split(range.begin);
  split(range.end);
  auto use = first;
  for (; use != uses_.end() && use->first < range.end; ++use) {
    if (use->second.readers.empty()) {
      depend(use->second.writer);
    }
    for (const Schedule::Index reader : use->second.readers) {
      if (reader != next()) {
        depend(reader);
      }
    }
  }
  uses_.erase(first, use);
  uses_[range.begin] = Use{range.end, true, next(), {}};
}

void ScheduleBuilder::depend(Schedule::Index on) {
  const auto mine = schedule_.dependencies.begin() +
                    static_cast<std::ptrdiff_t>(schedule_.first_dependency.back());
  if (std::find(mine, schedule_.dependencies.end(), on) == schedule_.dependencies.end()) {
    schedule_.dependencies.push_back(on);
  }
}

Schedule ScheduleBuilder::finish() {
  schedule_.first_dependency.push_back(static_cast<Schedule::Index>(schedule_.dependencies.size()));
  uses_.clear();
  return std::move(schedule_);
}

}  // namespace paceline
