// SPDX-License-Identifier: Apache-2.0
// How ServerState decides who may go on, answers them, and ends a run: clocks, drains, goodbyes.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/half.h"
#include "ps/server_key.h"

namespace paceline {

namespace {
constexpr std::uint64_t kInfiniteClock = std::numeric_limits<std::uint64_t>::max();

/// `alive` counts the bytes until the payload's last copy is gone.
Payload to_sixteen_bits(std::span<const float> weights, DataType type,
                        const std::shared_ptr<std::atomic<std::size_t>>& alive) {
  const std::size_t bytes = weights.size() * sizeof(std::uint16_t);
  alive->fetch_add(bytes, std::memory_order_relaxed);
  const std::shared_ptr<std::uint16_t[]> memory(
      new std::uint16_t[weights.size()], [alive, bytes](const std::uint16_t* values) {
        delete[] values;
        alive->fetch_sub(bytes, std::memory_order_relaxed);
      });
  const std::span out(memory.get(), weights.size());
  if (type == DataType::f16) {
    to_half(weights, 1.0F, out);
  } else {
    to_bfloat(weights, 1.0F, out);
  }
  return {std::as_bytes(out), memory};
}

}  // namespace

/// Whether others wait for this worker: one that is done has an infinite clock.
bool ServerState::counts(std::size_t worker) const {
  return !finished_[worker] && !drained_[worker];
}

std::uint64_t ServerState::slowest(const Key& key) const {
  std::uint64_t least = kInfiniteClock;
  for (std::size_t w = 0; w < key.workers.size(); ++w) {
    if (counts(w)) {
      least = std::min(least, key.workers[w].round());
    }
  }
  return least;
}

void ServerState::settle(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out) {
  fold_if_complete(key, now_ns, out);
  release(key, now_ns, out);
}

/// Answers every push whose worker may go on.
void ServerState::release(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out) {
  const std::uint64_t least = slowest(key);
  for (std::size_t w = 0; w < key.workers.size(); ++w) {
    WorkerOfKey& worker = key.workers[w];
    if (!worker.waiting || worker.contributed ||
        !policy_->may_pull(static_cast<int>(w), worker.round(), least)) {
      continue;
    }
    worker.waiting = false;
    worker.pulled = key.version;
    Header reply = answer(MessageKind::weights, worker.push);
    reply.staleness = worker.staleness;
    reply.flags = worker.flags;
    const std::int64_t held = whole_gradient_ ? worker.held_ns : now_ns - worker.arrived_ns;
    reply.held_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(0, held));
    send_weights(key, reply, out);
  }
}

/// The newest weights in the elements that answer a push.
Payload ServerState::answer_weights(Key& key) const {
  const DataType type = identity_.format.weights();
  if (type == DataType::f32) {
    return shard_->share(key.index);
  }
  if (key.short_weights.empty()) {
    key.short_weights = to_sixteen_bits(shard_->weights(key.index), type, short_bytes_);
  }
  return key.short_weights;
}

/// All workers start from these weights, asked for or not.
void ServerState::keep_backups(Key& key) const {
  if (!identity_.rule.compensation.on()) {
    return;
  }
  for (WorkerOfKey& worker : key.workers) {
    worker.backup = answer_weights(key);
  }
}

/// In fp32 where they answer a pull, else as the job's format says.
void ServerState::send_weights(Key& key, Header header, std::vector<Outgoing>& out) const {
  const bool pulled = (header.flags & kFlagPulled) != 0;
  header.dtype = pulled ? DataType::f32 : identity_.format.weights();
  Payload payload = pulled ? shard_->share(key.index) : answer_weights(key);
  if (identity_.rule.compensation.on()) {
    key.workers[header.worker].backup = pulled ? answer_weights(key) : payload;
  }
  header.version = key.version;
  header.payload_bytes = payload.size();
  out.push_back({static_cast<int>(header.worker), header, std::move(payload), key.range.bucket});
}

/// When the last live worker has drained, all start again from equal clocks.
void ServerState::ack_drains(std::vector<Outgoing>& out) {
  for (std::size_t w = 0; w < finished_.size(); ++w) {
    if (counts(w)) {
      return;
    }
  }
  for (const auto& key : keys_) {
    if (key) {
      for (WorkerOfKey& worker : key->workers) {
        worker.base = worker.clock;
      }
    }
  }
  for (std::size_t w = 0; w < finished_.size(); ++w) {
    if (drained_[w]) {
      drained_[w] = false;
      out.push_back({static_cast<int>(w), answer(MessageKind::ack, drain_[w]), {}, 0});
    }
  }
}

void ServerState::on_drain(const Header& header, std::int64_t now_ns, std::vector<Outgoing>& out) {
  const std::size_t w = header.worker;
  for (const auto& key : keys_) {
    if (key && key->workers[w].waiting) {
      throw WireError(
          fmt::format("rank {} drains while its push of key {} is open", w, key->index));
    }
  }
  drained_[w] = true;
  drain_[w] = header;
  for (const auto& key : keys_) {
    if (key) {
      settle(*key, now_ns, out);
    }
  }
  ack_drains(out);
}

void ServerState::on_goodbye(const Header& header, std::int64_t now_ns,
                             std::vector<Outgoing>& out) {
  const std::size_t w = header.worker;
  finished_[w] = true;
  for (const auto& key : keys_) {
    if (key) {
      key->workers[w].waiting = false;
      key->workers[w].agreed = false;
      key->workers[w].pull.reset();
      key->workers[w].backup = {};
      settle(*key, now_ns, out);
    }
  }
  ack_drains(out);
}

}  // namespace paceline
