// SPDX-License-Identifier: Apache-2.0
// Runs members of a job as threads of this process against a live hub.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "common/comm/job.h"

namespace paceline {

inline JobSpec job_spec(int world, int servers, Nanoseconds timeout) {
  JobSpec spec;
  spec.world = world;
  spec.servers = servers;
  spec.nonce = 0x1234'5678'9abc'def0;
  spec.config_digest = "digest-of-the-test";
  spec.timeout = timeout;
  return spec;
}

/// What ended a member: its exception's type and text, "done" without one.
inline std::string outcome_of(const std::function<void()>& body) {
  try {
    body();
    return "done";
  } catch (const ConfigError& error) {
    return std::string("config: ") + error.what();
  } catch (const TimeoutError& error) {
    return std::string("timeout: ") + error.what();
  } catch (const HubLost& error) {
    return std::string("hub: ") + error.what();
  } catch (const PeerLost& error) {
    return std::string("lost: ") + error.what();
  } catch (const Interrupted& error) {
    return std::string("interrupted: ") + error.what();
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

/// One thread per member; returns every member's outcome_of. What a body throws is reported with
/// fail() first, as the program does.
inline std::vector<std::string> run_members(
    const JobSpec& spec, const std::string& host, std::uint16_t port,
    const std::function<void(JobMember&, int, AbortToken&)>& body) {
  const int members = spec.world + spec.servers;
  std::vector<std::string> outcomes(static_cast<std::size_t>(members));
  std::vector<std::thread> threads;
  for (int member = 0; member < members; ++member) {
    threads.emplace_back([&, member] {
      outcomes[static_cast<std::size_t>(member)] = outcome_of([&] {
        AbortToken abort;
        JobMember job(spec, member, host, port, abort);
        try {
          body(job, member, abort);
        } catch (const std::exception& error) {
          job.fail(error);
          throw;
        }
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return outcomes;
}

}  // namespace paceline
