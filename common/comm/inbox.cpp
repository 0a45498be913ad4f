// SPDX-License-Identifier: Apache-2.0
#include "common/comm/inbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/error.h"
#include "common/comm/pipe.h"

namespace paceline {

namespace {

std::size_t inbox_bytes(int ranks) noexcept {
  return sizeof(InboxHeader) + static_cast<std::size_t>(ranks) * sizeof(Channel);
}

}  // namespace

Inbox::Inbox(int ranks) : memory_(inbox_bytes(ranks), false) {
  Pipe bell = make_pipe("a doorbell", O_NONBLOCK);
  bell_read_ = std::move(bell.read);
  bell_write_ = std::move(bell.write);
}

Inbox::Inbox(int ranks, pid_t pid, int memory_fd, int bell_fd)
    : memory_(Segment::open(pid, memory_fd, inbox_bytes(ranks))) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, bell_fd);
  // Open for reading too: writing to a pipe whose reader died would raise SIGPIPE.
  bell_write_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!bell_write_.valid()) {
    throw Error(fmt::format("cannot open the doorbell {}: {}", path, std::strerror(errno)));
  }
}

InboxHeader& Inbox::header() noexcept {
  return *reinterpret_cast<InboxHeader*>(memory_.data());
}

Channel& Inbox::channel(int source) noexcept {
  return reinterpret_cast<Channel*>(memory_.data() +
                                    sizeof(InboxHeader))[static_cast<std::size_t>(source)];
}

void Inbox::ring() noexcept {
  std::atomic<std::uint32_t>& sleeping = header().sleeping;
  if (sleeping.load(std::memory_order_seq_cst) != 0 && sleeping.exchange(0) != 0) {
    const char byte = 1;
    // A full pipe is a rung bell; a broken one means that the owner is gone, which others report.
    static_cast<void>(!::write(bell_write_.get(), &byte, 1));
  }
}

void Inbox::begin_sleep() noexcept {
  header().sleeping.store(1, std::memory_order_seq_cst);
}

void Inbox::end_sleep() noexcept {
  if (header().sleeping.exchange(0) == 0) {
    std::array<char, 64> bytes{};
    static_cast<void>(!::read(bell_read_.get(), bytes.data(), bytes.size()));
  }
}

}  // namespace paceline
