// SPDX-License-Identifier: Apache-2.0
#include "ps/server_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "ps/server_key.h"
#include "ps/state_blob.h"

namespace paceline {

ServerState::ServerState(const ServerIdentity& identity, std::unique_ptr<ApplyPolicy> policy,
                         ShardMaker make_shard)
    : identity_(identity),
      policy_(std::move(policy)),
      make_shard_(std::move(make_shard)),
      finished_(static_cast<std::size_t>(identity.world), false),
      drained_(finished_),
      drain_(finished_.size()),
      codec_(identity.format.codec()) {}

ServerState::~ServerState() = default;

void ServerState::on_message(const Header& header, Payload payload, std::int64_t now_ns,
                             std::vector<Outgoing>& out) {
  const std::size_t before = out.size();
  try {
    dispatch(header, std::move(payload), now_ns, out);
  } catch (const Error& error) {
    out.resize(before);
    Outgoing refusal;
    refusal.peer = static_cast<int>(header.worker);
    refusal.header = answer(MessageKind::error, header);
    refusal.payload = Payload::copy_of(std::string_view(error.what()));
    refusal.header.payload_bytes = refusal.payload.size();
    out.push_back(std::move(refusal));
  }
}

void ServerState::dispatch(const Header& header, Payload payload, std::int64_t now_ns,
                           std::vector<Outgoing>& out) {
  if (header.nonce != identity_.nonce) {
    throw WireError("the message belongs to another job");
  }
  if (header.worker >= finished_.size()) {
    throw WireError(
        fmt::format("rank {} is not among the {} workers", header.worker, finished_.size()));
  }
  if (header.kind != MessageKind::hello && !job_) {
    throw WireError(fmt::format("{} before any hello", to_string(header.kind)));
  }
  switch (header.kind) {
    case MessageKind::hello:
      return on_hello(header, payload, out);
    case MessageKind::init:
      return on_init(header, payload, out);
    case MessageKind::pull:
      return on_pull(header, out);
    case MessageKind::push:
      return on_push(header, std::move(payload), now_ns, out);
    case MessageKind::apply:
      return on_apply(header, std::move(payload), now_ns, out);
    case MessageKind::drain:
      return on_drain(header, now_ns, out);
    case MessageKind::state_get:
      return on_state_get(header, out);
    case MessageKind::state_put:
      return on_state_put(header, payload, out);
    case MessageKind::goodbye:
      return on_goodbye(header, now_ns, out);
    default:
      throw WireError(fmt::format("a worker does not send {}", to_string(header.kind)));
  }
}

void ServerState::on_hello(const Header& header, const Payload& payload,
                           std::vector<Outgoing>& out) {
  const JobDescription theirs = decode_job(payload.bytes());
  JobDescription ours = job_ ? *job_ : theirs;
  ours.world = identity_.world;
  ours.servers = identity_.servers;
  ours.rule = identity_.rule;
  ours.exact = identity_.exact;
  ours.format = identity_.format;
  if (const auto reason = difference(ours, theirs)) {
    throw WireError(fmt::format("rank {} is configured otherwise: {}", header.worker, *reason));
  }
  if (!job_) {
    begin_job(theirs);
  }
  out.push_back({static_cast<int>(header.worker), answer(MessageKind::welcome, header), {}, 0});
}

void ServerState::begin_job(const JobDescription& job) {
  partition_ = Partition(job.plan(), identity_.servers);
  whole_gradient_ = job.optimizer.whole_gradient() && waits_for_all(identity_.rule);
  std::vector<std::vector<KeyPart>> parts = cut_keys(partition_, job.tensors);
  keys_ = std::vector<std::unique_ptr<Key>>(partition_.count());
  std::vector<std::size_t> elements(keys_.size());
  for (std::size_t k = 0; k < keys_.size(); ++k) {
    const KeyRange& range = partition_.keys()[k];
    if (range.server == identity_.server) {
      elements[k] = range.elements();
      keys_[k] = std::make_unique<Key>(k, range, std::move(parts[k]), identity_.world);
      if (identity_.rule.compensation.variant == DelayCompensation::Variant::adaptive) {
        keys_[k]->mean_square.assign(range.elements(), 0.0F);
      }
    }
  }
  shard_ = make_shard_(job.optimizer, elements);
  job_ = job;
}

void ServerState::on_init(const Header& header, const Payload& payload,
                          std::vector<Outgoing>& out) {
  Key& key = key_of(header);
  if (key.ready) {
    throw WireError(fmt::format("key {} has its first weights already", header.key));
  }
  if (payload.size() != key.range.elements() * sizeof(float)) {
    throw WireError(fmt::format("init of key {} has {} bytes, want {}", header.key, payload.size(),
                                key.range.elements() * sizeof(float)));
  }
  shard_->set_weights(key.index, payload.floats());
  key.ready = true;
  keep_backups(key);
  out.push_back({static_cast<int>(header.worker), answer(MessageKind::ack, header), {}, 0});
  for (WorkerOfKey& worker : key.workers) {
    if (const auto pull = std::exchange(worker.pull, std::nullopt)) {
      on_pull(*pull, out);
    }
  }
}

void ServerState::on_pull(const Header& header, std::vector<Outgoing>& out) {
  Key& key = key_of(header);
  WorkerOfKey& worker = key.workers[header.worker];
  if (worker.waiting) {
    throw WireError(
        fmt::format("rank {} pulls key {} while its push is open", header.worker, header.key));
  }
  if (!key.ready) {
    worker.pull = header;
    return;
  }
  worker.pulled = key.version;
  Header reply = answer(MessageKind::weights, header);
  reply.flags = kFlagPulled;
  send_weights(key, reply, out);
}

void ServerState::on_push(const Header& header, Payload payload, std::int64_t now_ns,
                          std::vector<Outgoing>& out) {
  Key& key = key_of(header);
  WorkerOfKey& worker = key.workers[header.worker];
  if (!key.ready) {
    throw WireError(fmt::format("push to key {} before its first weights", header.key));
  }
  if (header.clock + 1 == worker.clock) {  // a duplicate: its answer may be under way or was lost
    if (!worker.waiting) {
      Header reply = answer(MessageKind::weights, header);
      reply.staleness = worker.staleness;
      reply.flags = worker.flags;
      worker.pulled = key.version;
      send_weights(key, reply, out);
    }
    return;
  }
  if (header.clock != worker.clock || worker.waiting) {
    throw WireError(fmt::format("rank {} pushes key {} at clock {}, its turn is {}", header.worker,
                                header.key, header.clock, worker.clock));
  }
  if (header.version > key.version || header.version != worker.pulled) {
    throw WireError(fmt::format("rank {} pushes key {} based on version {}, it was sent {}",
                                header.worker, header.key, header.version, worker.pulled));
  }
  check_push(key, header, payload);
  if (finished_[header.worker] || drained_[header.worker]) {
    throw WireError(fmt::format("rank {} pushes after it said that it was done", header.worker));
  }
  const Decision decision =
      policy_->on_push(static_cast<int>(header.worker), header.version, key.version);
  worker.push = header;
  worker.waiting = true;
  worker.arrived_ns = now_ns;
  worker.staleness = key.version - header.version;
  worker.flags = 0;
  ++worker.clock;
  if (decision.action == Decision::Action::hold) {
    worker.contributed = true;
    worker.gradient = std::move(payload);
  } else if (decision.action == Decision::Action::apply) {
    worker.gradient = std::move(payload);
    apply_one(key, header.worker, decision);
    worker.gradient = {};
  } else {
    worker.flags = kFlagRejected;
  }
  settle(key, now_ns, out);
}

/// Throws unless the payload is a gradient of the key, or a message of the job's codec, which is
/// moved to memory that codecs read from where it does not lie in such.
void ServerState::check_push(const Key& key, const Header& header, Payload& payload) const {
  const bool encoded = (header.flags & kFlagEncoded) != 0;
  const std::size_t n = key.range.elements();
  if (header.dtype != DataType::f32 || encoded != (codec_ != nullptr)) {
    throw WireError(fmt::format("push to key {} does not travel as {} does", header.key,
                                codec_ ? codec_->name() : "fp32"));
  }
  const std::size_t most = codec_ ? codec_->max_bytes(n) : n * sizeof(float);
  if (payload.size() > most || (!codec_ && payload.size() != most)) {
    throw WireError(fmt::format("push to key {} has {} bytes, want {}{}", header.key,
                                payload.size(), codec_ ? "at most " : "", most));
  }
  if (codec_) {
    if (reinterpret_cast<std::uintptr_t>(payload.bytes().data()) % alignof(std::uint64_t) != 0) {
      payload = Payload::copy_of(payload.bytes());
    }
    codec_->check(payload.bytes(),
                  identity_.format.context(header.step, key.range.arena.begin, header.samples,
                                           static_cast<int>(header.worker)),
                  n);
  }
}

void ServerState::on_state_get(const Header& header, std::vector<Outgoing>& out) {
  const Key& key = key_of(header);
  StateBlobWriter blob;
  blob.put("weights", shard_->weights(key.index));
  blob.put("version", static_cast<std::int64_t>(key.version));
  shard_->save_optimizer(key.index, blob);
  if (!key.mean_square.empty()) {
    blob.put("mean_square", std::span<const float>(key.mean_square));
  }
  Header reply = answer(MessageKind::state, header);
  reply.version = key.version;
  reply.payload_bytes = blob.bytes().size();
  out.push_back({static_cast<int>(header.worker), reply, Payload::copy_of(blob.bytes()), 0});
}

void ServerState::on_state_put(const Header& header, const Payload& payload,
                               std::vector<Outgoing>& out) {
  Key& key = key_of(header);
  if (std::any_of(key.workers.begin(), key.workers.end(),
                  [](const WorkerOfKey& worker) { return worker.waiting; })) {
    throw WireError(fmt::format("state of key {} is set while a push is open", header.key));
  }
  StateBlobReader blob(payload.bytes());
  const std::int64_t version = blob.get("version");
  if (version < 0) {
    throw WireError("state: version is negative");
  }
  std::vector<float> weights(key.range.elements());
  blob.get("weights", std::span(weights));
  shard_->load_optimizer(key.index, blob);
  if (!key.mean_square.empty()) {
    blob.get("mean_square", std::span<float>(key.mean_square));
  }
  shard_->set_weights(key.index, weights);
  key.short_weights = {};
  key.version = static_cast<std::uint64_t>(version);
  key.ready = true;
  keep_backups(key);
  out.push_back({static_cast<int>(header.worker), answer(MessageKind::ack, header), {}, 0});
}

ServerState::Key& ServerState::key_of(const Header& header) {
  if (header.key >= keys_.size() || !keys_[header.key]) {
    throw WireError(fmt::format("server {} does not own key {}", identity_.server, header.key));
  }
  return *keys_[header.key];
}

Header ServerState::answer(MessageKind kind, const Header& to) const {
  Header header;
  header.kind = kind;
  header.worker = to.worker;
  header.server = static_cast<std::uint32_t>(identity_.server);
  header.key = to.key;
  header.nonce = identity_.nonce;
  header.clock = to.clock;
  return header;
}

bool ServerState::finished() const noexcept {
  return std::all_of(finished_.begin(), finished_.end(), [](bool done) { return done; });
}

std::uint64_t ServerState::version(std::size_t key) const {
  return keys_.at(key)->version;
}

std::span<const float> ServerState::weights(std::size_t key) const {
  return shard_->weights(key);
}

MemoryUse ServerState::memory() const {
  MemoryUse use = shard_ ? shard_->memory() : MemoryUse{};
  use.staging += short_bytes_->load(std::memory_order_relaxed);
  for (const auto& key : keys_) {
    if (key) {
      use.optimizer += key->mean_square.size() * sizeof(float);
      use.staging += key->sum.size() * sizeof(float);
    }
  }
  return use;
}

}  // namespace paceline
