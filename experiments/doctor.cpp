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

void add_core_words(const DoctorReport& report, std::vector<std::string>& words) {
  const Machine& machine = report.machine;
  const int cores = effective_cores(machine);
  if (cores == 1) {
    words.emplace_back(
        "One worker fits: there is one core. More workers take turns on it, so real speed-ups "
        "cannot "
        "show; set compute.emulate to let workers mostly wait, as GPU ranks do.");
  } else {
    words.push_back(fmt::format(
        "Up to {0} workers fit, one per core. With more than {0} they share cores and the speeds "
        "are "
        "this machine's, not the backend's, unless compute.emulate makes them mostly wait; a run "
        "that could not keep the emulated pace is marked host-bound.",
        cores));
    words.push_back(
        fmt::format("Servers (sync=ps, asgd) and helper threads need time of the same cores: {} "
                    "workers and one "
                    "server are one process more than there are cores.",
                    cores));
  }
  if (machine.cpu_quota && *machine.cpu_quota < machine.cores_usable) {
    words.push_back(
        fmt::format("The cgroup allows {:.2g} cores' worth of time although {} cores are visible: "
                    "workers beyond "
                    "that are stopped for part of every period, which shows as waiting.",
                    *machine.cpu_quota, machine.cores_usable));
  }
  if (machine.cores_usable < machine.cores_online) {
    words.push_back(fmt::format("This process may use {} of {} cores (affinity).",
                                machine.cores_usable, machine.cores_online));
  }
}

void add_memory_words(const DoctorReport& report, std::vector<std::string>& words) {
  const Machine& machine = report.machine;
  if (machine.memory_limit_bytes) {
    words.push_back(fmt::format("All processes together may use {} of memory (cgroup), not {}.",
                                gibibytes(*machine.memory_limit_bytes),
                                gibibytes(machine.memory_bytes)));
  }
  if (machine.huge_pages == "never") {
    words.emplace_back(
        "Transparent huge pages are off, so the first touch of large buffers is slow; it happens "
        "before the first timed step.");
  }
  constexpr std::int64_t kSmallShm = std::int64_t{1} << 30;
  if (!machine.dev_shm_bytes || *machine.dev_shm_bytes < kSmallShm) {
    words.emplace_back(
        "/dev/shm is missing or small. paceline does not need it (its segments have no name), but "
        "NCCL, Open MPI and PyTorch's loaders do.");
  }
}

void add_network_words(const DoctorReport& report, std::vector<std::string>& words) {
  const LoopbackSpeed& loopback = report.ipv4;
  if (!loopback.error.empty()) {
    words.push_back(
        fmt::format("TCP over 127.0.0.1 does not work here ({}): runs over several "
                    "processes cannot start.",
                    loopback.error));
    return;
  }
  // Two ranks: each sends 2(N-1)/N = 1 times the gradient; a ring cannot be faster than one way.
  constexpr double kGradient = 100e6;
  words.push_back(fmt::format(
      "Between two ranks an allreduce of 100 MB of gradients takes at least {:.0f} ms over "
      "loopback "
      "TCP. An emulated link (link.inter) above {:.0f} Gbit/s cannot be kept by one flow here.",
      kGradient / loopback.bytes_per_second * 1e3, loopback.bytes_per_second * 8.0 / 1e9));
  if (!report.ipv6) words.emplace_back("There is no IPv6 loopback (::1): use comm.host=127.0.0.1.");
}

void add_gpu_words(const DoctorReport& report, std::vector<std::string>& words) {
  if (report.machine.gpus.empty()) {
    words.emplace_back("There is no usable GPU: all layers run on the CPU (device=cpu).");
  } else {
    words.emplace_back(
        "There is a GPU, but layers do not compute on GPUs yet: all run on the CPU (device=cpu).");
  }
  if (report.build.find("Release") == std::string::npos) {
    words.push_back(
        fmt::format("This program was built as {}: its speeds mean little.", report.build));
  }
  for (const VariableNote& note : report.variables) {
    if (!note.warning.empty())
      words.push_back(fmt::format("{}={}: {}.", note.name, note.value, note.warning));
  }
}

void append_row(std::string& out, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(out), "  {:<16}{}\n", name, value);
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
  append_row(out, "GPU driver", machine.driver.empty() ? "none" : machine.driver);
  append_row(out, "kernel", report.environment.kernel);
}

void append_program(std::string& out, const DoctorReport& report) {
  out += "\nProgram\n";
  append_row(out, "paceline", report.environment.version);
  append_row(out, "compiler", report.environment.compiler);
  append_row(out, "build", report.build);
  append_row(out, "CUDA module", report.machine.cuda_module);
  for (const auto& [name, version] : report.environment.libraries) append_row(out, name, version);
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

}  // namespace

DoctorReport examine() {
  DoctorReport report;
  report.machine = inspect_machine();
  report.environment = read_environment(library_versions());
  report.build = PACELINE_BUILD;
  report.variables = explain_variables(report.environment.variables);
  report.ipv4 = measure_loopback(false);
  if (report.machine.ipv6_loopback) report.ipv6 = measure_loopback(true);
  report.memcpy_bytes_per_second = measure_memcpy();
  return report;
}

std::vector<std::string> plain_words(const DoctorReport& report) {
  std::vector<std::string> words;
  add_core_words(report, words);
  add_memory_words(report, words);
  add_network_words(report, words);
  add_gpu_words(report, words);
  return words;
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
