// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <iterator>
#include <nlohmann/json.hpp>

#include "experiments/memory_plan.h"

namespace paceline {

namespace {

void append_bytes(std::string& out, std::string_view name, std::size_t bytes) {
  fmt::format_to(std::back_inserter(out), "  {:<28}{:>12}{:>20}\n", name, binary_bytes(bytes),
                 bytes);
}

void append_if(std::string& out, std::string_view name, std::size_t bytes) {
  if (bytes > 0) append_bytes(out, name, bytes);
}

void append_rank(std::string& out, const MemoryPlan& plan) {
  const MemoryUse& w = plan.use.worker;
  const ActivationPlan& a = plan.activations;
  fmt::format_to(std::back_inserter(out), "\n  {:<28}{:>12}{:>20}\n", "one rank", "", "bytes");
  const bool on_gpu = plan.config.device == "cuda";
  append_bytes(out, plan.use.shared_weights ? "weights (of all ranks)" : "weights", w.weights);
  append_bytes(out, "gradients", w.gradients);
  const std::string_view host = plan.use.staged ? " (host)" : "";
  append_bytes(out,
               plan.use.server ? "optimizer (on servers)" : fmt::format("optimizer state{}", host),
               w.optimizer);
  append_bytes(out, "activations", a.total());
  append_if(out, "  outputs of layers", a.outputs);
  append_if(out, "  their gradients", a.gradients);
  append_if(out, "  held by layers", a.layers);
  append_if(out, on_gpu ? "  batches on the GPU" : "  rounded copies", a.copies);
  append_if(out, "  shared scratch", a.scratch);
  append_bytes(out, fmt::format("staging{}", host), w.staging);
  append_if(out, fmt::format("error feedback{}", host), w.residual);
  append_if(out, "workspace of products", plan.workspace);
  append_bytes(out, on_gpu ? "batches of samples (host)" : "batches of samples", plan.batches);
  if (plan.use.server_in_worker) {
    append_if(out, "its server on a GPU", plan.use.server->on_gpu);
    append_bytes(out, on_gpu ? "its server (host)" : "its server", plan.use.server->on_host());
  }
  append_bytes(out, on_gpu ? "total on the GPU" : "total", plan.rank_bytes());
  append_if(out, "total in host memory", plan.host_bytes());
}

void append_server(std::string& out, const MemoryPlan& plan) {
  const PlannedServer& server = *plan.use.server;
  fmt::format_to(std::back_inserter(out), "\n  {:<28}{:>12}{:>20}\n",
                 fmt::format("largest of {} server{}", plan.config.ps.servers,
                             plan.config.ps.servers == 1 ? "" : "s"),
                 "", "bytes");
  append_bytes(out, "weights", server.weights);
  append_bytes(out, "optimizer state", server.optimizer);
  append_if(out, "gradient of a key", server.gradients);
  append_bytes(out, "other versions, at most", server.versions);
  append_bytes(out, "waiting pushes, at most", server.pushes);
  append_bytes(out, "total", server.total());
  append_if(out, "of it on a GPU", server.on_gpu);
}

std::string who_shares(const MemoryPlan& plan) {
  const bool on_gpu = plan.config.device == "cuda";
  if (plan.ranks_here == 1) {
    return on_gpu ? "The rank of a GPU" : "The rank";
  }
  return fmt::format("The {} ranks of a {}", plan.ranks_here, on_gpu ? "GPU" : "machine");
}

std::string verdict(const MemoryPlan& plan) {
  const MemoryLimit& limit = plan.limit;
  const int servers = plan.servers();
  const std::string need = fmt::format("{}{} need{} {}", who_shares(plan),
                                       servers == 0   ? ""
                                       : servers == 1 ? " and a server"
                                                      : fmt::format(" and {} servers", servers),
                                       plan.ranks_here == 1 && servers == 0 ? "s" : "",
                                       binary_bytes(plan.needed_bytes()));
  if (!limit.bytes) {
    return fmt::format("{}. Whether that fits is not known: {}. --memory=80GiB says what there is.",
                       need, limit.source);
  }
  const auto there = static_cast<std::size_t>(*limit.bytes);
  const bool fits = plan.fits().value();
  return fmt::format(
      "{}; there are {} ({}). {}", need, binary_bytes(there), limit.source,
      fits ? fmt::format("It fits; {} are left.", binary_bytes(there - plan.needed_bytes()))
           : fmt::format("It does not fit: {} too much.",
                         binary_bytes(plan.needed_bytes() - there)));
}

std::string not_counted(const MemoryPlan& plan) {
  return plan.config.device == "cuda"
             ? fmt::format(
                   "Not counted: CUDA's context and graphs, NCCL's buffers, pinned buffers of the "
                   "host, and "
                   "the workspace that cuDNN asks for beyond that of products (known on the GPU "
                   "alone; of a convolution at most {}).",
                   binary_bytes(cuda::kMostConvolutionWorkspace))
             : "Not counted: the data set, the program and its libraries, oneDNN's scratch memory, "
               "buffers of sockets.";
}

/// What is not known without the machines of the run.
std::vector<std::string> assumptions(const MemoryPlan& plan) {
  std::vector<std::string> assumed;
  const bool on_gpu = plan.config.device == "cuda";
  if (const auto& attention = plan.attention) {
    assumed.push_back(fmt::format("attention is computed {}{}{}",
                                  attention->fused ? "fused" : "by products",
                                  attention->why.empty() ? "" : ": ", attention->why));
  }
  if (on_gpu && plan.config.cuda.norm == "auto") {
    assumed.emplace_back(
        "batch norms are computed by own kernels, whose scratch cuDNN's do without: which layers "
        "cuda.norm=auto gives cuDNN is known on the GPU alone");
  }
  if (on_gpu && plan.ranks_here == 1 && plan.config.world > 1) {
    assumed.emplace_back("each rank has a GPU of its own");
  }
  if (on_gpu && plan.ranks_here > 1) {
    assumed.push_back(fmt::format("{} ranks share one GPU", plan.ranks_here));
  }
  if (!plan.use.server || plan.use.server->on_gpu == 0) {
    return assumed;
  }
  if (!on_gpu) {
    assumed.emplace_back("what servers have on a GPU fits there");
  } else if (plan.servers() > 0) {
    assumed.push_back(fmt::format(
        "of {} server processes, which take their turns of the GPUs after the ranks, {} this GPU",
        plan.config.ps.servers,
        plan.servers() == 1 ? "one, the largest, shares"
                            : fmt::format("{} share", plan.servers())));
  }
  return assumed;
}

void advise_batch(const MemoryPlan& plan, std::vector<std::string>& advice) {
  const TrainConfig& train = plan.config.train;
  const std::int64_t largest = plan.largest_batch.value_or(0);
  const bool arenas_fit = plan.arena_bytes() * static_cast<std::size_t>(plan.ranks_here) <=
                          static_cast<std::size_t>(plan.limit.bytes.value_or(0));
  if (largest == 0 && arenas_fit) {
    advice.push_back(fmt::format(
        "No batch fits: weights, gradients, optimizer state and staging take {} a rank and leave "
        "too little for train.batch=1; {}a smaller model or smaller samples.",
        binary_bytes(plan.arena_bytes()),
        plan.ranks_here == 1 ? "" : "fewer ranks on a machine, or "));
    return;
  }
  if (largest == 0) {
    advice.push_back(fmt::format(
        "No batch fits: weights, gradients, optimizer state and staging alone take {} a rank. "
        "Splitting a model over ranks (model parallelism) is not in Paceline.",
        binary_bytes(plan.arena_bytes())));
    return;
  }
  const std::int64_t parts = (train.batch + largest - 1) / largest;
  const std::int64_t each = (train.batch + parts - 1) / parts;
  advice.push_back(fmt::format(
      "train.batch={} train.accumulate={}: about the same samples in a step, in parts that fit; "
      "train.batch={} is the largest that fits.",
      each, parts * train.accumulate, largest));
}

void advise_sharding(const MemoryPlan& plan, std::vector<std::string>& advice) {
  const std::size_t now = plan.use.worker.optimizer;
  const std::string& sync = plan.config.sync;
  const bool whole = sync == "ring" || sync == "hierarchical" || sync == "nccl";
  if (!whole || plan.use.staged || plan.config.world < 2 || now <= plan.optimizer_if_sharded)
    return;
  advice.push_back(fmt::format(
      "sync=sharded: each rank keeps the optimizer's state of its shard alone, {} less a rank with "
      "world={} ({} instead of {}), for the same bytes on the wire.",
      binary_bytes(now - plan.optimizer_if_sharded), plan.config.world,
      binary_bytes(plan.optimizer_if_sharded), binary_bytes(now)));
}

void advise_precision(const MemoryPlan& plan, std::vector<std::string>& advice) {
  if (plan.config.precision.compute != "fp32" || plan.config.model == "logistic") return;
  if (plan.config.device == "cuda") {
    const ActivationPlan& a = plan.activations;
    advice.push_back(fmt::format(
        "precision.compute=bf16: activations take half on a GPU, about {} less; weights, "
        "gradients and optimizer state stay fp32.",
        binary_bytes((a.outputs + a.gradients + a.layers) / 2)));
  }
}

void advise_attention(const MemoryPlan& plan, std::vector<std::string>& advice) {
  const Config& config = plan.config;
  if (plan.attention && !plan.attention->fused && config.precision.compute != "fp32" &&
      config.cuda.attention != "fused") {
    advice.emplace_back(
        "cuda.attention=fused: where the GPU's cuDNN can, nothing of a context's square is kept.");
  }
}

void advise_ranks(const MemoryPlan& plan, std::vector<std::string>& advice) {
  if (plan.config.device == "cuda" || plan.ranks_here < 2 || !plan.limit.bytes) return;
  const auto ranks =
      static_cast<std::size_t>(*plan.limit.bytes) / std::max<std::size_t>(plan.rank_bytes(), 1);
  if (ranks > 0 && ranks < static_cast<std::size_t>(plan.ranks_here)) {
    advice.push_back(fmt::format("Fewer ranks on a machine: {} fit{} into this memory.", ranks,
                                 ranks == 1 ? "s" : ""));
  }
}

}  // namespace

std::string binary_bytes(std::size_t bytes) {
  constexpr std::array kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  constexpr double kStep = 1024.0;
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= kStep && unit + 1 < kUnits.size()) {
    value /= kStep;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::vector<std::string> memory_advice(const MemoryPlan& plan) {
  std::vector<std::string> advice;
  if (plan.fits().value_or(true)) return advice;
  advise_sharding(plan, advice);
  advise_precision(plan, advice);
  advise_attention(plan, advice);
  advise_batch(plan, advice);
  advise_ranks(plan, advice);
  return advice;
}

std::string memory_text(const MemoryPlan& plan) {
  const Config& config = plan.config;
  std::string out =
      fmt::format("{}: {} parameters, sync={}, world={}, {}, {} on {}, train.batch={}\n",
                  config.model, plan.parameters, config.sync, config.world, config.optimizer.name,
                  config.precision.compute, config.device, config.train.batch);
  append_rank(out, plan);
  if (plan.use.server) append_server(out, plan);
  const MemoryUse& w = plan.use.worker;
  out += fmt::format(
      "\nWeights, gradients and optimizer state take {:.1f} bytes per parameter of a rank.\n",
      static_cast<double>(w.weights + w.gradients + w.optimizer) /
          static_cast<double>(std::max<std::size_t>(plan.parameters, 1)));
  out += verdict(plan) + "\n";
  if (plan.fits().value_or(false) && *plan.largest_batch < kMostBatch) {
    out += fmt::format("The largest train.batch that fits is {}.\n", plan.largest_batch.value());
  }
  for (const std::string& line : memory_advice(plan)) out += fmt::format("  - {}\n", line);
  for (const std::string& line : assumptions(plan)) out += fmt::format("Assumed: {}.\n", line);
  return out + not_counted(plan) + "\n";
}

std::string memory_json(const MemoryPlan& plan) {
  using Json = nlohmann::ordered_json;
  const MemoryUse& w = plan.use.worker;
  const ActivationPlan& a = plan.activations;
  const auto or_null = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json json{{"model", plan.config.model},       {"sync", plan.config.sync},
            {"world", plan.config.world},       {"optimizer", plan.config.optimizer.name},
            {"device", plan.config.device},     {"precision", plan.config.precision.compute},
            {"batch", plan.config.train.batch}, {"parameters", plan.parameters}};
  json["rank"] = {{"weights", w.weights},       {"gradients", w.gradients},
                  {"optimizer", w.optimizer},   {"activations", a.total()},
                  {"staging", w.staging},       {"residual", w.residual},
                  {"batches", plan.batches},    {"workspace", plan.workspace},
                  {"total", plan.rank_bytes()}, {"host", plan.host_bytes()}};
  json["activations"] = {{"outputs", a.outputs},
                         {"gradients", a.gradients},
                         {"layers", a.layers},
                         {"copies", a.copies},
                         {"scratch", a.scratch}};
  json["attention_fused"] = plan.attention ? Json(plan.attention->fused) : Json(nullptr);
  json["server"] = nullptr;
  if (const auto& server = plan.use.server) {
    json["server"] = {{"servers", plan.config.ps.servers}, {"in_rank", plan.use.server_in_worker},
                      {"weights", server->weights},        {"optimizer", server->optimizer},
                      {"gradients", server->gradients},    {"versions", server->versions},
                      {"pushes", server->pushes},          {"total", server->total()},
                      {"on_gpu", server->on_gpu},          {"sharing", plan.servers()}};
  }
  json["ranks_here"] = plan.ranks_here;
  json["needed"] = plan.needed_bytes();
  json["memory"] = or_null(plan.limit.bytes);
  json["memory_from"] = plan.limit.source;
  json["fits"] = or_null(plan.fits());
  json["largest_batch"] = or_null(plan.largest_batch);
  json["optimizer_if_sharded"] = plan.optimizer_if_sharded;
  json["advice"] = memory_advice(plan);
  json["assumed"] = assumptions(plan);
  json["not_counted"] = not_counted(plan);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace paceline
