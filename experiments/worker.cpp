// SPDX-License-Identifier: Apache-2.0
#include "experiments/worker.h"

#include <fmt/format.h>

#include <cmath>

#include "common/base/error.h"
#include "common/base/sha256.h"
#include "common/comm/measure_link.h"
#include "common/comm/transport.h"
#include "common/core/communicator_reducer.h"
#include "common/core/trainer.h"
#include "common/data/sparse_dataset.h"
#include "common/data/text_dataset.h"
#include "common/observe/files.h"
#include "common/observe/memory.h"
#include "common/observe/recorder.h"
#include "common/observe/summary.h"
#include "experiments/backends.h"
#include "experiments/compute.h"
#include "ring/nccl_backend.h"

namespace paceline {

namespace {

constexpr std::int64_t kSyntheticTrain = 6000;
constexpr std::int64_t kSyntheticTest = 1000;
constexpr std::int64_t kSparseTrain = 20000;
constexpr std::int64_t kSparseTest = 4000;

/// A transfer between two ranks shows what the emulated link really gives. One that is off by more
/// than allowed is measured again for a while before it is an error: a busy machine has moments in
/// which it holds a transfer up.
LinkSummary measure(const std::string& key, const std::string& requested, Transport& transport,
                    const WorkerContext& context, int peer) {
  LinkSummary summary;
  summary.requested = requested;
  const LinkSpec spec = parse_link(key, requested);
  const bool takes_part = context.rank == 0 || context.rank == peer;
  if (!spec.shaped() || peer < 0 || !takes_part) {
    return summary;
  }
  constexpr double kAllowed = 0.03;
  constexpr double kMostSeconds = 10.0;
  const double patience_s =
      std::min(kMostSeconds, seconds(context.config.comm.timeout.count()) / 2);
  double off = 0.0;
  for (double spent_s = 0.0; spent_s < patience_s;) {
    const LinkMeasurement measured = measure_link(transport, 0, peer, spec.bytes_per_second,
                                                  Deadline::after(context.config.comm.timeout));
    summary.measured_bits_per_second = measured.bytes_per_second * 8.0;
    summary.measured_round_trip_s = measured.round_trip_s;
    off = measured.bytes_per_second / spec.bytes_per_second - 1.0;
    if (std::abs(off) <= kAllowed) {
      return summary;
    }
    spent_s += measured.took_s;
  }
  throw Error(fmt::format(
      "{} = \"{}\": the emulated link gave {:.1f}% of the rate asked for; at "
      "most 3% off is allowed (other work holds this machine's cores: end it, or ask for a "
      "slower link or none)",
      key, requested, 100.0 * (1.0 + off)));
}

struct Links {
  LinkSummary inter;
  LinkSummary intra;
};

Links measure_links(const WorkerContext& context) {
  const Config& config = context.config;
  Links links{{config.link.inter, {}, {}}, {config.link.intra, {}, {}}};
  if (context.fabric == nullptr || config.world < 2) {
    return links;
  }
  int other_node = -1;
  int same_node = -1;
  for (int rank = config.world - 1; rank > 0; --rank) {
    (context.topology.same_node(0, rank) ? same_node : other_node) = rank;
  }
  const auto transport =
      make_transport({"tcp", config.comm.host, 1, config.comm.timeout}, context.workers,
                     context.topology, context.fabric, context.abort);
  links.inter = measure("link.inter", config.link.inter, *transport, context, other_node);
  context.workers.barrier();
  links.intra = measure("link.intra", config.link.intra, *transport, context, same_node);
  context.workers.barrier();
  return links;
}

/// The weights' digest; all ranks must agree on it.
std::string agreed_digest(const WorkerContext& context, std::span<const float> weights) {
  std::string mine = sha256_hex(std::as_bytes(weights));
  const std::vector<std::string> all = context.workers.allgather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[0]) {
      throw Error(fmt::format("rank {} holds other weights than rank 0 after the last step", rank));
    }
  }
  return mine;
}

MemorySummary counted_memory(const Synchronizer& synchronizer, const Model& model) {
  const MemoryUse use = synchronizer.memory();
  return {
      static_cast<std::int64_t>(use.weights),   static_cast<std::int64_t>(use.gradients),
      static_cast<std::int64_t>(use.optimizer), static_cast<std::int64_t>(model.activation_bytes()),
      static_cast<std::int64_t>(use.staging),   static_cast<std::int64_t>(use.residual)};
}

void fill_peaks(Summary& summary, Communicator& workers, const Device& device) {
  const double mine[] = {static_cast<double>(peak_rss_bytes()),
                         static_cast<double>(device.peak_bytes())};
  const std::vector<double> peaks = workers.max(mine);
  summary.peak_rss_bytes = static_cast<std::int64_t>(peaks[0]);
  if (device.kind() == DeviceKind::cuda) {
    summary.peak_device_bytes = static_cast<std::int64_t>(peaks[1]);
  }
}

void fill_outcome(Summary& summary, const TrainOutcome& outcome) {
  summary.steps = outcome.steps;
  summary.samples = outcome.samples;
  summary.train_seconds = outcome.train_s;
  summary.samples_per_second =
      outcome.train_s > 0.0 ? static_cast<double>(outcome.samples) / outcome.train_s : 0.0;
  summary.compute_s = outcome.compute_s;
  summary.exposed_comm_s = outcome.exposed_comm_s;
  summary.wait_s = outcome.wait_s;
  if (outcome.waited_for >= 0) {
    summary.waited_for = outcome.waited_for;
    summary.waited_for_share = outcome.waited_for_share;
  }
  summary.communication_s = outcome.communication_s;
  summary.bytes_sent_per_rank = outcome.bytes_sent;
  if (outcome.staleness.updates > 0) {
    summary.staleness_mean = outcome.staleness.sum / static_cast<double>(outcome.staleness.updates);
  }
  summary.staleness_max = outcome.staleness.max;
  summary.staleness_histogram = outcome.staleness.histogram;
  summary.final_train_loss = outcome.final_loss;
  summary.time_to_target_s = outcome.time_to_target_s;
  summary.late_fraction = outcome.late_fraction;
  summary.skipped_steps = outcome.skipped;
  for (const Evaluation& e : outcome.evaluations) {
    summary.evaluations.push_back({e.samples_trained, e.train_s, e.accuracy, e.loss});
  }
  if (!outcome.evaluations.empty()) {
    summary.test_accuracy = outcome.evaluations.back().accuracy;
    summary.test_loss = outcome.evaluations.back().loss;
  }
}

Summary describe_run(const WorkerContext& context, const Backend& backend) {
  const Config& config = context.config;
  Summary summary;
  summary.name = config.run.name.empty() ? config.sync : config.run.name;
  summary.backend = config.sync;
  summary.model = config.model;
  summary.world_size = config.world;
  summary.servers = backend.traits.updates_at == UpdatePlace::server ? config.ps.servers : 0;
  summary.seed = config.seed;
  summary.target_accuracy = config.train.target_accuracy;
  summary.collectives = collectives_of(config);
  return summary;
}

}  // namespace

Datasets load_datasets(const Config& config) {
  const DataConfig& data = config.data;
  const Augmentation augmentation{data.augment == "standard", config.seed};
  const auto size = [](std::int64_t limit, std::int64_t full) { return limit > 0 ? limit : full; };
  if (data.name == "synthetic") {
    const SampleShape shape = parse_image_shape(data.shape);
    return {make_synthetic(size(data.train_limit, kSyntheticTrain), shape, data.classes,
                           config.seed, Split::train, augmentation),
            make_synthetic(size(data.test_limit, kSyntheticTest), shape, data.classes, config.seed,
                           Split::test)};
  }
  if (data.name == "sparse") {
    const SparseShape shape{data.features, data.nonzeros};
    return {make_sparse(size(data.train_limit, kSparseTrain), shape, config.seed, Split::train),
            make_sparse(size(data.test_limit, kSparseTest), shape, config.seed, Split::test)};
  }
  if (data.name == "text") {
    return load_text(data.path, data.context, data.train_limit, data.test_limit);
  }
  if (data.name == "libsvm") {
    return load_libsvm(data.path, data.train_limit, data.test_limit);
  }
  if (data.name == "cifar10") {
    return {load_cifar10(data.path, Split::train, data.train_limit, augmentation),
            load_cifar10(data.path, Split::test, data.test_limit)};
  }
  return {load_fashion_mnist(data.path, Split::train, data.train_limit, augmentation),
          load_fashion_mnist(data.path, Split::test, data.test_limit)};
}

std::unique_ptr<NicFabric> join_fabric(const Config& config, const Topology& topology,
                                       Communicator& everyone) {
  const LinkSpec inter = parse_link("link.inter", config.link.inter);
  const LinkSpec intra = parse_link("link.intra", config.link.intra);
  if (!inter.shaped() && !intra.shaped()) {
    return nullptr;
  }
  return NicFabric::join(everyone, topology.nodes(), inter, intra);
}

void run_worker(const WorkerContext& context, const Backend& backend, const Datasets& data,
                FaultInjector& faults, const std::filesystem::path& run_directory,
                bool show_progress) {
  const Config& config = context.config;
  Summary summary = describe_run(context, backend);
  Recorder recorder(config,
                    {run_directory, context.rank, summary.name, data.train->size(),
                     data.test->size(), show_progress},
                    faults);
  const Links links = measure_links(context);
  summary.link_inter = links.inter;
  summary.link_intra = links.intra;

  const std::string note =
      config.device == "cuda" ? "" : precision_note(parse_precision(config.precision.compute));
  for (const std::string& line : {note, collectives_note(config)}) {
    if (context.rank == 0 && !line.empty()) {
      fmt::print(stderr, "{}\n", line);
    }
  }
  const auto device = make_device(context, cuda_module());
  CommunicatorReducer reducer(context.workers);
  const auto model = make_model_on(*device, context, *data.train, &reducer);
  WorkerContext with_statistics = context;
  with_statistics.statistics = &reducer;
  const auto synchronizer = make_synchronizer_on(*device, backend, with_statistics);
  ReplicaView view;
  const TrainOutcome outcome = train({config, *device, *model, *data.train, *data.test,
                                      *synchronizer, context.workers, context.abort, recorder},
                                     view);
  recorder.finish();
  fill_outcome(summary, outcome);
  summary.weights_sha256 = agreed_digest(context, weights_on_host(*device, view.weights));
  fill_peaks(summary, context.workers, *device);
  summary.memory = counted_memory(*synchronizer, *model);
  if (config.cuda.graph) summary.graph_batches = model->graph_batches();
  constexpr double kLateStepsAllowed = 0.05;
  summary.host_bound = summary.late_fraction > kLateStepsAllowed;
  if (context.rank == 0) {
    write_file_atomically(run_directory / kWorkerSummaryFile, summary_to_json(summary));
  }
}

}  // namespace paceline
