// SPDX-License-Identifier: Apache-2.0
#include "ps/client_state.h"

#include <fmt/format.h>

namespace paceline {

ClientState::ClientState(int worker, std::uint64_t nonce, const Partition& partition,
                         DataType weights)
    : worker_(worker),
      nonce_(nonce),
      partition_(partition),
      weights_(weights),
      keys_(partition.count()) {}

Header ClientState::to_server(MessageKind kind, int server, std::uint64_t payload_bytes) const {
  Header header;
  header.kind = kind;
  header.worker = static_cast<std::uint32_t>(worker_);
  header.server = static_cast<std::uint32_t>(server);
  header.nonce = nonce_;
  header.payload_bytes = payload_bytes;
  return header;
}

Header ClientState::about_key(MessageKind kind, std::size_t key,
                              std::uint64_t payload_bytes) const {
  Header header = to_server(kind, partition_.keys()[key].server, payload_bytes);
  header.key = static_cast<std::uint32_t>(key);
  header.clock = keys_[key].clock;
  header.version = keys_[key].version;
  return header;
}

Header ClientState::push(std::size_t key, const StepInfo& info) {
  Header header =
      about_key(MessageKind::push, key, partition_.keys()[key].elements() * sizeof(float));
  header.samples = static_cast<std::uint64_t>(info.samples);
  header.lr = info.lr;
  header.step = static_cast<std::uint64_t>(info.step);
  ++keys_[key].clock;
  keys_[key].push_open = true;
  return header;
}

Header ClientState::push_encoded(std::size_t key, const StepInfo& info, std::uint64_t bytes) {
  Header header = push(key, info);
  header.payload_bytes = bytes;
  header.flags = kFlagEncoded;
  return header;
}

Header ClientState::apply(std::size_t key, bool skip, std::uint64_t bytes) const {
  Header header = about_key(MessageKind::apply, key, bytes);
  header.flags = skip ? kFlagSkipped : 0;
  return header;
}

void ClientState::on_answer(int server, const Header& header, const Payload& payload) {
  if (header.kind == MessageKind::error) {
    throw Error(
        fmt::format("server {} refused a request of rank {}: {}", server, worker_, payload.text()));
  }
  if (header.nonce != nonce_ || header.worker != static_cast<std::uint32_t>(worker_) ||
      header.server != static_cast<std::uint32_t>(server)) {
    throw WireError(
        fmt::format("rank {}: server {} sent an answer that is for someone else", worker_, server));
  }
  if (header.kind != MessageKind::weights && header.kind != MessageKind::state &&
      header.kind != MessageKind::norms) {
    return;
  }
  if (header.key >= keys_.size() || partition_.keys()[header.key].server != server) {
    throw WireError(fmt::format("rank {}: server {} answered about key {}, which it does not own",
                                worker_, server, header.key));
  }
  Key& key = keys_[header.key];
  if (header.kind == MessageKind::state) {
    return;
  }
  const bool pulled = (header.flags & kFlagPulled) != 0;
  if (!pulled && (!key.push_open || header.clock + 1 != key.clock)) {
    throw WireError(fmt::format("rank {}: server {} answered push {} of key {}, which is not open",
                                worker_, server, header.clock, header.key));
  }
  if (header.kind == MessageKind::norms) {
    return;
  }
  const DataType type = pulled ? DataType::f32 : weights_;
  if (header.dtype != type ||
      payload.size() != partition_.keys()[header.key].elements() * size_of(type)) {
    throw WireError(fmt::format("rank {}: server {} sent {} bytes of type {} of key {}", worker_,
                                server, payload.size(), static_cast<int>(header.dtype),
                                header.key));
  }
  key.push_open = pulled && key.push_open;
  key.version = header.version;
}

}  // namespace paceline
