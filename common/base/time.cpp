// SPDX-License-Identifier: Apache-2.0
#include "common/base/time.h"

#include <sys/prctl.h>
#include <time.h>

namespace paceline {

namespace {
constexpr std::int64_t kSecond = 1'000'000'000;
constexpr unsigned long kTimerSlackNs = 1'000;
}  // namespace

std::int64_t now_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::int64_t>(t.tv_sec) * kSecond + t.tv_nsec;
}

void sleep_until_ns(std::int64_t ns) noexcept {
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0UL, 0UL, 0UL);
  static_cast<void>(slack_set);
  if (ns <= now_ns()) {
    return;
  }
  timespec t{};
  t.tv_sec = static_cast<time_t>(ns / kSecond);
  t.tv_nsec = static_cast<long>(ns % kSecond);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr) != 0) {
  }
}

}  // namespace paceline
