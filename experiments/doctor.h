// SPDX-License-Identifier: Apache-2.0
// `paceline doctor`: what this machine has and, in plain words, what limits runs here.
#pragma once

#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/observe/environment.h"
#include "experiments/host_speed.h"
#include "experiments/machine.h"
#include "experiments/network_devices.h"
#include "experiments/nvml.h"
#include "experiments/variable_notes.h"

namespace paceline {

struct DoctorReport {
  Machine machine;
  Environment environment;
  NetworkDevices network;
  GpuTopology gpus;   ///< and the links between them
  std::string build;  ///< build type and flags of this program
  std::vector<VariableNote> variables;
  LoopbackSpeed ipv4;
  std::optional<LoopbackSpeed> ipv6;  ///< empty: no ::1 here
  double memcpy_bytes_per_second = 0.0;
};

/// Inspects and measures; takes about a second.
[[nodiscard]] DoctorReport examine();

/// Sentences on what limits runs here, most important first.
[[nodiscard]] std::vector<std::string> plain_words(const DoctorReport& report);

[[nodiscard]] std::string doctor_text(const DoctorReport& report);
[[nodiscard]] std::string doctor_json(const DoctorReport& report);

/// Examines and prints; returns the exit status, 0.
int doctor(std::ostream& out, bool json);

}  // namespace paceline
