// SPDX-License-Identifier: Apache-2.0
#include "experiments/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "experiments/network_devices.h"

namespace paceline {

namespace {

constexpr unsigned kMostLinks = 18;
constexpr unsigned kMostGpus = 64;

struct NvmlCloser {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};

/// Of the functions that are needed at all.
bool complete(const NvmlApi& api) {
  return api.init != nullptr && api.shutdown != nullptr && api.device_count != nullptr &&
         api.device_by_index != nullptr && api.name != nullptr;
}

struct Link {
  bool active = false;
  std::string remote;  ///< PCI bus id; empty: not known
};

/// A GPU with what stays inside this file.
struct Asked {
  NvmlApi::Device device = nullptr;
  GpuCard card;
  std::vector<Link> links;
};

std::vector<Link> ask_links(const NvmlApi& api, NvmlApi::Device device) {
  std::vector<Link> links;
  for (unsigned link = 0; api.link_state != nullptr && link < kMostLinks; ++link) {
    int active = 0;
    if (api.link_state(device, link, &active) != 0) continue;
    NvmlApi::PciInfo remote{};
    const bool known =
        active != 0 && api.link_remote != nullptr && api.link_remote(device, link, &remote) == 0;
    links.push_back({active != 0, known ? std::string(remote.bus_id) : std::string()});
  }
  return links;
}

Asked ask_gpu(const NvmlApi& api, NvmlApi::Device device, const std::filesystem::path& root) {
  Asked gpu{device, {}, ask_links(api, device)};
  std::array<char, 96> name{};
  if (api.name(device, name.data(), static_cast<unsigned>(name.size() - 1)) == 0) {
    gpu.card.name = name.data();
  }
  if (NvmlApi::PciInfo pci{}; api.pci_info != nullptr && api.pci_info(device, &pci) == 0) {
    gpu.card.bus_id = pci.bus_id;
    gpu.card.numa_node = pci_numa_node(root, gpu.card.bus_id);
  }
  if (NvmlApi::Memory memory{};
      api.memory_info != nullptr && api.memory_info(device, &memory) == 0) {
    gpu.card.memory_bytes = memory.total;
    gpu.card.free_bytes = memory.free;
  }
  gpu.card.links = static_cast<int>(gpu.links.size());
  gpu.card.active_links = static_cast<int>(std::ranges::count_if(gpu.links, &Link::active));
  return gpu;
}

/// Links that join the two: straight, or as many as both have into switches.
int nvlinks_between(const Asked& one, const Asked& other, const std::vector<Asked>& all) {
  const auto is_gpu = [&](const Link& link) {
    return std::ranges::any_of(all,
                               [&](const Asked& gpu) { return gpu.card.bus_id == link.remote; });
  };
  const auto into_switches = [&](const Asked& gpu) {
    return std::ranges::count_if(gpu.links, [&](const Link& link) {
      return link.active && !link.remote.empty() && !is_gpu(link);
    });
  };
  const auto straight = std::ranges::count_if(
      one.links, [&](const Link& link) { return link.active && link.remote == other.card.bus_id; });
  return static_cast<int>(straight + std::min(into_switches(one), into_switches(other)));
}

std::string pci_path(int level) {
  switch (level) {
    case 0:
    case 10:
      return "PIX";
    case 20:
      return "PXB";
    case 30:
      return "PHB";
    case 40:
      return "NODE";
    case 50:
      return "SYS";
    default:
      return "?";
  }
}

std::string path_between(const NvmlApi& api, const std::vector<Asked>& gpus, std::size_t i,
                         std::size_t j) {
  if (i == j) return "X";
  if (const int links = nvlinks_between(gpus[i], gpus[j], gpus); links > 0) {
    return fmt::format("NV{}", links);
  }
  int level = -1;
  const bool known = api.common_ancestor != nullptr &&
                     api.common_ancestor(gpus[i].device, gpus[j].device, &level) == 0;
  return known ? pci_path(level) : "?";
}

/// NVML's words for nvmlGpuP2PStatus_t.
std::string p2p_text(int status) {
  constexpr std::array kTexts{"yes",
                              "chipset not supported",
                              "GPU not supported",
                              "not across these host bridges",
                              "turned off in the driver",
                              "not supported"};
  const auto place = static_cast<std::size_t>(status);
  return status >= 0 && place < kTexts.size() ? kTexts[place] : "?";
}

std::string peer_access(const NvmlApi& api, const Asked& one, const Asked& other) {
  if (one.device == other.device) return "yes";
  constexpr int kReading = 0;
  constexpr int kWriting = 1;
  for (const int what : {kReading, kWriting}) {
    int status = -1;
    if (api.p2p_status == nullptr || api.p2p_status(one.device, other.device, what, &status) != 0) {
      return "?";
    }
    if (status != 0) return p2p_text(status);
  }
  return "yes";
}

std::string status_text(const NvmlApi& api, int status) {
  const char* text = api.error_string != nullptr ? api.error_string(status) : nullptr;
  return text != nullptr ? text : fmt::format("status {}", status);
}

GpuTopology ask_initialised(const NvmlApi& api, const std::filesystem::path& root) {
  GpuTopology topology;
  std::array<char, 96> driver{};
  if (api.driver_version != nullptr &&
      api.driver_version(driver.data(), static_cast<unsigned>(driver.size() - 1)) == 0) {
    topology.driver = driver.data();
  }
  unsigned count = 0;
  if (const int status = api.device_count(&count); status != 0) {
    topology.problem = "NVML does not count the GPUs: " + status_text(api, status);
    return topology;
  }
  std::vector<Asked> gpus;
  for (unsigned i = 0; i < std::min(count, kMostGpus); ++i) {
    NvmlApi::Device device = nullptr;
    if (api.device_by_index(i, &device) == 0) gpus.push_back(ask_gpu(api, device, root));
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    std::vector<std::string>& paths = topology.between.emplace_back();
    std::vector<std::string>& peers = topology.peer_access.emplace_back();
    for (std::size_t j = 0; j < gpus.size(); ++j) {
      paths.push_back(path_between(api, gpus, i, j));
      peers.push_back(peer_access(api, gpus[i], gpus[j]));
    }
  }
  for (Asked& gpu : gpus) topology.cards.push_back(std::move(gpu.card));
  if (topology.cards.empty()) topology.problem = "the NVIDIA driver is there, but no GPU";
  return topology;
}

std::string card_text(std::size_t index, const GpuCard& card) {
  constexpr double kCardGiB = 1024.0 * 1024.0 * 1024.0;
  const std::string links =
      card.links == 0 ? std::string("no NVLink")
                      : fmt::format("{} of {} NVLinks active", card.active_links, card.links);
  return fmt::format("GPU{} {}, {}, {:.1f} GiB ({:.1f} free), {}{}", index, card.name, card.bus_id,
                     static_cast<double>(card.memory_bytes) / kCardGiB,
                     static_cast<double>(card.free_bytes) / kCardGiB, links,
                     card.numa_node ? fmt::format(", NUMA node {}", *card.numa_node) : "");
}

std::string peer_text(const GpuTopology& topology) {
  std::string without;
  for (const PeerGap& gap : peer_gaps(topology)) {
    without += fmt::format("{}GPU{} to GPU{} ({})", without.empty() ? "" : ", ", gap.from, gap.to,
                           gap.why == "?" ? "not known" : gap.why);
  }
  return without.empty() ? "peer access: all to all" : "no peer access: " + without;
}

}  // namespace

std::vector<PeerGap> peer_gaps(const GpuTopology& topology) {
  std::vector<PeerGap> gaps;
  for (std::size_t from = 0; from < topology.peer_access.size(); ++from) {
    for (std::size_t to = 0; to < topology.peer_access.size(); ++to) {
      if (const std::string& access = topology.peer_access[from][to]; access != "yes") {
        gaps.push_back({from, to, access});
      }
    }
  }
  return gaps;
}

GpuTopology ask_nvml(const NvmlApi& api, const std::filesystem::path& root) {
  GpuTopology topology;
  if (!complete(api)) {
    topology.problem = "libnvidia-ml.so.1 lacks functions of NVML";
    return topology;
  }
  if (const int status = api.init(); status != 0) {
    topology.problem = "NVML does not start: " + status_text(api, status);
    return topology;
  }
  topology = ask_initialised(api, root);
  static_cast<void>(api.shutdown());
  return topology;
}

GpuTopology find_gpus() {
  const std::unique_ptr<void, NvmlCloser> library(
      dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!library) {
    GpuTopology topology;
    topology.problem = "links between GPUs are not known: no NVIDIA driver (libnvidia-ml.so.1)";
    return topology;
  }
  const auto load = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library.get(), name));
  };
  NvmlApi api;
  load(api.init, "nvmlInit_v2");
  load(api.shutdown, "nvmlShutdown");
  load(api.error_string, "nvmlErrorString");
  load(api.driver_version, "nvmlSystemGetDriverVersion");
  load(api.device_count, "nvmlDeviceGetCount_v2");
  load(api.device_by_index, "nvmlDeviceGetHandleByIndex_v2");
  load(api.name, "nvmlDeviceGetName");
  load(api.pci_info, "nvmlDeviceGetPciInfo_v3");
  load(api.memory_info, "nvmlDeviceGetMemoryInfo");
  load(api.link_state, "nvmlDeviceGetNvLinkState");
  load(api.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
  load(api.common_ancestor, "nvmlDeviceGetTopologyCommonAncestor");
  load(api.p2p_status, "nvmlDeviceGetP2PStatus");
  return ask_nvml(api);
}

std::vector<std::string> describe(const GpuTopology& topology) {
  std::vector<std::string> lines;
  if (!topology.problem.empty()) {
    lines.push_back(topology.problem);
    return lines;
  }
  for (std::size_t i = 0; i < topology.cards.size(); ++i) {
    lines.push_back(card_text(i, topology.cards[i]));
  }
  if (topology.cards.size() < 2) return lines;
  std::string head = "      ";
  for (std::size_t j = 0; j < topology.cards.size(); ++j) {
    head += fmt::format("{:<6}", fmt::format("GPU{}", j));
  }
  lines.push_back(head);
  for (std::size_t i = 0; i < topology.between.size(); ++i) {
    std::string line = fmt::format("{:<6}", fmt::format("GPU{}", i));
    for (const std::string& path : topology.between[i]) line += fmt::format("{:<6}", path);
    lines.push_back(line);
  }
  lines.push_back(peer_text(topology));
  return lines;
}

}  // namespace paceline
