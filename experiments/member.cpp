// SPDX-License-Identifier: Apache-2.0
#include "experiments/member.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/base/error.h"
#include "common/base/fault.h"
#include "common/base/sha256.h"
#include "common/comm/job.h"
#include "common/config/print.h"
#include "experiments/backends.h"
#include "experiments/signals.h"
#include "experiments/worker.h"

namespace paceline {

namespace {

/// All workers as threads of this process. The first exception ends the others and is rethrown.
void run_threads(const Config& config, const Backend& backend, const Topology& topology,
                 const Datasets& data, const MemberOptions& options, AbortToken& abort) {
  auto communicators = make_thread_communicators(config.world, config.comm.timeout.count(), abort);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < config.world; ++rank) {
      threads.emplace_back([&, rank,
                            communicator = std::move(
                                communicators[static_cast<std::size_t>(rank)])]() mutable {
        try {
          const auto fabric = join_fabric(config, topology, *communicator);
          FaultInjector faults(config.fault.kill, config.fault.stop, rank);
          run_worker({rank, config, topology, *communicator, *communicator, fabric.get(), abort},
                     backend, data, faults, options.run_directory, options.show_progress);
        } catch (...) {
          const std::scoped_lock lock(mutex);
          if (!first) {
            first = std::current_exception();
          }
          abort.request(std::current_exception());
        }
      });
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

void run_in_job(const Config& config, const Backend& backend, const Topology& topology,
                MemberOptions options, FaultInjector& faults, JobMember& job, AbortToken& abort) {
  options.run_directory = job.everyone().broadcast(0, options.run_directory.string());
  if (options.member >= worker_processes(config)) {
    const auto fabric = join_fabric(config, topology, job.everyone());
    backend.serve(
        {options.member - config.world, config, topology, job.everyone(), fabric.get(), abort});
    return;
  }
  const Datasets data = load_datasets(config);
  if (workers_are_threads(config, backend)) {
    run_threads(config, backend, topology, data, options, abort);
    return;
  }
  const auto fabric = join_fabric(config, topology, job.everyone());
  run_worker(
      {options.member, config, topology, *job.workers(), job.everyone(), fabric.get(), abort},
      backend, data, faults, options.run_directory, options.show_progress);
}

}  // namespace

JobSpec job_spec(const Config& config) {
  JobSpec spec;
  spec.world = worker_processes(config);
  spec.servers = server_processes(config, find_backend(config.sync));
  spec.config_digest = sha256_hex(canonical_text(config));
  spec.timeout = config.comm.timeout;
  return spec;
}

int worker_processes(const Config& config) {
  return workers_are_threads(config, find_backend(config.sync)) ? 1 : config.world;
}

int run_member(const Config& config, const MemberOptions& options) {
  const Backend backend = find_backend(config.sync);
  const Topology topology(config.world, config.topology.ranks_per_node,
                          server_processes(config, backend));
  AbortToken abort;
  const SignalWatcher signals(abort);
  FaultInjector faults(config.fault.kill, config.fault.stop, options.member);
  faults.at("start", 0);
  JobSpec spec = job_spec(config);
  spec.nonce = options.nonce;
  try {
    JobMember job(spec, options.member, options.hub_host, options.hub_port, abort);
    try {
      faults.at("rendezvous", 0);
      run_in_job(config, backend, topology, options, faults, job, abort);
      job.everyone().barrier();
      return 0;
    } catch (const std::exception& error) {
      if (const std::exception_ptr untold = job.fail(error)) {
        std::rethrow_exception(untold);
      }
      throw;
    }
  } catch (const HubLost&) {
    throw;
  } catch (const Interrupted& error) {
    return 128 + error.signal();
  } catch (const ConfigError&) {
    return 2;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace paceline
