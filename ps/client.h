// SPDX-License-Identifier: Apache-2.0
// A worker's connection to all servers, on a communication thread of its own, so that pushes and
// answers make progress while the training thread computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/compress/error_feedback.h"
#include "common/sync/synchronizer.h"
#include "ps/client_state.h"
#include "ps/job_description.h"
#include "ps/mailbox.h"
#include "ps/paced_link.h"
#include "ps/whole_gradient.h"

namespace paceline {

/// What a client is made from. `fabric` and `abort` outlive it.
struct ClientSetup {
  int rank = 0;
  std::uint64_t nonce = 0;
  std::vector<std::string> endpoints;  ///< by server
  MailboxOptions mailbox;
  NicFabric* fabric = nullptr;
  int node = 0;
  std::vector<int> server_nodes;
  AbortToken* abort = nullptr;
};

/// What the communication thread measured since it was last asked.
struct ClientReport {
  std::int64_t busy_ns = 0;  ///< a request was open and no server held it for a slower worker
  std::uint64_t bytes_sent = 0;
  int skipped = 0;  ///< updates that were left out because the gradient was not finite
};

/// What became of the push of a bucket.
struct PushOutcome {
  std::int64_t held_ns = 0;    ///< longest that a server held one of its keys for slower workers
  std::int64_t staleness = 0;  ///< of its stalest key, in updates of that key
  bool applied = false;        ///< there was a push, and no server rejected all of it
  std::int64_t begin_ns = 0;   ///< when it was handed over
  std::int64_t end_ns = 0;     ///< when its last answer was in place; 0: there was no push
};

/// All calls come from the training thread. Waits throw TimeoutError naming the servers that did
/// not answer, the abort reason, or what failed on the communication thread.
class PsClient {
 public:
  /// `weights` and `gradients` are flat arenas of the plan that `job` describes and outlive this.
  /// Answers are written to `weights` by the communication thread; `gradients` are sent from where
  /// they are or, where the job has a codec, encoded by push() (and are then scratch).
  PsClient(const ClientSetup& setup, const JobDescription& job, std::span<float> weights,
           std::span<float> gradients);
  /// Says goodbye; waits for no peer longer than a second.
  ~PsClient();
  PsClient(const PsClient&) = delete;
  PsClient& operator=(const PsClient&) = delete;

  /// Says hello to every server and waits until all have accepted.
  void connect();
  /// Sends this worker's weights as the first of every key.
  void init_weights();
  /// Fills the weights with the servers' newest ones.
  void pull_all();
  /// Starts to push bucket b's gradient; does not wait.
  void push(BucketId b, const StepInfo& info);
  /// Waits until bucket b's weights are here and its gradient is free again. Each push's outcome is
  /// returned once.
  [[nodiscard]] PushOutcome wait(BucketId b);
  /// Waits until every worker has called this.
  void drain();

  [[nodiscard]] std::vector<std::byte> get_state(std::size_t key);
  void put_state(std::size_t key, const std::vector<std::byte>& state);

  [[nodiscard]] const Partition& partition() const noexcept { return partition_; }
  [[nodiscard]] ClientReport take_report();
  /// Memory for encoded gradients, and what error feedback keeps.
  [[nodiscard]] std::size_t staging_bytes() const noexcept { return encoded_.size(); }
  [[nodiscard]] std::size_t residual_bytes() const noexcept { return feedback_.bytes(); }

 private:
  struct Request {
    MessageKind kind;
    std::size_t target;  ///< server, or key
    StepInfo info;
    Payload payload;
  };
  struct Bucket {
    int open = 0;  ///< keys whose answer has not come
    std::int64_t step = -1;
    PushOutcome outcome;
  };

  void make_room_for_messages();
  [[nodiscard]] std::span<const std::byte> push_bytes(std::size_t key, const StepInfo& info);
  void post(std::vector<Request> requests);
  void wait_until(const std::function<bool()>& done, const std::function<std::string()>& what);
  [[nodiscard]] std::string open_servers() const;
  void run() noexcept;
  bool take_requests();
  void send(Request request);
  bool receive();
  bool install_arrived();
  void install(const ArrivalQueue::Message& message);
  void on_norms(const ArrivalQueue::Message& message);
  void copy_weights(const Header& header, const Payload& payload);
  void say_goodbye();

  ClientSetup setup_;
  JobDescription job_;
  Partition partition_;
  std::span<float> weights_;
  std::span<float> gradients_;
  std::unique_ptr<Codec> codec_;  ///< null: gradients travel as they are
  ErrorFeedback feedback_;
  Buffer encoded_;                                           ///< the keys' messages
  std::vector<std::size_t> encoded_begin_;                   ///< by key, into encoded_
  std::shared_ptr<std::vector<std::atomic<int>>> borrowed_;  ///< by bucket: keys that ZeroMQ reads

  // The communication thread's own.
  ClientState state_;
  PacedSender sender_;
  ArrivalQueue arrivals_;
  std::unique_ptr<WorkerMailbox> mailbox_;
  std::optional<StepNorms> norms_;  ///< where updates need the whole gradient
  bool skipping_ = false;           ///< the update whose answers come next is left out
  std::int64_t busy_since_ns_ = 0;
  std::int64_t held_in_busy_ns_ = 0;

  // Shared, under mutex_.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;
  std::vector<Bucket> buckets_;
  std::vector<int> open_;  ///< by server: requests without an answer
  int open_total_ = 0;
  std::vector<std::byte> state_answer_;
  ClientReport report_;
  std::exception_ptr failure_;
  bool stop_ = false;

  Wakeup wakeup_;
  std::thread thread_;
};

}  // namespace paceline
