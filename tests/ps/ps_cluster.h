// SPDX-License-Identifier: Apache-2.0
// A whole parameter-server job inside one process: workers and servers are threads, messages go
// over real sockets.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/comm/communicator.h"
#include "common/sync/backend.h"

namespace paceline::testing {

/// Runs `worker(synchronizer, rank)` on config.world threads and the backend's servers on others;
/// returns when all have ended. Rethrows the first failure.
inline void run_ps_job(const Backend& backend, const Config& config, NicFabric* fabric,
                       AbortToken& abort,
                       const std::function<void(Synchronizer&, int rank)>& worker) {
  if (backend.validate != nullptr) {
    backend.validate(config);
  }
  const int servers = backend.servers(config);
  const Topology topology(config.world, config.topology.ranks_per_node, servers);
  const std::int64_t timeout = config.comm.timeout.count();
  auto workers = make_thread_communicators(config.world, timeout, abort);
  auto everyone = make_thread_communicators(config.world + servers, timeout, abort);
  std::mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&](const std::function<void()>& body) {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!first) {
        first = std::current_exception();
      }
      abort.request(first);
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < config.world; ++rank) {
    threads.emplace_back([&, rank] {
      guarded([&] {
        const auto index = static_cast<std::size_t>(rank);
        const WorkerContext context{rank,   config, topology, *workers[index], *everyone[index],
                                    fabric, abort};
        const auto synchronizer = backend.make(context);
        worker(*synchronizer, rank);
      });
    });
  }
  for (int server = 0; server < servers; ++server) {
    threads.emplace_back([&, server] {
      guarded([&] {
        const auto index = static_cast<std::size_t>(config.world + server);
        backend.serve({server, config, topology, *everyone[index], fabric, abort});
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first) {
    std::rethrow_exception(first);
  }
}

}  // namespace paceline::testing
