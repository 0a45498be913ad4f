// SPDX-License-Identifier: Apache-2.0
#include "ring/options.h"

#include "ring/schedule.h"

namespace paceline {

TransportOptions transport_options(const CommConfig& config) {
  TransportOptions options;
  options.kind = config.transport;
  options.host = config.host;
  options.tcp_connections = config.tcp_connections;
  options.timeout = config.timeout;
  return options;
}

CollectiveOptions collective_options(const Config& config, const std::atomic<bool>& stop) {
  CollectiveOptions options;
  if (config.ring.algorithm != "auto") {
    options.algorithm = parse_algorithm(config.ring.algorithm);
  }
  options.chunk = config.ring.chunk;
  options.any_order = config.sync_options.exact;
  options.timeout = config.comm.timeout;
  options.stop = &stop;
  return options;
}

}  // namespace paceline
