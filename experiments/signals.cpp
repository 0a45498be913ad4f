// SPDX-License-Identifier: Apache-2.0
#include "experiments/signals.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>

#include "common/base/error.h"

namespace paceline {

BlockedSignals::BlockedSignals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGINT);
  sigaddset(&wanted, SIGTERM);
  signals_ = FileDescriptor(signalfd(-1, &wanted, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.valid()) {
    throw Error(fmt::format("cannot watch signals: {}", std::strerror(errno)));
  }
  pthread_sigmask(SIG_BLOCK, &wanted, &before_);
}

BlockedSignals::~BlockedSignals() {
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> BlockedSignals::take() const noexcept {
  signalfd_siginfo info{};
  if (read(signals_.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

SignalWatcher::SignalWatcher(AbortToken& abort) : stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_.valid()) {
    throw Error(fmt::format("cannot watch signals: {}", std::strerror(errno)));
  }
  thread_ = std::thread([this, &abort] { watch(abort); });
}

SignalWatcher::~SignalWatcher() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof(one)));
  thread_.join();
}

void SignalWatcher::watch(AbortToken& abort) const {
  std::array<pollfd, 2> events{{{signals_.descriptor(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
  while (true) {
    poll(events.data(), events.size(), -1);
    if ((events[1].revents & POLLIN) != 0) {
      return;
    }
    if (const std::optional<int> signal = signals_.take()) {
      abort.request(std::make_exception_ptr(
          Interrupted(fmt::format("interrupted by {}", signal_name(*signal)), *signal)));
    }
  }
}

std::string signal_name(int signal) {
  const char* const abbreviation = sigabbrev_np(signal);
  return abbreviation == nullptr ? fmt::format("signal {}", signal)
                                 : fmt::format("SIG{}", abbreviation);
}

}  // namespace paceline
