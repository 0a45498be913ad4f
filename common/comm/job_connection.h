// SPDX-License-Identifier: Apache-2.0
// One TCP connection between a job's hub and a member: frames in, frames out, on one io_context.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <memory>
#include <string>

#include "common/base/time.h"
#include "common/comm/job_frame.h"

namespace paceline {

/// All calls and all events on the io_context's one thread. The listener outlives the io_context's
/// run. After close() no further event comes.
class JobConnection : public std::enable_shared_from_this<JobConnection> {
 public:
  using Bytes = std::shared_ptr<const std::string>;

  class Listener {
   public:
    Listener() = default;
    virtual ~Listener() = default;
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    virtual void on_frame(JobConnection& connection, Frame frame) = 0;
    /// The peer closed, the network failed, or the peer sent what is no frame. Once.
    virtual void on_closed(JobConnection& connection, const std::string& why) = 0;
  };

  JobConnection(boost::asio::ip::tcp::socket socket, FrameReader::From sender, Listener& listener);

  void start() { read(); }
  void send(std::string frame) { send(std::make_shared<const std::string>(std::move(frame))); }
  void send(Bytes frame);
  void close();
  /// Sends what is queued, then closes; no event comes any more.
  void close_after_sending();
  [[nodiscard]] bool open() const noexcept { return open_; }
  [[nodiscard]] bool sending() const noexcept { return !queue_.empty(); }

  void set_sender(FrameReader::From sender) noexcept { reader_.set_sender(sender); }
  /// Adds `elapsed` to the time in which no byte came, or starts it anew if one did.
  Nanoseconds add_silence(Nanoseconds elapsed) noexcept;

  int member = -1;  ///< who this is, once known; the owner's to use

 private:
  void read();
  void write();
  void fail(const std::string& why);

  boost::asio::ip::tcp::socket socket_;
  FrameReader reader_;
  Listener& listener_;
  std::array<char, std::size_t{64} << 10> chunk_{};
  std::deque<Bytes> queue_;
  Nanoseconds silence_{0};
  bool heard_ = false;
  bool open_ = true;
  bool writable_ = true;
  bool closing_ = false;
};

/// "127.0.0.1:29500", "[::1]:29500".
[[nodiscard]] std::string endpoint_text(const std::string& host, std::uint16_t port);

}  // namespace paceline
