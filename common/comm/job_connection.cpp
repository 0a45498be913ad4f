// SPDX-License-Identifier: Apache-2.0
#include "common/comm/job_connection.h"

#include <fmt/format.h>

#include <boost/asio/write.hpp>

#include "common/base/error.h"

namespace paceline {

namespace asio = boost::asio;
using boost::system::error_code;

JobConnection::JobConnection(asio::ip::tcp::socket socket, FrameReader::From sender,
                             Listener& listener)
    : socket_(std::move(socket)), reader_(sender), listener_(listener) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void JobConnection::send(Bytes frame) {
  if (!open_ || closing_ || !writable_) {
    return;
  }
  queue_.push_back(std::move(frame));
  if (queue_.size() == 1) {
    write();
  }
}

void JobConnection::close() {
  open_ = false;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void JobConnection::close_after_sending() {
  closing_ = true;
  if (queue_.empty()) {
    close();
  }
}

Nanoseconds JobConnection::add_silence(Nanoseconds elapsed) noexcept {
  silence_ = heard_ ? Nanoseconds(0) : silence_ + elapsed;
  heard_ = false;
  return silence_;
}

void JobConnection::read() {
  socket_.async_read_some(
      asio::buffer(chunk_), [self = shared_from_this()](error_code error, std::size_t count) {
        if (!self->open_) {
          return;
        }
        if (error) {
          self->fail(error == asio::error::eof ? "connection closed" : error.message());
          return;
        }
        self->heard_ = true;
        std::span<const char> bytes(self->chunk_.data(), count);
        try {
          Frame frame{};
          while (self->open_ && self->reader_.take(bytes, frame)) {
            if (!self->closing_) {
              self->listener_.on_frame(*self, std::move(frame));
            }
          }
        } catch (const std::exception& broken) {
          self->fail(broken.what());
        }
        if (self->open_) {
          self->read();
        }
      });
}

void JobConnection::write() {
  asio::async_write(socket_, asio::buffer(*queue_.front()),
                    [self = shared_from_this()](error_code error, std::size_t) {
                      if (!self->open_) {
                        return;
                      }
                      if (error) {
                        // What the peer sent before it closed may still be unread: reading ends
                        // the connection.
                        self->queue_.clear();
                        self->writable_ = false;
                        if (self->closing_) {
                          self->close();
                        }
                        return;
                      }
                      self->queue_.pop_front();
                      if (!self->queue_.empty()) {
                        self->write();
                      } else if (self->closing_) {
                        self->close();
                      }
                    });
}

void JobConnection::fail(const std::string& why) {
  if (!open_) {
    return;
  }
  const bool tell = !closing_;
  close();
  if (tell) {
    listener_.on_closed(*this, why);
  }
}

std::string endpoint_text(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

}  // namespace paceline
