// SPDX-License-Identifier: Apache-2.0
#include "experiments/launch.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include <optional>
#include <random>

#include "common/base/error.h"
#include "common/comm/job_timing.h"
#include "experiments/signals.h"

namespace paceline {

namespace {

constexpr int kPollMs = 10;
constexpr Nanoseconds kTellTime = std::chrono::milliseconds(300);

std::uint64_t random_nonce() {
  std::random_device device;
  const std::uint64_t high = device();
  return (high << 32) | device() | 1;  // 0 asks for a drawn one
}

/// What ended a job, as the hub knows it or as a member's exit shows.
struct Cause {
  int exit_status = 1;
  std::string text;
  bool loss = false;  ///< says only that a member went silent or closed its connection
};

std::optional<Cause> cause_at(const JobHub& hub) {
  try {
    if (const std::exception_ptr error = hub.cause()) {
      std::rethrow_exception(error);
    }
  } catch (const ConfigError& error) {
    return Cause{2, error.what(), false};
  } catch (const PeerLost& error) {
    return Cause{1, error.what(), true};
  } catch (const TimeoutError& error) {
    return Cause{1, error.what(), true};
  } catch (const Error& error) {
    return Cause{1, error.what(), false};
  }
  return std::nullopt;
}

class Job {
 public:
  explicit Job(const LaunchPlan& plan)
      : plan_(with_nonce(plan)),
        hub_(plan_.spec, plan_.host, plan_.port),
        ticker_(plan_.spec.timeout) {
    const int members = plan_.spec.world + plan_.spec.servers;
    for (int member = 0; member < members; ++member) {
      members_.push_back(
          {member_name(member, plan_.spec.world),
           Process(plan_.command({member, plan_.host, hub_.port(), plan_.spec.nonce})),
           std::nullopt, Nanoseconds(0)});
    }
  }

  JobResult run() {
    while (reap()) {
      take_signal();
      const Nanoseconds elapsed = ticker_.elapsed();
      watch_stopped(elapsed);
      watch_silent_exit(elapsed);
      if (const auto told = cause_at(hub_)) {
        fail(*told);
      }
      if (term_at_) {
        end_members();
      }
    }
    return result();
  }

 private:
  struct Member {
    std::string name;
    Process process;
    std::optional<ExitStatus> status;
    Nanoseconds stopped{0};
  };

  static LaunchPlan with_nonce(LaunchPlan plan) {
    if (plan.spec.nonce == 0) {
      plan.spec.nonce = random_nonce();
    }
    return plan;
  }

  /// Notes who has ended; false when nobody runs any more.
  bool reap() {
    bool running = false;
    for (Member& member : members_) {
      if (member.status) {
        continue;
      }
      member.status = member.process.poll();
      if (!member.status) {
        running = true;
      } else if (!member.status->success() && signal_ == 0 && !terminated_) {
        ended_badly(member);
      }
    }
    return running;
  }

  void ended_badly(const Member& member) {
    Cause cause{member.status->code == 2 ? 2 : 1,
                fmt::format("{} {}", member.name, member.status->text()), false};
    if (!member.status->signalled) {
      if (!silent_exit_) {
        silent_exit_ = std::move(cause);
      }
      return;
    }
    cause.exit_status = 1;
    const std::optional<Cause> told = cause_at(hub_);
    if (!told || (told->loss && told->text.starts_with(member.name + " "))) {
      fail(cause);
    }
    hub_.abort(cause.text);
  }

  /// A member that exits with an error normally told the hub why, or is about to be known as the
  /// victim of another. When neither comes its exit is the cause.
  void watch_silent_exit(Nanoseconds elapsed) {
    if (silent_exit_ && !cause_ && (silent_exit_for_ += elapsed) >= kTellTime) {
      fail(*silent_exit_);
      hub_.abort(silent_exit_->text);
    }
  }

  /// The hub hears nothing from a member that was stopped before it joined.
  void watch_stopped(Nanoseconds elapsed) {
    if (cause_ || (since_stop_check_ += elapsed) < plan_.spec.timeout / 20) {
      return;
    }
    const Nanoseconds limit = silence_limit(plan_.spec.timeout);
    for (Member& member : members_) {
      member.stopped =
          member.process.stopped() ? member.stopped + since_stop_check_ : Nanoseconds(0);
      if (member.stopped >= limit) {
        hub_.abort(fmt::format("{} lost: its process is stopped for {:.1f} s", member.name,
                               seconds(limit.count())));
      }
    }
    since_stop_check_ = Nanoseconds(0);
  }

  void take_signal() {
    pollfd event{signals_.descriptor(), POLLIN, 0};
    poll(&event, 1, kPollMs);
    const std::optional<int> signal = signals_.take();
    if (signal && signal_ == 0) {
      signal_ = *signal;
      hub_.abort(fmt::format("interrupted by {}", signal_name(signal_)));
      term_at_ = Deadline::after(Nanoseconds(0));
      kill_at_ = Deadline::after(plan_.interrupt_grace);
    }
  }

  /// The first cause stays, but the death of a process says more than the silence that followed.
  void fail(const Cause& cause) {
    if (!cause_ || (cause_->loss && !cause.loss)) {
      cause_ = cause;
    }
    if (!term_at_) {
      term_at_ = Deadline::after(plan_.spec.timeout / 5);
      kill_at_ = Deadline::after(plan_.spec.timeout * 3 / 10);
    }
  }

  void end_members() {
    const bool kill = kill_at_->passed();
    const bool term = !terminated_ && term_at_->passed();
    terminated_ = terminated_ || term || kill;
    for (Member& member : members_) {
      if (kill || member.process.stopped()) {
        terminated_ = true;
        member.process.signal(SIGKILL);
      } else if (term) {
        member.process.signal(SIGTERM);
      }
    }
  }

  JobResult result() {
    JobResult result;
    for (const Member& member : members_) {
      result.members.push_back(*member.status);
    }
    take_signal();
    const Deadline told_by = Deadline::after(silent_exit_ ? kTellTime : Nanoseconds(0));
    while (!cause_ && !(cause_ = cause_at(hub_)) && !told_by.passed()) {
      sleep_until_ns(now_ns() + Nanoseconds(std::chrono::milliseconds(kPollMs)).count());
    }
    if (!cause_) {
      cause_ = silent_exit_;
    }
    if (signal_ != 0) {
      result.signal = signal_;
      result.exit_status = 128 + signal_;
      result.error = fmt::format("interrupted by {}", signal_name(signal_));
    } else if (cause_) {
      result.exit_status = cause_->exit_status;
      result.error = cause_->text;
    }
    return result;
  }

  const BlockedSignals signals_;  // before the hub's thread starts
  const LaunchPlan plan_;
  JobHub hub_;
  Ticker ticker_;
  std::vector<Member> members_;
  std::optional<Cause> cause_;
  std::optional<Cause> silent_exit_;
  Nanoseconds silent_exit_for_{0};
  Nanoseconds since_stop_check_{0};
  int signal_ = 0;
  bool terminated_ = false;  ///< how members end from now on is the launcher's doing
  std::optional<Deadline> term_at_;
  std::optional<Deadline> kill_at_;
};

}  // namespace

JobResult launch(const LaunchPlan& plan) {
  return Job(plan).run();
}

}  // namespace paceline
