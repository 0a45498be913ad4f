// SPDX-License-Identifier: Apache-2.0
// A member process for launch_test: joins its job and does what its script says at each step.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "common/base/error.h"
#include "common/base/fault.h"
#include "common/comm/job.h"
#include "experiments/signals.h"

namespace paceline {
namespace {

constexpr int kSteps = 20;
constexpr int kInterrupted = 128;

/// What the member does in step 10 of 20, besides the collectives.
void misbehave(const std::string& script, JobMember& job) {
  if (script == "throw") throw Error("the loss is nan at step 10");
  if (script == "config") throw ConfigError("no such file");
  if (script == "crash") std::abort();
  if (script == "exit") _exit(5);
  if (script == "leave") _exit(0);
  if (script == "deaf") {  // alive, joined, but neither SIGTERM nor the end of the job moves it
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (script == "blame") {
    job.fail(PeerLost("rank 1 closed its connection"));
    _exit(1);
  }
}

int run(int argc, char** argv) {
  // launch_member MEMBER HOST PORT NONCE WORLD SERVERS TIMEOUT_MS KILL STOP SCRIPT
  if (argc != 11) return 2;
  const int member = std::atoi(argv[1]);
  JobSpec spec;
  spec.nonce = std::strtoull(argv[4], nullptr, 10);
  spec.world = std::atoi(argv[5]);
  spec.servers = std::atoi(argv[6]);
  spec.timeout = std::chrono::milliseconds(std::atoi(argv[7]));
  spec.config_digest = "launch-test";
  AbortToken abort;
  const SignalWatcher signals(abort);
  FaultInjector faults(argv[8], argv[9], member);
  faults.at("start");
  try {
    JobMember job(spec, member, argv[2], static_cast<std::uint16_t>(std::atoi(argv[3])), abort);
    try {
      faults.at("rendezvous");
      for (int step = 0; step < kSteps; ++step) {
        faults.at("forward", step);
        if (step == kSteps / 2) misbehave(argv[10], job);
        if (step == kSteps - 1) faults.at("last", step);
        job.everyone().barrier();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    } catch (const std::exception& error) {
      job.fail(error);
      throw;
    }
  } catch (const Interrupted& interrupted) {
    return kInterrupted + interrupted.signal();
  } catch (const ConfigError&) {
    return 2;
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  return paceline::run(argc, argv);
}
