// SPDX-License-Identifier: Apache-2.0
#include "async/asgd_backend.h"

#include "ps/ps_backend.h"
#include "ps/ps_synchronizer.h"

namespace paceline {

namespace {
constexpr PsRule kRule{Consistency::asynchronous, 0};
}

Backend asgd_backend() {
  Backend backend;
  backend.name = "asgd";
  backend.summary = "asynchronous SGD: every gradient is applied when it reaches the server";
  backend.traits = {Consistency::asynchronous, UpdatePlace::server, false};
  backend.validate = [](const Config& config) { validate_ps(config, kRule); };
  backend.servers = ps_server_processes;
  backend.make = [](const WorkerContext& context) { return make_ps_synchronizer(context, kRule); };
  backend.serve = [](const ServerContext& context) { serve_ps(context, kRule); };
  return backend;
}

}  // namespace paceline
