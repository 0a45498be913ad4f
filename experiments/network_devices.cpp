// SPDX-License-Identifier: Apache-2.0
#include "experiments/network_devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>

#include "common/config/value_text.h"

namespace paceline {

namespace {

namespace fs = std::filesystem;

/// Its first line without the newline; empty where it cannot be read, as the speed of a card that
/// is down.
std::string sysfs_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::vector<std::string> sorted_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

/// -1 there means none.
std::optional<int> numa_node_of(const fs::path& device) {
  const auto node = parse_integer(sysfs_line(device / "numa_node"));
  if (!node || *node < 0 || *node > 1'000'000) return std::nullopt;
  return static_cast<int>(*node);
}

std::string driver_of(const fs::path& device) {
  std::error_code error;
  return fs::read_symlink(device / "driver", error).filename().string();
}

NetworkCard read_card(const fs::path& folder, std::string name) {
  NetworkCard card;
  card.name = std::move(name);
  card.driver = driver_of(folder / "device");
  card.state = sysfs_line(folder / "operstate");
  const auto speed = parse_integer(sysfs_line(folder / "speed"));
  if (speed && *speed > 0) card.mbit_per_s = speed;
  card.numa_node = numa_node_of(folder / "device");
  return card;
}

/// "4: ACTIVE" is ACTIVE.
std::string after_colon(const std::string& text) {
  const std::size_t at = text.find(": ");
  return at == std::string::npos ? text : text.substr(at + 2);
}

void add_ports(const fs::path& folder, const std::string& device, std::vector<RdmaPort>& ports) {
  for (const std::string& name : sorted_names(folder / "ports")) {
    const auto number = parse_integer(name);
    if (!number || *number < 1 || *number > 255) continue;
    const fs::path port = folder / "ports" / name;
    ports.push_back({device, static_cast<int>(*number), sysfs_line(port / "link_layer"),
                     after_colon(sysfs_line(port / "state")), sysfs_line(port / "rate"),
                     numa_node_of(folder / "device")});
  }
}

bool at_least(const std::string& release, int major, int minor) {
  int has_major = 0;
  int has_minor = 0;
  return std::sscanf(release.c_str(), "%d.%d", &has_major, &has_minor) == 2 &&
         (has_major > major || (has_major == major && has_minor >= minor));
}

GpuDirect read_gpu_direct(const fs::path& root) {
  GpuDirect direct;
  std::error_code error;
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    if (direct.peer_memory_module.empty() && fs::exists(root / "sys/module" / module, error)) {
      direct.peer_memory_module = module;
    }
  }
  direct.kernel_dma_buf = at_least(sysfs_line(root / "proc/sys/kernel/osrelease"), 5, 12);
  if (const std::string driver = sysfs_line(root / "proc/driver/nvidia/version"); !driver.empty()) {
    direct.open_driver = driver.find("Open Kernel Module") != std::string::npos;
  }
  return direct;
}

std::string speed_text(std::int64_t mbit) {
  return mbit >= 1000 ? fmt::format("{:g} Gbit/s", static_cast<double>(mbit) / 1000.0)
                      : fmt::format("{} Mbit/s", mbit);
}

std::string node_text(std::optional<int> node) {
  return node ? fmt::format(", NUMA node {}", *node) : "";
}

}  // namespace

NetworkDevices find_network_devices(const fs::path& root) {
  NetworkDevices devices;
  const fs::path cards = root / "sys/class/net";
  for (const std::string& name : sorted_names(cards)) {
    if (name != "lo") devices.cards.push_back(read_card(cards / name, name));
  }
  const fs::path rdma = root / "sys/class/infiniband";
  for (const std::string& name : sorted_names(rdma)) {
    add_ports(rdma / name, name, devices.ports);
  }
  devices.gpu_direct = read_gpu_direct(root);
  return devices;
}

std::string describe(const NetworkCard& card) {
  return fmt::format("{}, {}, {}, {}{}", card.name,
                     card.mbit_per_s ? speed_text(*card.mbit_per_s) : "speed not known",
                     card.state.empty() ? "state not known" : card.state,
                     card.driver.empty() ? "virtual" : card.driver, node_text(card.numa_node));
}

std::string describe(const RdmaPort& port) {
  return fmt::format("{} port {}, {}, {}, {}{}", port.device, port.port,
                     port.link == "Ethernet" ? "RoCE" : port.link,
                     port.rate.empty() ? "rate not known" : port.rate,
                     port.state.empty() ? "state not known" : port.state,
                     node_text(port.numa_node));
}

std::string describe(const GpuDirect& direct) {
  std::string text = direct.peer_memory_module.empty() ? "nvidia_peermem is not loaded"
                                                       : direct.peer_memory_module + " is loaded";
  text += direct.kernel_dma_buf ? "; dma-buf: the kernel has it" : "; dma-buf: needs Linux 5.12";
  if (direct.kernel_dma_buf) {
    text += !direct.open_driver   ? ", but there is no NVIDIA driver"
            : *direct.open_driver ? ", and so does NVIDIA's open driver"
                                  : ", but NVIDIA's closed driver does not; its open one does";
  }
  return text;
}

std::optional<int> pci_numa_node(const fs::path& root, std::string bus_id) {
  std::ranges::transform(bus_id, bus_id.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  constexpr std::size_t kDomain = 4;
  if (const std::size_t colon = bus_id.find(':'); colon != std::string::npos && colon > kDomain) {
    bus_id.erase(0, colon - kDomain);
  }
  return numa_node_of(root / "sys/bus/pci/devices" / bus_id);
}

}  // namespace paceline
