// SPDX-License-Identifier: Apache-2.0
// What `paceline doctor` concludes from what it found.
#include <fmt/format.h>

#include <algorithm>

#include "experiments/doctor.h"

namespace paceline {
namespace {

std::string gibibytes_text(std::int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0));
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
                                gibibytes_text(*machine.memory_limit_bytes),
                                gibibytes_text(machine.memory_bytes)));
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
  } else if (report.machine.cuda_module.starts_with("not usable")) {
    words.push_back(
        fmt::format("There is a GPU that this program cannot use ({}): layers run on "
                    "the CPU (device=cpu).",
                    report.machine.cuda_module));
  } else {
    words.emplace_back("Layers run on the CPU unless a run says device=cuda.");
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

void add_link_words(const DoctorReport& report, std::vector<std::string>& words) {
  for (std::size_t i = 0; i < report.gpus.cards.size(); ++i) {
    const GpuCard& card = report.gpus.cards[i];
    if (card.active_links > 0 && card.active_links < card.links) {
      words.push_back(fmt::format("GPU{}: only {} of {} NVLinks are active.", i, card.active_links,
                                  card.links));
    }
  }
  const bool far = std::ranges::any_of(report.gpus.between, [](const auto& row) {
    return std::ranges::find(row, "SYS") != row.end();
  });
  if (far) {
    words.emplace_back(
        "Some GPUs reach each other only across NUMA nodes (SYS): ranks on them share the link "
        "between processors.");
  }
  for (const PeerGap& gap : peer_gaps(report.gpus)) {
    if (gap.why != "?") {
      words.push_back(
          fmt::format("GPU{} cannot reach the memory of GPU{} ({}): NCCL goes through the host's "
                      "memory between them.",
                      gap.from, gap.to, gap.why));
    }
  }
}

void add_rdma_words(const DoctorReport& report, std::vector<std::string>& words) {
  for (const RdmaPort& port : report.network.ports) {
    if (port.state != "ACTIVE") {
      words.push_back(fmt::format("{} port {} is {}: NCCL does not use it.", port.device, port.port,
                                  port.state.empty() ? "in no known state" : port.state));
    }
  }
  const bool gpus = !report.gpus.cards.empty() || !report.machine.gpus.empty();
  if (gpus && !report.network.ports.empty() && !report.network.gpu_direct.possible()) {
    words.emplace_back(
        "Network cards cannot reach GPU memory themselves (GPUDirect RDMA), so traffic between "
        "nodes goes through the host: load nvidia_peermem, or NVIDIA's open driver on Linux 5.12 "
        "and newer.");
  }
}

}  // namespace

std::vector<std::string> plain_words(const DoctorReport& report) {
  std::vector<std::string> words;
  add_core_words(report, words);
  add_memory_words(report, words);
  add_network_words(report, words);
  add_gpu_words(report, words);
  add_link_words(report, words);
  add_rdma_words(report, words);
  return words;
}

}  // namespace paceline
