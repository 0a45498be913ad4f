// SPDX-License-Identifier: Apache-2.0
// Runs a whole job, workers and servers, as threads of the test: the real trainer, backend, sockets
// and data, without spawning processes.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/abort.h"
#include "common/core/communicator_reducer.h"
#include "common/core/trainer.h"
#include "common/sync/backend.h"

namespace paceline::testing {

struct ThreadJobResult {
  std::vector<double> losses;               ///< rank 0's mean loss of every step
  std::vector<std::vector<float>> weights;  ///< final, by rank
  TrainOutcome outcome;                     ///< rank 0's
  MemoryUse memory;                         ///< rank 0's, after training
  std::size_t activation_bytes = 0;         ///< likewise, without Model::unplanned_bytes()
};

/// Keeps losses, nothing else.
class LossRecorder final : public TrainObserver {
 public:
  void span(Lane, const char*, std::int64_t, std::int64_t) override {}
  void step(const StepMetrics& metrics, std::int64_t, std::int64_t) override {
    losses.push_back(metrics.loss);
  }
  void evaluated(const Evaluation&) override {}
  void phase(const char*, std::int64_t) override {}
  std::vector<double> losses;
};

/// What a rank computes with: the CPU, unless a test says otherwise.
struct RankParts {
  std::function<std::unique_ptr<Device>(const WorkerContext&)> device = [](const WorkerContext&) {
    return std::make_unique<Device>();
  };
  std::function<std::unique_ptr<Model>(Device&, const WorkerContext&, const Dataset&,
                                       StatisticsReducer*)>
      model = [](Device&, const WorkerContext& context, const Dataset& data,
                 StatisticsReducer* reducer) {
        return make_model(context.config.model, data.shape(), data.classes(),
                          model_options(context.config, context.rank, reducer));
      };
  std::function<std::unique_ptr<Synchronizer>(const Device&, const Backend&, const WorkerContext&)>
      synchronizer = [](const Device&, const Backend& backend, const WorkerContext& context) {
        return backend.make(context);
      };
};

/// Trains `config` under `backend`. Rethrows the first error of any thread.
inline ThreadJobResult run_thread_job(const Config& config, const Backend& backend,
                                      const Dataset& train_set, const Dataset& test_set,
                                      const RankParts& parts = {}) {
  const int servers = backend.servers != nullptr ? backend.servers(config) : 0;
  const Topology topology(config.world, config.topology.ranks_per_node, servers);
  AbortToken abort;
  auto everyone =
      make_thread_communicators(config.world + servers, config.comm.timeout.count(), abort);
  auto workers = make_thread_communicators(config.world, config.comm.timeout.count(), abort);
  ThreadJobResult result;
  result.weights.resize(static_cast<std::size_t>(config.world));
  std::mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&](auto&& body) {
    try {
      body();
    } catch (...) {
      const std::scoped_lock lock(mutex);
      first = first ? first : std::current_exception();
      abort.request(std::current_exception());
    }
  };
  const auto train_rank = [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    CommunicatorReducer reducer(*workers[index]);
    const WorkerContext context{rank,    config, topology, *workers[index], *everyone[index],
                                nullptr, abort,  &reducer};
    const auto device = parts.device(context);
    const auto model = parts.model(*device, context, train_set, &reducer);
    auto synchronizer = parts.synchronizer(*device, backend, context);
    LossRecorder recorder;
    ReplicaView view;
    const TrainOutcome outcome = train({config, *device, *model, train_set, test_set, *synchronizer,
                                        *workers[index], abort, recorder},
                                       view);
    result.weights[index].resize(view.weights.size());
    device->download(view.weights, result.weights[index]);
    if (rank == 0) {
      result.losses = recorder.losses;
      result.outcome = outcome;
      result.memory = synchronizer->memory();
      result.activation_bytes = model->activation_bytes() - model->unplanned_bytes();
    }
    synchronizer.reset();  // servers serve until all workers are done
  };
  // The barrier comes after the synchronizer's end: its goodbye is what lets a server return.
  const auto work = [&](int rank) {
    train_rank(rank);
    everyone[static_cast<std::size_t>(rank)]->barrier();
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < config.world; ++rank) {
      threads.emplace_back([&, rank] { guarded([&] { work(rank); }); });
    }
    for (int server = 0; server < servers; ++server) {
      threads.emplace_back([&, server] {
        guarded([&] {
          Communicator& all = *everyone[static_cast<std::size_t>(config.world + server)];
          backend.serve({server, config, topology, all, nullptr, abort});
          all.barrier();
        });
      });
    }
  }
  if (first) {
    std::rethrow_exception(first);
  }
  return result;
}

}  // namespace paceline::testing
