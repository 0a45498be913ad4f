// SPDX-License-Identifier: Apache-2.0
// The communication thread of a rank of asynchronous gossip: it calls a partner, or answers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/config/config.h"
#include "ring/gossip_matching.h"
#include "ring/gossip_replica.h"

namespace paceline {

/// An averaging: the caller sends one byte and then its buckets, the last first; whoever is called
/// takes callers one after the other, in turn, meets each bucket as it arrives and sends back the
/// change that the caller adds. So a bucket is averaged while others travel, memory for one arena
/// suffices on both sides, and each bucket's averages happen one at a time.
///
/// All methods are called by the training thread. The ones that wait, and check(), throw a stored
/// error of the thread.
class GossipThread {
 public:
  struct Place {
    const Config& config;
    Replica& replica;
    GossipReplica& weights;
    std::atomic<bool>& stop;  ///< ends waits for peers
    AbortToken& abort;
  };

  /// Everything in `place` outlives this. The rank rests until the first begin_step() or show().
  explicit GossipThread(const Place& place);
  /// Stops the thread without waiting for peers.
  ~GossipThread();
  GossipThread(const GossipThread&) = delete;
  GossipThread& operator=(const GossipThread&) = delete;

  [[nodiscard]] bool calls() const noexcept { return gossip_calls(rank_); }

  /// From now on this rank answers.
  void begin_step();
  /// One more averaging, of a rank that calls; one at most is kept in store while another is under
  /// way, and none is lost by show(). Never blocks on a peer.
  void want_averaging();
  /// Until none is wanted or under way.
  void wait_averaged();
  /// Collective: this rank and those that call it take no part in averagings any more until their
  /// next begin_step(), and viewed() becomes the mean of all ranks' weights, the same bits on all.
  void show();
  void check();

  /// Bytes and times since the last call.
  [[nodiscard]] StepReport report();

  /// Averagings begun, for checkpoints; while the rank rests.
  [[nodiscard]] std::int64_t begun();
  void set_begun(std::int64_t averagings);

  [[nodiscard]] std::size_t staging_bytes() const noexcept { return travelling_->bytes().size(); }

 private:
  void loop();
  bool work_as_caller();
  bool work_as_callee();
  template <typename Ready>
  bool sleep_until(Ready ready);
  template <typename Done>
  void block_until(Done done);
  void check_error() const;

  void average_with(int peer);
  void rest();
  void answer_until_all_rest();
  [[nodiscard]] std::optional<std::size_t> next_call(
      const std::vector<std::optional<Ticket>>& calls);
  void answer(int peer);
  void show_mean();
  [[nodiscard]] std::string who_is_missing(const std::vector<std::optional<Ticket>>& calls) const;

  [[nodiscard]] Ticket listen(std::size_t neighbour);
  void wait(const Ticket& ticket);
  [[nodiscard]] std::span<float> travelling(BucketId b) const;
  void note_bucket(BucketId b, std::int64_t& begin_ns);
  void note_averaging(std::int64_t begin_ns);

  const Config& config_;
  Replica& replica_;
  GossipReplica& weights_;
  std::atomic<bool>& stop_;
  AbortToken& abort_;
  int rank_;
  GossipGraph graph_;

  // The thread's alone.
  std::vector<int> neighbours_;
  std::vector<std::byte> messages_;         ///< by neighbour: what it said, or is told
  std::unique_ptr<CommBuffer> travelling_;  ///< weights that go, changes that come back
  std::size_t first_asked_ = 0;             ///< the neighbour whose turn it is

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  bool awake_ = false;
  bool wanted_ = false;
  bool averaging_ = false;
  bool showing_ = false;
  std::int64_t begun_ = 0;
  std::exception_ptr error_;
  std::int64_t communication_ns_ = 0;
  std::uint64_t bytes_total_ = 0;
  std::uint64_t bytes_reported_ = 0;
  std::vector<Transfer> transfers_;

  std::thread thread_;
};

}  // namespace paceline
