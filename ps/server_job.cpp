// SPDX-License-Identifier: Apache-2.0
#include "ps/server_job.h"

#include <fmt/format.h>

#include <random>
#include <string>

#include "common/comm/machine_identity.h"
#include "common/core/gpu/gpu.h"
#include "ps/gpu_shard.h"

namespace paceline {

namespace {

constexpr std::size_t kNonceDigits = 16;

std::string random_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

bool on_gpu(const Config& config) {
  return config.ps.device == "cuda";
}

ShardMaker shard_maker(const Config& config, const Rendezvous& met, CudaSource cuda,
                       const AbortToken& abort) {
  if (!on_gpu(config)) {
    return make_host_shard;
  }
  const CudaModule& module = cuda();
  GpuOptions options;
  options.index = choose_gpu(module, config.cuda.device, met.local);
  options.timeout = 2 * config.comm.timeout;  // so that a lost worker is named before
  options.abort = &abort;
  return gpu_shard_maker(module, options);
}

}  // namespace

MailboxOptions mailbox_options(const Config& config) {
  return {config.comm.host, config.ps.transport, config.comm.timeout};
}

bool colocated(const Config& config) {
  return config.ps.placement == "colocated";
}

int server_node(const Config& config, const Topology& topology, int server) {
  return colocated(config) ? topology.node_of_rank(server) : topology.node_of_server(server);
}

/// Member 0 gives the nonce, each member with a server its endpoints.
Rendezvous meet(Communicator& everyone, const Config& config, const ServerMailbox* mine) {
  const std::string endpoints = mine != nullptr ? to_text(mine->endpoints()) : std::string();
  const auto all = everyone.allgather(
      (everyone.rank() == 0 ? random_nonce() : std::string(kNonceDigits, '0')) + endpoints);
  Rendezvous result;
  result.nonce = std::stoull(all.at(0).substr(0, kNonceDigits), nullptr, 16);
  const int first = colocated(config) ? 0 : config.world;
  for (int server = 0; server < config.ps.servers; ++server) {
    result.servers.push_back(
        parse_endpoints(all.at(static_cast<std::size_t>(first + server)).substr(kNonceDigits)));
  }
  result.local = on_gpu(config) ? local_rank(everyone) : 0;
  return result;
}

ServerSetup make_server_setup(const Config& config, const PsRule& rule, const Topology& topology,
                              NicFabric* fabric, int server, const Rendezvous& met, CudaSource cuda,
                              const AbortToken& abort) {
  ServerSetup setup{{server, config.ps.servers, config.world, met.nonce, rule,
                     config.sync_options.exact, job_format(config)},
                    {fabric, server_node(config, topology, server), {}},
                    shard_maker(config, met, cuda, abort)};
  for (int rank = 0; rank < config.world; ++rank) {
    setup.place.worker_nodes.push_back(topology.node_of_rank(rank));
  }
  return setup;
}

}  // namespace paceline
