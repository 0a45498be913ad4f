// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <ostream>
#include <string_view>

namespace paceline {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string gibibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / kGiB);
}

std::string loopback_text(const LoopbackSpeed& speed) {
  if (!speed.error.empty()) return "not measured: " + speed.error;
  return fmt::format("{:.2f} GB/s one way, {:.1f} µs half round trip", speed.bytes_per_second / 1e9,
                     speed.half_round_trip_s * 1e6);
}

std::string gpu_text(const Machine& machine) {
  if (machine.gpus.empty()) return "no GPU: " + machine.gpu;
  return fmt::format("{}", fmt::join(machine.gpus, "; "));
}

void append_row(std::string& out, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(out), "  {:<16}{}\n", name, value);
}

void append_rows(std::string& out, std::string_view name, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    append_row(out, &line == &lines.front() ? name : "", line);
  }
}

template <typename Device>
std::vector<std::string> lines_of(const std::vector<Device>& devices, std::string_view none) {
  std::vector<std::string> lines;
  for (const Device& device : devices) lines.push_back(describe(device));
  if (lines.empty()) lines.emplace_back(none);
  return lines;
}

void append_network(std::string& out, const NetworkDevices& network) {
  append_rows(out, "network cards", lines_of(network.cards, "none"));
  append_rows(out, "RDMA", lines_of(network.ports, "no InfiniBand or RoCE device"));
  append_row(out, "GPUDirect RDMA", describe(network.gpu_direct));
}

void append_machine(std::string& out, const DoctorReport& report) {
  const Machine& machine = report.machine;
  out += "Machine\n";
  append_row(out, "processor", report.environment.cpu_model);
  append_row(
      out, "cores",
      fmt::format("{} usable of {}, cgroup quota {}", machine.cores_usable, machine.cores_online,
                  machine.cpu_quota ? fmt::format("{:.2f} cores", *machine.cpu_quota) : "none"));
  append_row(
      out, "memory",
      fmt::format("{}, {} available, cgroup limit {}", gibibytes(machine.memory_bytes),
                  gibibytes(machine.memory_available_bytes),
                  machine.memory_limit_bytes ? gibibytes(*machine.memory_limit_bytes) : "none"));
  append_row(out, "huge pages",
             machine.huge_pages.empty() ? "not known" : "transparent: " + machine.huge_pages);
  append_row(out, "/dev/shm",
             machine.dev_shm_bytes ? gibibytes(*machine.dev_shm_bytes) : "missing");
  append_row(out, "GPU", gpu_text(machine));
  append_rows(out, "GPU links", describe(report.gpus));
  append_row(out, "GPU driver", machine.driver.empty() ? "none" : machine.driver);
  append_network(out, report.network);
  append_row(out, "kernel", report.environment.kernel);
}

void append_program(std::string& out, const DoctorReport& report) {
  out += "\nProgram\n";
  append_row(out, "paceline", report.environment.version);
  append_row(out, "compiler", report.environment.compiler);
  append_row(out, "build", report.build);
  append_row(out, "CUDA module", report.machine.cuda_module);
  for (const auto& [name, version] : report.environment.libraries) append_row(out, name, version);
  for (const auto& [name, file] : report.machine.cuda_libraries) {
    append_row(out, name + " from", file);
  }
}

nlohmann::ordered_json loopback_json(const LoopbackSpeed& speed) {
  if (!speed.error.empty()) return {{"error", speed.error}};
  return {{"bytes_per_second", speed.bytes_per_second},
          {"half_round_trip_s", speed.half_round_trip_s}};
}

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json gpus_json(const GpuTopology& topology) {
  nlohmann::ordered_json json{{"problem", topology.problem}, {"driver", topology.driver}};
  json["gpus"] = nlohmann::ordered_json::array();
  for (const GpuCard& card : topology.cards) {
    json["gpus"].push_back({{"name", card.name},
                            {"bus_id", card.bus_id},
                            {"memory_bytes", card.memory_bytes},
                            {"free_bytes", card.free_bytes},
                            {"numa_node", or_null(card.numa_node)},
                            {"nvlinks", card.links},
                            {"active_nvlinks", card.active_links}});
  }
  json["between"] = topology.between;
  json["peer_access"] = topology.peer_access;
  return json;
}

nlohmann::ordered_json network_json(const NetworkDevices& network) {
  nlohmann::ordered_json json;
  json["cards"] = nlohmann::ordered_json::array();
  for (const NetworkCard& card : network.cards) {
    json["cards"].push_back({{"name", card.name},
                             {"driver", card.driver},
                             {"state", card.state},
                             {"mbit_per_s", or_null(card.mbit_per_s)},
                             {"numa_node", or_null(card.numa_node)}});
  }
  json["rdma"] = nlohmann::ordered_json::array();
  for (const RdmaPort& port : network.ports) {
    json["rdma"].push_back({{"device", port.device},
                            {"port", port.port},
                            {"link", port.link},
                            {"state", port.state},
                            {"rate", port.rate},
                            {"numa_node", or_null(port.numa_node)}});
  }
  json["gpu_direct"] = {{"peer_memory_module", network.gpu_direct.peer_memory_module},
                        {"kernel_dma_buf", network.gpu_direct.kernel_dma_buf},
                        {"open_driver", or_null(network.gpu_direct.open_driver)},
                        {"possible", network.gpu_direct.possible()}};
  return json;
}

}  // namespace

DoctorReport examine() {
  DoctorReport report;
  report.machine = inspect_machine();
  report.environment = read_environment(library_versions());
  report.network = find_network_devices();
  report.gpus = find_gpus();
  report.build = PACELINE_BUILD;
  report.variables = explain_variables(report.environment.variables);
  report.ipv4 = measure_loopback(false);
  if (report.machine.ipv6_loopback) report.ipv6 = measure_loopback(true);
  report.memcpy_bytes_per_second = measure_memcpy();
  return report;
}

std::string doctor_text(const DoctorReport& report) {
  std::string out;
  append_machine(out, report);
  append_program(out, report);
  out += "\nSpeed (measured now)\n";
  append_row(out, "TCP 127.0.0.1", loopback_text(report.ipv4));
  append_row(out, "TCP ::1", report.ipv6 ? loopback_text(*report.ipv6) : "no IPv6 loopback here");
  append_row(out, "memory copy",
             fmt::format("{:.1f} GB/s, one thread", report.memcpy_bytes_per_second / 1e9));
  out += "\nVariables that are set\n";
  for (const VariableNote& note : report.variables) {
    fmt::format_to(std::back_inserter(out), "  {}={}\n      {}\n", note.name, note.value,
                   note.meaning);
    if (!note.warning.empty()) {
      fmt::format_to(std::back_inserter(out), "      Warning: {}\n", note.warning);
    }
  }
  if (report.variables.empty()) out += "  none of NCCL, OpenMP, oneDNN or OpenBLAS\n";
  out += "\nWhat limits runs here\n";
  for (const std::string& word : plain_words(report)) out += fmt::format("  - {}\n", word);
  return out;
}

std::string doctor_json(const DoctorReport& report) {
  const Machine& machine = report.machine;
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(environment_to_json(report.environment));
  json["build"] = report.build;
  json["cpu_quota"] = or_null(machine.cpu_quota);
  json["workers_that_fit"] = effective_cores(machine);
  json["memory_available_bytes"] = machine.memory_available_bytes;
  json["memory_limit_bytes"] = or_null(machine.memory_limit_bytes);
  json["huge_pages"] = machine.huge_pages;
  json["dev_shm_bytes"] = or_null(machine.dev_shm_bytes);
  json["gpus"] = machine.gpus;
  json["no_gpu_because"] =
      machine.gpu.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(machine.gpu);
  json["gpu_driver"] = machine.driver;
  json["cuda_module"] = machine.cuda_module;
  json["cuda_libraries"] = machine.cuda_libraries;
  json["gpu_links"] = gpus_json(report.gpus);
  json["network"] = network_json(report.network);
  json["loopback"] = {
      {"ipv4", loopback_json(report.ipv4)},
      {"ipv6", report.ipv6 ? loopback_json(*report.ipv6) : nlohmann::ordered_json(nullptr)}};
  json["memcpy_bytes_per_second"] = report.memcpy_bytes_per_second;
  json["notes"] = nlohmann::ordered_json::array();
  for (const VariableNote& note : report.variables) {
    json["notes"].push_back({{"name", note.name},
                             {"value", note.value},
                             {"meaning", note.meaning},
                             {"warning", note.warning}});
  }
  json["limits"] = plain_words(report);
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int doctor(std::ostream& out, bool json) {
  const DoctorReport report = examine();
  out << (json ? doctor_json(report) : doctor_text(report)) << std::flush;
  return 0;
}

}  // namespace paceline
