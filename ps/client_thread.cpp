// SPDX-License-Identifier: Apache-2.0
// The communication thread of PsClient: sends what was posted, installs what comes back.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/error.h"
#include "common/base/half.h"
#include "ps/client.h"

namespace paceline {

namespace {
constexpr Nanoseconds kGoodbyeLinger = std::chrono::seconds(1);
}

void PsClient::run() noexcept {
  const auto transmit = [this](const Outgoing& message) {
    return mailbox_->send(message.peer, message.header, message.payload);
  };
  try {
    std::vector<int> fds = mailbox_->fds();
    fds.push_back(wakeup_.fd());
    while (true) {
      {
        const std::scoped_lock lock(mutex_);
        if (stop_) {
          break;
        }
      }
      setup_.abort->check();
      bool busy = take_requests();
      const std::int64_t again = sender_.pump(now_ns(), transmit);
      busy = receive() || busy;
      busy = install_arrived() || busy;
      if (!busy) {
        wait_readable(fds, std::min(again, arrivals_.next_arrival()));
      }
    }
    say_goodbye();
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
  // Sockets die on the thread that used them.
  mailbox_.reset();
}

bool PsClient::take_requests() {
  std::deque<Request> taken;
  {
    const std::scoped_lock lock(mutex_);
    wakeup_.clear();
    taken.swap(requests_);
  }
  if (!taken.empty() && busy_since_ns_ == 0) {
    busy_since_ns_ = now_ns();
  }
  const std::uint64_t before = sender_.bytes();
  for (Request& request : taken) {
    send(std::move(request));
  }
  if (!taken.empty()) {
    const std::scoped_lock lock(mutex_);
    report_.bytes_sent += sender_.bytes() - before;
  }
  return !taken.empty();
}

void PsClient::send(Request request) {
  Outgoing message;
  const std::size_t bytes = request.payload.size();
  if (request.kind == MessageKind::hello || request.kind == MessageKind::drain) {
    message.peer = static_cast<int>(request.target);
    message.header = state_.to_server(request.kind, message.peer, bytes);
  } else {
    const KeyRange& key = partition_.keys()[request.target];
    message.peer = key.server;
    message.priority = key.bucket;
    if (request.kind != MessageKind::push) {
      message.header = state_.about_key(request.kind, request.target, bytes);
    } else {
      message.header = codec_ ? state_.push_encoded(request.target, request.info, bytes)
                              : state_.push(request.target, request.info);
    }
  }
  message.payload = std::move(request.payload);
  sender_.enqueue(std::move(message));
}

bool PsClient::receive() {
  bool any = false;
  for (int server = 0; server < job_.servers; ++server) {
    // One message per server and turn: each is installed while the next one arrives.
    if (auto incoming = mailbox_->receive(server)) {
      any = true;
      if (!incoming->problem.empty()) {
        throw WireError(fmt::format("rank {}: server {} sent a bad message: {}", setup_.rank,
                                    server, incoming->problem));
      }
      arrivals_.put({server, incoming->header, std::move(incoming->payload)});
    }
  }
  return any;
}

bool PsClient::install_arrived() {
  bool any = false;
  while (const auto message = arrivals_.next(now_ns())) {
    any = true;
    install(*message);
  }
  return any;
}

void PsClient::install(const ArrivalQueue::Message& message) {
  const Header& header = message.header;
  state_.on_answer(message.peer, header, message.payload);
  if (header.kind == MessageKind::norms) {
    return on_norms(message);
  }
  if (header.kind == MessageKind::weights) {
    copy_weights(header, message.payload);
  }
  const std::int64_t now = now_ns();
  const std::scoped_lock lock(mutex_);
  if (open_[static_cast<std::size_t>(message.peer)] == 0) {
    throw WireError(
        fmt::format("rank {}: server {} answered what was not asked", setup_.rank, message.peer));
  }
  --open_[static_cast<std::size_t>(message.peer)];
  --open_total_;
  if (header.kind == MessageKind::state) {
    state_answer_.assign(message.payload.bytes().begin(), message.payload.bytes().end());
  }
  if (header.kind == MessageKind::weights && (header.flags & kFlagPulled) == 0) {
    Bucket& bucket = buckets_[static_cast<std::size_t>(partition_.keys()[header.key].bucket)];
    const auto held = static_cast<std::int64_t>(header.held_ns);
    bucket.outcome.held_ns = std::max(bucket.outcome.held_ns, held);
    held_in_busy_ns_ = std::max(held_in_busy_ns_, held);
    if (--bucket.open == 0) {
      bucket.outcome.end_ns = now;
    }
    if ((header.flags & kFlagRejected) == 0 && !skipping_) {
      bucket.outcome.applied = true;
      bucket.outcome.staleness =
          std::max(bucket.outcome.staleness, static_cast<std::int64_t>(header.staleness));
    }
  }
  if (open_total_ == 0) {
    report_.busy_ns += std::max<std::int64_t>(0, now - busy_since_ns_ - held_in_busy_ns_);
    busy_since_ns_ = 0;
    held_in_busy_ns_ = 0;
  }
  changed_.notify_all();
}

/// With the last key's norms, all keys' factors leave.
void PsClient::on_norms(const ArrivalQueue::Message& message) {
  const std::size_t key = message.header.key;
  if (!norms_) {
    throw WireError(fmt::format("rank {}: server {} sent norms that this job has no use for",
                                setup_.rank, message.peer));
  }
  if (!norms_->put(key, decode_norms(message.payload.bytes(), norms_->parts(key)),
                   message.header.samples)) {
    return;
  }
  const StepNorms::Result result = norms_->take();
  skipping_ = result.skip;
  const std::uint64_t before = sender_.bytes();
  for (std::size_t k = 0; k < result.factors.size(); ++k) {
    Outgoing apply;
    apply.peer = partition_.keys()[k].server;
    apply.priority = partition_.keys()[k].bucket;
    apply.payload = Payload::copy_of(encode_factors(result.factors[k]));
    apply.header = state_.apply(k, result.skip, apply.payload.size());
    sender_.enqueue(std::move(apply));
  }
  const std::scoped_lock lock(mutex_);
  report_.bytes_sent += sender_.bytes() - before;
  report_.skipped += result.skip ? 1 : 0;
}

/// Checked before: the payload holds the key's elements.
void PsClient::copy_weights(const Header& header, const Payload& payload) {
  const Range& range = partition_.keys()[header.key].arena;
  const std::span<float> to = weights_.subspan(range.begin, range.size());
  const std::span short_ones(reinterpret_cast<const std::uint16_t*>(payload.bytes().data()),
                             payload.size() / sizeof(std::uint16_t));
  if (header.dtype == DataType::f16) {
    from_half(short_ones, 1.0F, to);
  } else if (header.dtype == DataType::bf16) {
    from_bfloat(short_ones, 1.0F, to);
  } else {
    std::memcpy(to.data(), payload.bytes().data(), payload.size());
  }
}

void PsClient::say_goodbye() {
  for (int server = 0; server < job_.servers; ++server) {
    Outgoing goodbye;
    goodbye.peer = server;
    goodbye.header = state_.to_server(MessageKind::goodbye, server, 0);
    sender_.enqueue(std::move(goodbye));
  }
  sender_.pump(now_ns(), [this](const Outgoing& message) {
    return mailbox_->send(message.peer, message.header, message.payload);
  });
  mailbox_->set_linger(kGoodbyeLinger);
}

}  // namespace paceline
