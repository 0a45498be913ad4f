// SPDX-License-Identifier: Apache-2.0
#include "ring/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/comm/reduce.h"

namespace paceline {

CompiledSchedule::CompiledSchedule(Schedule schedule) : schedule_(std::move(schedule)) {
  const auto operations = static_cast<Schedule::Index>(schedule_.operations.size());
  std::map<std::pair<bool, int>, std::vector<Schedule::Index>> by_channel;  // receives first
  first_enabled_.assign(operations + 1U, 0);
  for (Schedule::Index i = 0; i < operations; ++i) {
    const Operation& op = schedule_.operations[i];
    if (op.kind != OperationKind::local) {
      // Each rank receives from the next ranks first and sends to the previous ones first, so that
      // not all serve the same one at a time.
      const bool is_send = op.kind == OperationKind::send;
      const int ahead = op.peer - schedule_.rank;
      const int distance = ((is_send ? -ahead : ahead) + schedule_.world) % schedule_.world;
      by_channel[{is_send, distance}].push_back(i);
    }
    missing_.push_back(static_cast<Schedule::Index>(schedule_.dependencies_of(i).size()));
    for (const Schedule::Index on : schedule_.dependencies_of(i)) {
      ++first_enabled_[on + 1U];
    }
  }
  for (const auto& [key, list] : by_channel) {
    const auto begin = static_cast<Schedule::Index>(channel_operations_.size());
    channel_operations_.insert(channel_operations_.end(), list.begin(), list.end());
    channels_.push_back({schedule_.operations[list.front()].peer, key.first, begin,
                         static_cast<Schedule::Index>(channel_operations_.size())});
  }
  for (Schedule::Index i = 0; i < operations; ++i) {
    first_enabled_[i + 1U] += first_enabled_[i];
  }
  enabled_.resize(schedule_.dependencies.size());
  std::vector<Schedule::Index> next(first_enabled_.begin(), first_enabled_.end() - 1);
  for (Schedule::Index i = 0; i < operations; ++i) {
    for (const Schedule::Index on : schedule_.dependencies_of(i)) {
      enabled_[next[on]++] = i;
    }
  }
}

Executor::Executor(Transport& transport, Nanoseconds timeout, const std::atomic<bool>* stop)
    : transport_(transport), timeout_(timeout), stop_(stop) {}

RunTimes Executor::run(const CompiledSchedule& plan, std::byte* buffer, std::byte* scratch,
                       DataType type, bool announce) {
  plan_ = &plan;
  buffer_ = buffer;
  scratch_ = scratch;
  type_ = type;
  RunTimes times;
  times.begin_ns = now_ns();
  start(announce);
  bool ready = !announce;
  while (left_ > 0) {
    const bool moved = transport_.progress();
    const bool advanced = advance();
    if (!ready && all_have_begun()) {
      ready = true;
      times.peers_ready_ns = now_ns();
    }
    if (moved || advanced) {
      stalled_since_ns_ = 0;
    } else {
      idle();
    }
  }
  while (!announced_.empty() && !all_have_begun()) {
    if (!transport_.progress()) {
      idle();
    }
  }
  times.end_ns = now_ns();
  times.last_to_begin = last_to_begin_;
  if (times.peers_ready_ns == 0) {
    times.peers_ready_ns = announce ? times.end_ns : times.begin_ns;
  }
  return times;
}

void Executor::start(bool announce) {
  const std::span<const Index> missing = plan_->missing();
  missing_.assign(missing.begin(), missing.end());
  tickets_.resize(std::max(tickets_.size(), missing.size()));
  progress_.resize(plan_->channels().size());
  for (std::size_t c = 0; c < progress_.size(); ++c) {
    progress_[c].done = progress_[c].posted = plan_->channels()[c].begin;
  }
  left_ = missing.size();
  stalled_since_ns_ = 0;
  locals_.clear();
  announced_.clear();
  last_to_begin_ = -1;
  if (announce && plan_->schedule().count > 0) {
    this->announce();
  }
  const std::vector<Operation>& operations = plan_->schedule().operations;
  for (Index i = 0; i < operations.size(); ++i) {
    if (missing_[i] == 0 && operations[i].kind == OperationKind::local) {
      locals_.push_back(i);
    }
  }
  run_locals();
  advance();
}

void Executor::announce() {
  for (int turn = 1; turn < transport_.size(); ++turn) {
    const int peer = (transport_.rank() + turn) % transport_.size();
    announced_.push_back(transport_.isend(peer, {}));
    announced_.push_back(transport_.irecv(peer, {}, Arrival::copy()));
  }
}

bool Executor::all_have_begun() {
  std::erase_if(announced_, [&](const Ticket& ticket) {
    const bool done = transport_.done(ticket);
    if (done && !ticket.is_send) {
      last_to_begin_ = ticket.peer;
    }
    return done;
  });
  return std::none_of(announced_.begin(), announced_.end(),
                      [](const Ticket& ticket) { return !ticket.is_send; });
}

bool Executor::advance() {
  bool moved = false;
  const std::span<const CompiledSchedule::Channel> channels = plan_->channels();
  for (std::size_t c = 0; c < channels.size(); ++c) {
    moved |= advance(channels[c], progress_[c]);
  }
  return moved;
}

bool Executor::advance(const CompiledSchedule::Channel& channel, Progress& progress) {
  const std::span<const Index> operations = plan_->channel_operations();
  bool moved = false;
  while (progress.done < progress.posted && transport_.done(tickets_[operations[progress.done]])) {
    complete(operations[progress.done++]);
    moved = true;
  }
  while (progress.posted < channel.end && missing_[operations[progress.posted]] == 0) {
    post(operations[progress.posted++]);
    moved = true;
  }
  return moved;
}

void Executor::post(Index operation) {
  const Operation& op = plan_->schedule().operations[operation];
  const std::span<std::byte> memory{at(op.range.begin), op.range.size() * size_of(type_)};
  if (op.kind == OperationKind::send) {
    tickets_[operation] = transport_.isend(op.peer, memory);
  } else {
    tickets_[operation] =
        transport_.irecv(op.peer, memory, op.add ? Arrival::sum(type_) : Arrival::copy());
  }
}

void Executor::complete(Index operation) {
  finish(operation);
  run_locals();
}

void Executor::finish(Index operation) {
  const std::vector<Operation>& operations = plan_->schedule().operations;
  --left_;
  for (const Index enabled : plan_->enabled_by(operation)) {
    if (--missing_[enabled] == 0 && operations[enabled].kind == OperationKind::local) {
      locals_.push_back(enabled);
    }
  }
}

void Executor::run_locals() {
  while (!locals_.empty()) {
    const Index next = locals_.back();
    locals_.pop_back();
    run_local(plan_->schedule().operations[next]);
    finish(next);
  }
}

void Executor::run_local(const Operation& operation) {
  const std::size_t bytes = operation.range.size() * size_of(type_);
  if (operation.add) {
    add_elements(at(operation.range.begin), at(operation.source), bytes, type_);
  } else {
    std::memcpy(at(operation.range.begin), at(operation.source), bytes);
  }
}

std::byte* Executor::at(std::size_t element) const noexcept {
  const std::size_t count = plan_->schedule().count;
  return element < count ? buffer_ + element * size_of(type_)
                         : scratch_ + (element - count) * size_of(type_);
}

void Executor::idle() {
  if (stop_ != nullptr && stop_->load(std::memory_order_relaxed)) {
    throw Stopped();
  }
  const std::int64_t now = now_ns();
  if (stalled_since_ns_ == 0) {
    stalled_since_ns_ = now;
  } else if (now - stalled_since_ns_ > timeout_.count()) {
    throw_timeout();
  }
  transport_.idle(Deadline::at_ns(stalled_since_ns_ + timeout_.count()));
}

void Executor::throw_timeout() const {
  // A receive is named before a send: who does not send is more likely the one that is stuck.
  for (std::size_t c = 0; c < progress_.size(); ++c) {
    const CompiledSchedule::Channel& channel = plan_->channels()[c];
    if (progress_[c].done < progress_[c].posted) {
      throw TimeoutError(fmt::format("rank {}: rank {} {} anything for {:.1f} s (comm.timeout)",
                                     transport_.rank(), channel.peer,
                                     channel.is_send ? "did not take" : "did not send",
                                     seconds(timeout_.count())));
    }
  }
  throw TimeoutError(fmt::format("rank {}: no peer began the collective within {:.1f} s",
                                 transport_.rank(), seconds(timeout_.count())));
}

}  // namespace paceline
