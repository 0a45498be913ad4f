// SPDX-License-Identifier: Apache-2.0
// A link through memory that both ranks reach: threads of one process, or processes that map each
// other's inbox. Small messages travel inside the channel's slots. A large one that the peer can
// reach is only described: the receiver copies or adds straight from the sender's memory and
// acknowledges (one pass over the data). Other large ones are staged in pieces.
#pragma once

#include <array>
#include <map>
#include <memory>

#include "common/comm/inbox.h"
#include "common/comm/link.h"
#include "common/comm/segment.h"
#include "common/comm/segment_pool.h"

namespace paceline {

class MemoryLink final : public Link {
 public:
  /// How the two ranks share memory.
  struct Ends {
    std::shared_ptr<Inbox> own;
    std::shared_ptr<Inbox> peer;
    pid_t peer_pid = 0;
    std::shared_ptr<const SegmentPool> pool;  ///< null: one process, any pointer will do
  };

  MemoryLink(int self, int peer, Ends ends, const Pacer& pacer);
  ~MemoryLink() override;

  bool progress() override;
  void leave() noexcept override;
  void add_poll_descriptors(std::vector<pollfd>&) const override {}

 private:
  static constexpr std::size_t kEagerBytes = 8 * 1024;
  static constexpr std::size_t kStagePiece = 128 * 1024;
  static constexpr std::size_t kStagePieces = 4;
  static constexpr std::size_t kMovedPerProgress = std::size_t{1} << 20;

  bool pull();
  bool take_frame(const Slot& slot, std::size_t& budget);
  [[nodiscard]] const std::byte* payload_of(const Slot& slot);
  void move_pointed(Recv& recv, const Slot& slot, std::size_t bytes);

  bool push();
  bool push_piece(Send& send);
  bool push_staged(Send& send);
  bool push_retired();
  void publish(const Frame& frame, const std::byte* inline_payload);
  bool reap();
  [[nodiscard]] bool has_room();

  Ends ends_;
  Channel& in_;
  Channel& out_;
  std::uint64_t taken_ = 0;         ///< frames of in_ that are consumed
  std::size_t frame_moved_ = 0;     ///< bytes already moved of frame taken_
  std::uint64_t published_ = 0;     ///< frames put into out_
  std::uint64_t acknowledged_ = 0;  ///< last seen out_.consumed

  Segment staging_;                                      ///< made when first needed
  std::array<std::uint64_t, kStagePieces> staged_by_{};  ///< frame count that frees the piece
  std::size_t next_piece_ = 0;

  std::map<std::uint32_t, Segment> peer_segments_;
  std::size_t retired_told_ = 0;
};

}  // namespace paceline
