// SPDX-License-Identifier: Apache-2.0
// Brings a job's servers into being: where they sit, how workers find them, in which memory their
// shards are.
#pragma once

#include <memory>
#include <vector>

#include "common/core/cuda_module.h"
#include "common/sync/backend.h"
#include "ps/mailbox.h"
#include "ps/server.h"

namespace paceline {

/// Where the GPU of ps.device=cuda is found; called only where a server is to use one.
using CudaSource = const CudaModule& (*)();

[[nodiscard]] MailboxOptions mailbox_options(const Config& config);
/// Whether servers are threads of the first ranks.
[[nodiscard]] bool colocated(const Config& config);
/// The emulated node that a server sits on.
[[nodiscard]] int server_node(const Config& config, const Topology& topology, int server);

/// What the members of a job tell each other before the first message.
struct Rendezvous {
  std::uint64_t nonce = 0;
  std::vector<ServerEndpoints> servers;
  int local = 0;  ///< with ps.device=cuda: members before this one on its machine
};

/// Collective over `everyone`. `mine`: of this member's server, null where it has none.
[[nodiscard]] Rendezvous meet(Communicator& everyone, const Config& config,
                              const ServerMailbox* mine);

/// Of a server of this process; `abort` outlives it. Throws ConfigError where ps.device=cuda cannot
/// be had on this machine.
[[nodiscard]] ServerSetup make_server_setup(const Config& config, const PsRule& rule,
                                            const Topology& topology, NicFabric* fabric, int server,
                                            const Rendezvous& met, CudaSource cuda,
                                            const AbortToken& abort);

}  // namespace paceline
