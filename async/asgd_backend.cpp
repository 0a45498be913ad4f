// SPDX-License-Identifier: Apache-2.0
#include "async/asgd_backend.h"

#include "ps/ps_backend.h"
#include "ps/ps_synchronizer.h"

namespace paceline {

namespace {
PsRule asgd_rule(const Config& config) {
  return with_async({Consistency::asynchronous, 0}, config.async);
}
}  // namespace

Backend asgd_backend() {
  Backend backend;
  backend.name = "asgd";
  backend.summary = "asynchronous SGD: every gradient is applied when it reaches the server";
  backend.traits = {Consistency::asynchronous, UpdatePlace::server, false};
  backend.validate = [](const Config& config) { validate_ps(config, asgd_rule(config)); };
  backend.servers = ps_server_processes;
  backend.make = [](const WorkerContext& context) {
    return make_ps_synchronizer(context, asgd_rule(context.config));
  };
  backend.serve = [](const ServerContext& context) {
    serve_ps(context, asgd_rule(context.config));
  };
  return backend;
}

}  // namespace paceline
