// SPDX-License-Identifier: Apache-2.0
// Network cards and what GPUs need to use them directly, as /sys and /proc tell.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// A card of /sys/class/net but the loopback.
struct NetworkCard {
  std::string name;
  std::string driver;                      ///< empty: a virtual device
  std::string state;                       ///< "up", "down", "unknown"
  std::optional<std::int64_t> mbit_per_s;  ///< empty: not known, as for most virtual ones
  std::optional<int> numa_node;
};

/// A port of an InfiniBand or RoCE device.
struct RdmaPort {
  std::string device;
  int port = 1;
  std::string link;   ///< "InfiniBand", "Ethernet" (RoCE)
  std::string state;  ///< "ACTIVE", "DOWN", …
  std::string rate;   ///< "400 Gb/sec (4X NDR)"
  std::optional<int> numa_node;
};

/// How a network card may reach a GPU's memory.
struct GpuDirect {
  std::string peer_memory_module;   ///< nvidia_peermem or nv_peer_mem; empty: not loaded
  bool kernel_dma_buf = false;      ///< Linux 5.12 and newer
  std::optional<bool> open_driver;  ///< NVIDIA's open kernel module, which dma-buf needs; empty:
                                    ///< no driver
  [[nodiscard]] bool possible() const noexcept {
    return !peer_memory_module.empty() || (kernel_dma_buf && open_driver.value_or(false));
  }
};

struct NetworkDevices {
  std::vector<NetworkCard> cards;  ///< by name
  std::vector<RdmaPort> ports;     ///< by device and port
  GpuDirect gpu_direct;
};

/// `root` stands before /sys and /proc; tests have a tree of their own. What is missing or cannot
/// be read is left empty.
[[nodiscard]] NetworkDevices find_network_devices(const std::filesystem::path& root = "/");

/// One line each: "eth0, 25 Gbit/s, up, mlx5_core, NUMA node 0".
[[nodiscard]] std::string describe(const NetworkCard& card);
[[nodiscard]] std::string describe(const RdmaPort& port);
[[nodiscard]] std::string describe(const GpuDirect& direct);

/// The node of a PCI device ("00000000:1A:00.0" as well); empty where the system names none.
[[nodiscard]] std::optional<int> pci_numa_node(const std::filesystem::path& root,
                                               std::string bus_id);

}  // namespace paceline
