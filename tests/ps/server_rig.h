// SPDX-License-Identifier: Apache-2.0
// A server and its clients as state machines, without a socket.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

#include "ps/client_state.h"
#include "ps/server_state.h"

namespace paceline::testing {

inline constexpr std::uint64_t kNonce = 99;

/// One server with one or more keys and `world` clients that push by hand.
class Rig {
 public:
  Rig(int world, PsRule rule, std::vector<std::size_t> buckets = {8}, float clip_norm = 0.0F)
      : Rig(job_of(world, rule, std::move(buckets), clip_norm)) {}
  explicit Rig(const JobDescription& job, float first_weight = 0.0F,
               const ShardMaker& make_shard = make_host_shard)
      : world_(job.world),
        plan_(job.buckets),
        partition_(plan_, 1),
        server_({0, 1, job.world, kNonce, job.rule, false, job.format}, make_policy(job.rule),
                make_shard),
        inbox_(static_cast<std::size_t>(job.world)) {
    for (int w = 0; w < world_; ++w) {
      clients_.emplace_back(w, kNonce, partition_, job.format.weights());
      const auto bytes = encode(job);
      send(clients_.back().to_server(MessageKind::hello, 0, bytes.size()), Payload::copy_of(bytes));
      EXPECT_EQ(take(w).header.kind, MessageKind::welcome);
    }
    for (std::size_t k = 0; k < partition_.count(); ++k) {
      const std::vector<float> first(partition_.keys()[k].elements(), first_weight);
      send(clients_[0].about_key(MessageKind::init, k, first.size() * 4), floats(first));
      EXPECT_EQ(take(0).header.kind, MessageKind::ack);
    }
  }

  static JobDescription job_of(int world, PsRule rule, std::vector<std::size_t> buckets,
                               float clip_norm = 0.0F) {
    JobDescription job;
    job.world = world;
    job.rule = rule;
    job.buckets = std::move(buckets);
    job.optimizer.clip_norm = clip_norm;
    return job;
  }
  static Payload floats(const std::vector<float>& values) {
    return Payload::copy_of(std::as_bytes(std::span(values)));
  }

  void send(const Header& header, Payload payload) {
    std::vector<Outgoing> out;
    server_.on_message(header, std::move(payload), ++now_, out);
    for (Outgoing& message : out) {
      inbox_.at(static_cast<std::size_t>(message.peer)).push_back(std::move(message));
    }
  }

  Header push(int w, std::int64_t samples = 1, float value = 1.0F, std::size_t key = 0,
              float lr = 1.0F) {
    const Header header = client(w).push(key, {0, lr, samples, 0});
    send(header, floats(std::vector<float>(partition_.keys()[key].elements(), value)));
    return header;
  }

  [[nodiscard]] bool has_answer(int w) const {
    return !inbox_[static_cast<std::size_t>(w)].empty();
  }
  /// The next answer, which the client does not get to see.
  Outgoing raw_take(int w) {
    auto& box = inbox_[static_cast<std::size_t>(w)];
    EXPECT_FALSE(box.empty()) << "worker " << w << " has no answer";
    if (box.empty()) {
      return {};
    }
    Outgoing message = std::move(box.front());
    box.pop_front();
    return message;
  }
  Outgoing take(int w) {
    Outgoing message = raw_take(w);
    if (message.header.kind == MessageKind::weights) {
      client(w).on_answer(0, message.header, message.payload);
    }
    return message;
  }
  std::string refusal(int w) {
    const Outgoing message = take(w);
    EXPECT_EQ(message.header.kind, MessageKind::error);
    return std::string(message.payload.text());
  }

  ClientState& client(int w) { return clients_[static_cast<std::size_t>(w)]; }
  ServerState& server() { return server_; }
  [[nodiscard]] const Partition& partition() const { return partition_; }
  [[nodiscard]] int world() const { return world_; }

 private:
  int world_;
  BucketPlan plan_;
  Partition partition_;
  ServerState server_;
  std::deque<ClientState> clients_;
  std::vector<std::deque<Outgoing>> inbox_;
  std::int64_t now_ = 1000;
};

inline constexpr PsRule kBsp{Consistency::synchronous, 0};
inline constexpr PsRule kAsp{Consistency::asynchronous, 0};
inline PsRule ssp(int bound) {
  return {Consistency::bounded_stale, bound};
}

}  // namespace paceline::testing
