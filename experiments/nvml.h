// SPDX-License-Identifier: Apache-2.0
// GPUs and the links between them as NVIDIA's management library (libnvidia-ml.so.1, part of the
// driver) tells. It is opened at run time and needs neither CUDA nor its headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

/// The functions of the library that are used, by its own names without "nvml", with its own
/// types as the ABI has them. A status of 0 is success. A null pointer: the library lacks it.
struct NvmlApi {
  using Device = void*;
  struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned device_id;
    unsigned subsystem_id;
    char bus_id[32];
  };
  struct Memory {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int status) = nullptr;
  int (*driver_version)(char* version, unsigned length) = nullptr;
  int (*device_count)(unsigned* count) = nullptr;
  int (*device_by_index)(unsigned index, Device* device) = nullptr;
  int (*name)(Device device, char* name, unsigned length) = nullptr;
  int (*pci_info)(Device device, PciInfo* info) = nullptr;
  int (*memory_info)(Device device, Memory* memory) = nullptr;
  int (*link_state)(Device device, unsigned link, int* active) = nullptr;
  /// The GPU or switch at the other end.
  int (*link_remote)(Device device, unsigned link, PciInfo* info) = nullptr;
  /// 0 the same board, 10 one PCI switch, 20 several, 30 one host bridge, 40 one NUMA node, 50 none
  int (*common_ancestor)(Device one, Device other, int* level) = nullptr;
  /// `what`: 0 reading, 1 writing. Status 0: possible, others say why not.
  int (*p2p_status)(Device one, Device other, int what, int* status) = nullptr;
};

struct GpuCard {
  std::string name;
  std::string bus_id;
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::optional<int> numa_node;
  int links = 0;         ///< NVLinks that it has
  int active_links = 0;  ///< of them
};

struct GpuTopology {
  std::string problem;  ///< why nothing is known; empty otherwise
  std::string driver;
  std::vector<GpuCard> cards;
  /// By GPU and GPU, as `nvidia-smi topo -m` writes it: X itself, NV<n> n NVLinks, PIX one PCI
  /// switch, PXB several, PHB a host bridge, NODE a NUMA node, SYS between NUMA nodes, ? not known.
  std::vector<std::vector<std::string>> between;
  /// By GPU and GPU: may the row's read and write the column's memory directly? "yes" (also
  /// itself),
  /// "?" not known, else why not.
  std::vector<std::vector<std::string>> peer_access;
};

/// GPU `from` may not use the memory of GPU `to`, or nobody knows (`why` is "?").
struct PeerGap {
  std::size_t from;
  std::size_t to;
  std::string why;
};
[[nodiscard]] std::vector<PeerGap> peer_gaps(const GpuTopology& topology);

/// Asks `api`, which was opened; `root` stands before /sys.
[[nodiscard]] GpuTopology ask_nvml(const NvmlApi& api, const std::filesystem::path& root = "/");

/// Opens the library; without it `problem` says so.
[[nodiscard]] GpuTopology find_gpus();

/// A line per GPU, then, where there are two or more, a table of `between` and a line of who has no
/// peer access.
[[nodiscard]] std::vector<std::string> describe(const GpuTopology& topology);

}  // namespace paceline
