// SPDX-License-Identifier: Apache-2.0
// The control plane of a job: rendezvous, liveness and small collectives over one star of TCP
// connections, its hub in the launcher (or in rank 0 where something else launched the ranks).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "common/base/time.h"
#include "common/comm/communicator.h"

namespace paceline {

/// Who takes part: workers 0..world-1, servers world..world+servers-1.
struct JobSpec {
  int world = 1;
  int servers = 0;
  std::uint64_t nonce = 0;    ///< a leftover process of another job is refused by it
  std::string config_digest;  ///< members with another digest are refused by name
  Nanoseconds timeout = std::chrono::seconds(30);  ///< comm.timeout
};

/// The hub. Accepts members, answers collectives, watches heartbeats on a thread of its own. A
/// member whose connection closes without goodbye, or that is silent for 0.6 · timeout, ends the
/// job: every other member's AbortToken gets PeerLost naming it.
class JobHub {
 public:
  /// Listens on `host`:`port` (port 0: a free one). Throws ConfigError naming the endpoint when it
  /// cannot (port in use).
  JobHub(const JobSpec& spec, const std::string& host, std::uint16_t port);
  /// Waits for members that have still to say goodbye: up to the timeout, 0.5 s after a failure.
  ~JobHub();
  JobHub(const JobHub&) = delete;
  JobHub& operator=(const JobHub&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Ends the job: members' tokens get an Error with `reason` (the launcher saw a child die).
  void abort(const std::string& reason);
  /// First failure the hub saw, empty if none.
  [[nodiscard]] std::string failure() const;
  /// The same as the exception that members got, null if none.
  [[nodiscard]] std::exception_ptr cause() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// The hub cannot be reached any more, or never could: nobody else can tell why this member ends.
class HubLost : public PeerLost {
 public:
  using PeerLost::PeerLost;
};

/// A member's side: heartbeats and failure notices run on a thread of its own.
class JobMember {
 public:
  /// Joins as `member` (see JobSpec); returns when all have joined. Throws ConfigError when refused
  /// (two with the same number, another digest), TimeoutError naming who did not come, PeerLost,
  /// HubLost when nothing listens there within the timeout, or another job does.
  JobMember(const JobSpec& spec, int member, const std::string& host, std::uint16_t port,
            AbortToken& abort);
  /// Says goodbye (a later close is no loss), but not while an exception unwinds: the others are
  /// then told that this member is lost, unless fail() named a better reason.
  ~JobMember();
  JobMember(const JobMember&) = delete;
  JobMember& operator=(const JobMember&) = delete;

  /// The workers by rank; null on a server. Owned by this; one thread at a time.
  [[nodiscard]] Communicator* workers() noexcept;
  /// Workers and servers by member number.
  [[nodiscard]] Communicator& everyone() noexcept;
  /// Tells the hub why this member fails, so that the others name this reason and member. Null once
  /// the hub has answered, or had ended the job before: its process reports. Else, after a quarter
  /// of the timeout at most, the HubLost that this member has to report itself. Any thread.
  std::exception_ptr fail(const std::string& reason) noexcept;
  /// Likewise; the others get a ConfigError if it is one, else an Error. A PeerLost or TimeoutError
  /// gives way to the loss of the member that caused it, if the hub hears of that within 0.1 s.
  std::exception_ptr fail(const std::exception& error) noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// "rank 2" or "server 1".
[[nodiscard]] std::string member_name(int member, int world);

}  // namespace paceline
