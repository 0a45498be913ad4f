// SPDX-License-Identifier: Apache-2.0
// The parameter server without I/O: messages in, messages out. Driven by ZeroMQ (ps/server.h), by
// tests, or by a simulator's clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/apply_policy.h"
#include "ps/job_description.h"
#include "ps/partition.h"
#include "ps/payload.h"
#include "ps/shard.h"
#include "ps/whole_gradient.h"
#include "ps/wire.h"

namespace paceline {

/// A message for `peer`: the worker's rank where a server sends, the server's index where a worker
/// does. Those of higher `priority` are needed first.
struct Outgoing {
  int peer = 0;
  Header header;
  Payload payload;
  int priority = 0;
};

struct ServerIdentity {
  int server = 0;
  int servers = 1;
  int world = 1;
  std::uint64_t nonce = 0;
  PsRule rule;
  bool exact = false;
  GradientFormat format{};
};

/// One server's keys, their versions, and every worker's clocks; a Shard holds the weights.
///
/// A push is answered by the key's newest weights once the policy lets that worker go on, so push
/// and pull are one round trip. A refused message is answered with MessageKind::error and changes
/// nothing. A push that was already taken (a duplicate) is answered again or ignored, never
/// applied twice. Where updates need the whole gradient, `norms` and `apply` come between a round's
/// last push and its answers (ps/whole_gradient.h).
///
/// With delay compensation, w_bak of a worker is the version that it was sent last, in the elements
/// that answers carry (16 bits with sync.wire=fp16|bf16): exactly what its next gradient is
/// computed on. It is kept by reference, so that workers on one version share it. Not thread-safe.
class ServerState {
 public:
  /// `make_shard` is called at the first hello.
  ServerState(const ServerIdentity& identity, std::unique_ptr<ApplyPolicy> policy,
              ShardMaker make_shard = make_host_shard);
  ~ServerState();
  ServerState(const ServerState&) = delete;
  ServerState& operator=(const ServerState&) = delete;

  /// Handles one decoded message that arrived at `now_ns` and appends the answers. Never throws for
  /// what a peer sent.
  void on_message(const Header& header, Payload payload, std::int64_t now_ns,
                  std::vector<Outgoing>& out);

  /// All workers have said goodbye.
  [[nodiscard]] bool finished() const noexcept;
  /// Of a key of this server; for tests and reports.
  [[nodiscard]] std::uint64_t version(std::size_t key) const;
  [[nodiscard]] std::span<const float> weights(std::size_t key) const;
  /// Of all keys. `optimizer` includes the mean square of delay compensation; `staging` are the
  /// versions besides the weights: those that answers carry and those that workers compute on.
  [[nodiscard]] MemoryUse memory() const;

 private:
  struct WorkerOfKey;
  struct Key;

  void dispatch(const Header& header, Payload payload, std::int64_t now_ns,
                std::vector<Outgoing>& out);
  void begin_job(const JobDescription& job);
  void on_hello(const Header& header, const Payload& payload, std::vector<Outgoing>& out);
  void on_init(const Header& header, const Payload& payload, std::vector<Outgoing>& out);
  void on_pull(const Header& header, std::vector<Outgoing>& out);
  void on_push(const Header& header, Payload payload, std::int64_t now_ns,
               std::vector<Outgoing>& out);
  void check_push(const Key& key, const Header& header, Payload& payload) const;
  void on_apply(const Header& header, Payload payload, std::int64_t now_ns,
                std::vector<Outgoing>& out);
  void on_drain(const Header& header, std::int64_t now_ns, std::vector<Outgoing>& out);
  void on_state_get(const Header& header, std::vector<Outgoing>& out);
  void on_state_put(const Header& header, const Payload& payload, std::vector<Outgoing>& out);
  void on_goodbye(const Header& header, std::int64_t now_ns, std::vector<Outgoing>& out);

  Key& key_of(const Header& header);
  [[nodiscard]] Header answer(MessageKind kind, const Header& to) const;
  [[nodiscard]] bool counts(std::size_t worker) const;
  [[nodiscard]] std::uint64_t slowest(const Key& key) const;
  void settle(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out);
  void release(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out);
  void fold_if_complete(Key& key, std::int64_t now_ns, std::vector<Outgoing>& out);
  void end_round(Key& key);
  void apply_one(Key& key, std::size_t worker, const Decision& decision);
  void update(Key& key, std::span<const RangeUpdate> updates, const GradientBlocks& gradient);
  void update_from(Key& key, std::span<const std::size_t> workers, float lr, std::uint64_t samples);
  [[nodiscard]] std::vector<const float*> contributions(const Key& key,
                                                        std::span<const std::size_t> workers);
  [[nodiscard]] std::span<const float> sum_block(const Key& key,
                                                 std::span<const float* const> workers,
                                                 std::size_t begin, std::size_t count);
  void update_compensated(Key& key, std::size_t worker, const DelayCompensation& rule,
                          const UpdateInfo& info);
  [[nodiscard]] std::span<const float> backup_block(const WorkerOfKey& worker, std::size_t begin,
                                                    std::size_t count);
  void send_norms(Key& key, std::span<const std::size_t> workers, std::int64_t now_ns,
                  std::vector<Outgoing>& out);
  void apply_if_agreed(Key& key);
  void update_by(Key& key, const KeyFactors& factors);
  void sum_decoded(const Key& key, std::span<const std::size_t> workers);
  [[nodiscard]] Payload answer_weights(Key& key) const;
  void keep_backups(Key& key) const;
  void send_weights(Key& key, Header header, std::vector<Outgoing>& out) const;
  void ack_drains(std::vector<Outgoing>& out);

  ServerIdentity identity_;
  std::unique_ptr<ApplyPolicy> policy_;
  std::optional<JobDescription> job_;
  Partition partition_;
  ShardMaker make_shard_;
  std::unique_ptr<Shard> shard_;            ///< from the first hello on
  std::vector<std::unique_ptr<Key>> keys_;  ///< by key; null for those of other servers
  std::vector<bool> finished_;              ///< by worker: said goodbye
  std::vector<bool> drained_;               ///< by worker: waits for the others' drain
  std::vector<Header> drain_;               ///< by worker: what to answer then
  std::vector<float> scratch_;
  bool whole_gradient_ = false;   ///< updates wait for `apply`
  std::unique_ptr<Codec> codec_;  ///< null: gradients travel as they are
  std::vector<float> decoded_;    ///< the sum of one key's messages
  std::vector<float> backup_;     ///< a block of 16-bit weights as fp32
  /// Of 16-bit weights that answers carry or workers compute on.
  std::shared_ptr<std::atomic<std::size_t>> short_bytes_ =
      std::make_shared<std::atomic<std::size_t>>(0);
};

}  // namespace paceline
