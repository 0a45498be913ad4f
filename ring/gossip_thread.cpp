// SPDX-License-Identifier: Apache-2.0
#include "ring/gossip_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/time.h"
#include "ring/peer_wait.h"

namespace paceline {

namespace {

constexpr std::byte kAverage{1};  ///< buckets follow
constexpr std::byte kRest{2};     ///< nothing follows until all ranks have shown their mean

}  // namespace

GossipThread::GossipThread(const Place& place)
    : config_(place.config),
      replica_(place.replica),
      weights_(place.weights),
      stop_(place.stop),
      abort_(place.abort),
      rank_(replica_.transport().rank()),
      graph_(parse_gossip_graph(config_.gossip.graph)),
      neighbours_(gossip_neighbours(graph_, rank_, config_.world)),
      messages_(neighbours_.size()),
      travelling_(replica_.transport().allocate(replica_.plan().elements() * sizeof(float))),
      thread_([this] { loop(); }) {}

GossipThread::~GossipThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_.store(true);
  }
  changed_.notify_all();
  thread_.join();
  replica_.transport().leave();  // before travelling_ goes
}

// ---- Training thread

void GossipThread::check_error() const {
  if (error_) {
    std::rethrow_exception(error_);
  }
}

template <typename Done>
void GossipThread::block_until(Done done) {
  std::unique_lock lock(mutex_);
  while (true) {
    check_error();
    if (done()) {
      return;
    }
    abort_.check();
    changed_.wait_for(lock, kAbortPollInterval);
  }
}

void GossipThread::check() {
  const std::scoped_lock lock(mutex_);
  check_error();
}

void GossipThread::begin_step() {
  {
    const std::scoped_lock lock(mutex_);
    check_error();
    awake_ = true;
  }
  changed_.notify_all();
}

void GossipThread::want_averaging() {
  {
    const std::scoped_lock lock(mutex_);
    check_error();
    wanted_ = true;
  }
  changed_.notify_all();
}

void GossipThread::wait_averaged() {
  block_until([&] { return !wanted_ && !averaging_; });
}

void GossipThread::show() {
  {
    const std::scoped_lock lock(mutex_);
    check_error();
    awake_ = true;
    showing_ = true;
  }
  changed_.notify_all();
  block_until([&] { return !showing_; });
}

StepReport GossipThread::report() {
  const std::scoped_lock lock(mutex_);
  check_error();
  StepReport report;
  report.communication_s = seconds(std::exchange(communication_ns_, 0));
  report.bytes_sent = bytes_total_ - std::exchange(bytes_reported_, bytes_total_);
  report.transfers = std::exchange(transfers_, {});
  return report;
}

std::int64_t GossipThread::begun() {
  const std::scoped_lock lock(mutex_);
  return begun_;
}

void GossipThread::set_begun(std::int64_t averagings) {
  const std::scoped_lock lock(mutex_);
  begun_ = averagings;
}

// ---- Communication thread

void GossipThread::loop() {
  try {
    while (calls() ? work_as_caller() : work_as_callee()) {
    }
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    error_ = std::current_exception();
  }
  changed_.notify_all();
}

/// False: stopped.
template <typename Ready>
bool GossipThread::sleep_until(Ready ready) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_.load() || ready(); });
  return !stop_.load();
}

bool GossipThread::work_as_caller() {
  if (!sleep_until([&] { return wanted_ || showing_; })) {
    return false;
  }
  std::unique_lock lock(mutex_);
  if (wanted_) {
    wanted_ = false;
    averaging_ = true;
    const std::int64_t call = begun_++;
    lock.unlock();
    average_with(gossip_callee(graph_, config_.seed, call, rank_, config_.world));
    lock.lock();
    averaging_ = false;
  } else {
    lock.unlock();
    rest();
    show_mean();
    lock.lock();
    showing_ = false;
  }
  changed_.notify_all();
  return true;
}

bool GossipThread::work_as_callee() {
  if (!sleep_until([&] { return awake_; })) {
    return false;
  }
  answer_until_all_rest();
  if (!sleep_until([&] { return showing_; })) {
    return false;
  }
  show_mean();
  {
    const std::scoped_lock lock(mutex_);
    showing_ = false;
    awake_ = false;
  }
  changed_.notify_all();
  return true;
}

void GossipThread::wait(const Ticket& ticket) {
  wait_for_peer(replica_.transport(), ticket, config_.comm.timeout, stop_, "exchange weights");
}

std::span<float> GossipThread::travelling(BucketId b) const {
  const Range range = replica_.plan()[b];
  return std::span(reinterpret_cast<float*>(travelling_->bytes().data()),
                   replica_.plan().elements())
      .subspan(range.begin, range.size());
}

/// Updates that this rank applies meanwhile stay on top of the average.
void GossipThread::average_with(int peer) {
  Transport& transport = replica_.transport();
  const BucketId last = replica_.plan().count() - 1;
  const std::int64_t begin = now_ns();
  std::vector<Ticket> tickets(static_cast<std::size_t>(replica_.plan().count()));
  messages_.front() = kAverage;
  const Ticket call = transport.isend(peer, std::span(messages_).first(1));
  for (BucketId b = last; b >= 0; --b) {
    weights_.copy(b, travelling(b));
    tickets[static_cast<std::size_t>(b)] = transport.isend(peer, std::as_bytes(travelling(b)));
  }
  wait(call);
  for (BucketId b = last; b >= 0; --b) {
    Ticket& ticket = tickets[static_cast<std::size_t>(b)];
    wait(ticket);  // until then the memory is not free for the answer
    ticket = transport.irecv(peer, std::as_writable_bytes(travelling(b)), Arrival::copy());
  }
  std::int64_t since = begin;
  for (BucketId b = last; b >= 0; --b) {
    wait(tickets[static_cast<std::size_t>(b)]);
    weights_.add(b, travelling(b));
    note_bucket(b, since);
  }
  note_averaging(begin);
}

void GossipThread::rest() {
  std::vector<Ticket> told;
  std::ranges::fill(messages_, kRest);
  for (std::size_t i = 0; i < neighbours_.size(); ++i) {
    told.push_back(replica_.transport().isend(neighbours_[i], std::span(messages_).subspan(i, 1)));
  }
  std::ranges::for_each(told, [&](const Ticket& ticket) { wait(ticket); });
}

Ticket GossipThread::listen(std::size_t neighbour) {
  return replica_.transport().irecv(neighbours_[neighbour],
                                    std::span(messages_).subspan(neighbour, 1), Arrival::copy());
}

/// While this rank trains there is no limit to how long nobody calls; once it only waits for the
/// others to end their steps, the usual one holds.
void GossipThread::answer_until_all_rest() {
  Transport& transport = replica_.transport();
  const auto waits = [&] {
    const std::scoped_lock lock(mutex_);
    return showing_;
  };
  std::vector<std::optional<Ticket>> calls;  // none: that neighbour rests
  for (std::size_t i = 0; i < neighbours_.size(); ++i) {
    calls.emplace_back(listen(i));
  }
  Deadline deadline = Deadline::after(config_.comm.timeout);
  while (std::ranges::any_of(calls, [](const auto& call) { return call.has_value(); })) {
    if (stop_.load(std::memory_order_relaxed)) {
      throw Stopped();
    }
    if (const std::optional<std::size_t> caller = next_call(calls)) {
      calls[*caller].reset();
      if (messages_[*caller] == kAverage) {
        answer(neighbours_[*caller]);
        calls[*caller] = listen(*caller);
      }
    } else if (!transport.progress()) {
      if (!waits()) {
        deadline = Deadline::after(config_.comm.timeout);
      } else if (deadline.passed()) {
        throw TimeoutError(who_is_missing(calls));
      }
      transport.idle(deadline);
      continue;
    }
    deadline = Deadline::after(config_.comm.timeout);
  }
}

std::string GossipThread::who_is_missing(const std::vector<std::optional<Ticket>>& calls) const {
  const auto missing =
      std::ranges::find_if(calls, [](const auto& call) { return call.has_value(); });
  return fmt::format(
      "rank {}: rank {} neither averaged nor ended its steps within {:.1f} s "
      "(comm.timeout)",
      rank_, (*missing)->peer, seconds(config_.comm.timeout.count()));
}

/// A neighbour whose message is here; each in turn, so that none is served twice while another
/// waits. Throws Error for a message that is none of ours.
std::optional<std::size_t> GossipThread::next_call(
    const std::vector<std::optional<Ticket>>& calls) {
  for (std::size_t k = 0; k < calls.size(); ++k) {
    const std::size_t i = (first_asked_ + k) % calls.size();
    if (!calls[i] || !replica_.transport().done(*calls[i])) {
      continue;
    }
    if (messages_[i] != kAverage && messages_[i] != kRest) {
      throw Error(fmt::format("rank {}: rank {} calls with the unknown message {}", rank_,
                              neighbours_[i], static_cast<int>(messages_[i])));
    }
    first_asked_ = i + 1;
    return i;
  }
  return std::nullopt;
}

void GossipThread::answer(int peer) {
  Transport& transport = replica_.transport();
  const BucketId last = replica_.plan().count() - 1;
  const std::int64_t begin = now_ns();
  std::vector<Ticket> tickets(static_cast<std::size_t>(replica_.plan().count()));
  for (BucketId b = last; b >= 0; --b) {
    tickets[static_cast<std::size_t>(b)] =
        transport.irecv(peer, std::as_writable_bytes(travelling(b)), Arrival::copy());
  }
  std::int64_t since = begin;
  for (BucketId b = last; b >= 0; --b) {
    Ticket& ticket = tickets[static_cast<std::size_t>(b)];
    wait(ticket);
    weights_.meet(b, travelling(b));
    ticket = transport.isend(peer, std::as_bytes(travelling(b)));
    note_bucket(b, since);
  }
  std::ranges::for_each(tickets, [&](const Ticket& ticket) { wait(ticket); });
  note_averaging(begin);
}

void GossipThread::show_mean() {
  const float share = 1.0F / static_cast<float>(config_.world);
  const std::int64_t begin = now_ns();
  for (BucketId b = replica_.plan().count() - 1; b >= 0; --b) {
    const std::span<float> mean = replica_.viewed(b);
    weights_.copy(b, mean);
    for (float& w : mean) {
      w *= share;
    }
    replica_.sum(mean);
  }
  note_averaging(begin);
}

void GossipThread::note_bucket(BucketId b, std::int64_t& begin_ns) {
  const std::int64_t begin = std::exchange(begin_ns, now_ns());
  const std::scoped_lock lock(mutex_);
  transfers_.push_back({b, begin, begin_ns});
}

void GossipThread::note_averaging(std::int64_t begin_ns) {
  const std::scoped_lock lock(mutex_);
  communication_ns_ += now_ns() - begin_ns;
  bytes_total_ = replica_.transport().bytes_sent();
}

}  // namespace paceline
