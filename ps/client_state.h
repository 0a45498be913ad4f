// SPDX-License-Identifier: Apache-2.0
// A worker's side of the protocol without I/O: builds requests and checks answers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sync/synchronizer.h"
#include "ps/partition.h"
#include "ps/payload.h"
#include "ps/wire.h"

namespace paceline {

/// Versions and clocks of every key, as this worker knows them. Not thread-safe.
class ClientState {
 public:
  /// `partition` outlives this.
  /// `weights` is the type of the elements that answer a push.
  ClientState(int worker, std::uint64_t nonce, const Partition& partition,
              DataType weights = DataType::f32);

  /// A request to `server` about the whole job: hello, drain, goodbye.
  [[nodiscard]] Header to_server(MessageKind kind, int server, std::uint64_t payload_bytes) const;
  /// A request about a key: init, pull, state_get, state_put.
  [[nodiscard]] Header about_key(MessageKind kind, std::size_t key,
                                 std::uint64_t payload_bytes) const;
  /// The push of a key's gradient: its clock advances, the answer is due.
  [[nodiscard]] Header push(std::size_t key, const StepInfo& info);
  /// The same of a gradient that a codec made `bytes` long.
  [[nodiscard]] Header push_encoded(std::size_t key, const StepInfo& info, std::uint64_t bytes);

  /// The factors of a key whose norms came, `bytes` long.
  [[nodiscard]] Header apply(std::size_t key, bool skip, std::uint64_t bytes) const;

  /// Checks an answer and takes note of it. For `weights`, the caller then installs the payload.
  /// Throws WireError for what does not follow the protocol, and Error with the server's reason
  /// for MessageKind::error.
  void on_answer(int server, const Header& header, const Payload& payload);

  [[nodiscard]] std::uint64_t version(std::size_t key) const { return keys_.at(key).version; }
  [[nodiscard]] std::uint64_t clock(std::size_t key) const { return keys_.at(key).clock; }

 private:
  struct Key {
    std::uint64_t version = 0;
    std::uint64_t clock = 0;
    bool push_open = false;
  };
  int worker_;
  std::uint64_t nonce_;
  const Partition& partition_;
  DataType weights_;
  std::vector<Key> keys_;
};

}  // namespace paceline
