// SPDX-License-Identifier: Apache-2.0
#include "experiments/machine.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <boost/version.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <sstream>

#include "common/base/cores.h"
#include "common/config/value_text.h"
#include "common/core/cuda_libraries.h"
#include "common/core/cuda_module.h"
#include "common/observe/environment.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string whole_file(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// "MemTotal" of /proc/meminfo in bytes.
std::int64_t meminfo(std::string_view name) {
  std::ifstream in("/proc/meminfo");
  std::string word;
  std::int64_t kib = 0;
  while (in >> word) {
    if (word == fmt::format("{}:", name)) return in >> kib ? kib * 1024 : 0;
  }
  return 0;
}

/// A control file of this process's cgroup or the nearest parent that has it.
std::string cgroup_file(const fs::path& mount, const std::string& group, const char* file) {
  for (fs::path path = mount / fs::path(group).relative_path();; path = path.parent_path()) {
    if (std::string text = first_line(path / file); !text.empty()) return text;
    if (path == mount || !path.has_relative_path()) return {};
  }
}

std::optional<double> read_cpu_quota(const std::string& self) {
  const std::string unified = cgroup_file("/sys/fs/cgroup", cgroup_path(self, ""), "cpu.max");
  if (!unified.empty()) return parse_cpu_max(unified);
  for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    const std::string group = cgroup_path(self, "cpu");
    const std::string quota = cgroup_file(mount, group, "cpu.cfs_quota_us");
    if (!quota.empty()) {
      return parse_cfs_quota(quota, cgroup_file(mount, group, "cpu.cfs_period_us"));
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> read_memory_limit(const std::string& self, std::int64_t physical) {
  std::string text = cgroup_file("/sys/fs/cgroup", cgroup_path(self, ""), "memory.max");
  if (text.empty()) {
    text =
        cgroup_file("/sys/fs/cgroup/memory", cgroup_path(self, "memory"), "memory.limit_in_bytes");
  }
  const auto limit = parse_integer(text);  // "max" is none
  return limit && *limit < physical ? limit : std::nullopt;
}

bool has_ipv6_loopback() {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  ::close(fd);
  return bound;
}

/// An NVIDIA display or compute device on the PCI bus, with or without a driver.
bool nvidia_card_on_pci() {
  std::error_code error;
  for (fs::directory_iterator entry("/sys/bus/pci/devices", error), end; !error && entry != end;
       entry.increment(error)) {
    const bool nvidia = first_line(entry->path() / "vendor") == "0x10de";
    if (nvidia && first_line(entry->path() / "class").starts_with("0x03")) return true;
  }
  return false;
}

struct LibraryCloser {
  void operator()(void* handle) const noexcept { dlclose(handle); }
};
using Library = std::unique_ptr<void, LibraryCloser>;

template <typename Function>
Function* symbol(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

/// Fills in the GPUs through CUDA's driver library; returns why there are none.
std::string ask_cuda_driver(Machine& machine) {
  const Library cuda(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL));
  if (!cuda) {
    return nvidia_card_on_pci()
               ? "an NVIDIA card is on the PCI bus, but its driver (libcuda.so.1) "
                 "is not installed"
               : "no NVIDIA driver (libcuda.so.1) and no NVIDIA card on the PCI bus";
  }
  const auto init = symbol<int(unsigned)>(cuda, "cuInit");
  const auto get_count = symbol<int(int*)>(cuda, "cuDeviceGetCount");
  const auto get_device = symbol<int(int*, int)>(cuda, "cuDeviceGet");
  const auto get_name = symbol<int(char*, int, int)>(cuda, "cuDeviceGetName");
  const auto get_memory = symbol<int(std::size_t*, int)>(cuda, "cuDeviceTotalMem_v2");
  if (!init || !get_count || !get_device || !get_name || !get_memory) {
    return "libcuda.so.1 lacks functions of CUDA's driver interface";
  }
  if (const int error = init(0); error != 0) {
    return fmt::format("libcuda.so.1 is there, but cuInit fails with error {}{}", error,
                       error == 100 ? " (no device)" : "");
  }
  int count = 0;
  if (get_count(&count) != 0 || count == 0) return "the NVIDIA driver is there, but no device";
  for (int i = 0; i < count; ++i) {
    int device = 0;
    char name[256] = "";
    std::size_t bytes = 0;
    if (get_device(&device, i) != 0 || get_name(name, sizeof name, device) != 0) continue;
    (void)get_memory(&bytes, device);
    machine.gpus.push_back(
        fmt::format("{}, {:.1f} GiB", name, static_cast<double>(bytes) / (1 << 30)));
  }
  return machine.gpus.empty() ? "the NVIDIA driver does not describe its devices" : "";
}

std::string driver_version() {
  std::string line = first_line("/proc/driver/nvidia/version");
  const std::size_t at = line.find("Module  ");
  if (at == std::string::npos) return line;
  const std::string rest = line.substr(at + 8);
  return rest.substr(0, rest.find(' '));
}

std::string nccl_version() {
  const Library nccl(dlopen(CudaLibraries().nccl().c_str(), RTLD_LAZY | RTLD_LOCAL));
  if (!nccl) return "not found";
  const auto get = symbol<int(int*)>(nccl, "ncclGetVersion");
  int version = 0;
  if (get == nullptr || get(&version) != 0) return "found, but does not tell its version";
  // From 2.9 on MAJOR·10000 + MINOR·100 + PATCH, before MAJOR·1000.
  const int scale = version >= 10'000 ? 10'000 : 1'000;
  return fmt::format("{}.{}.{}", version / scale, version % scale / 100, version % 100);
}

}  // namespace

std::optional<double> parse_cpu_max(std::string_view text) {
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  std::string_view period = text.substr(space + 1);
  if (!period.empty() && period.back() == '\n') period.remove_suffix(1);
  return parse_cfs_quota(text.substr(0, space), period);
}

std::optional<double> parse_cfs_quota(std::string_view quota, std::string_view period) {
  const auto allowed = parse_integer(quota);  // -1 and "max": no limit
  const auto of = parse_integer(period);
  if (!allowed || !of || *allowed <= 0 || *of <= 0) return std::nullopt;
  return static_cast<double>(*allowed) / static_cast<double>(*of);
}

std::string cgroup_path(std::string_view self_cgroup, std::string_view controller) {
  std::istringstream in{std::string(self_cgroup)};
  for (std::string line; std::getline(in, line);) {  // "4:cpu,cpuacct:/group"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string names = line.substr(first + 1, second - first - 1);
    if (names == controller) return line.substr(second + 1);
    std::istringstream list(names);
    for (std::string name; std::getline(list, name, ',');) {
      if (name == controller) return line.substr(second + 1);
    }
  }
  return "/";
}

std::string bracketed_word(std::string_view text) {
  const std::size_t open = text.find('[');
  const std::size_t close = text.find(']', open == std::string_view::npos ? 0 : open);
  if (open == std::string_view::npos || close == std::string_view::npos) return {};
  return std::string(text.substr(open + 1, close - open - 1));
}

Machine inspect_machine() {
  Machine machine;
  const Environment environment = read_environment();
  machine.cores_online = environment.cores_online;
  machine.cores_usable = environment.cores_usable;
  const std::string self = whole_file("/proc/self/cgroup");
  machine.cpu_quota = read_cpu_quota(self);
  machine.memory_bytes = meminfo("MemTotal");
  machine.memory_available_bytes = meminfo("MemAvailable");
  machine.memory_limit_bytes = read_memory_limit(self, machine.memory_bytes);
  machine.huge_pages = bracketed_word(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    machine.dev_shm_bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
  }
  machine.ipv6_loopback = has_ipv6_loopback();
  machine.gpu = ask_cuda_driver(machine);
  machine.driver = driver_version();
  machine.cuda_module = cuda_module().description();
  const CudaLibraries libraries;
  machine.cuda_libraries = {
      {"cuBLASLt", libraries.blas()}, {"cuDNN", libraries.dnn()}, {"NCCL", libraries.nccl()}};
  return machine;
}

HostMemory host_memory() {
  const std::int64_t physical = meminfo("MemTotal");
  const auto limit = read_memory_limit(whole_file("/proc/self/cgroup"), physical);
  return {limit.value_or(physical), limit.has_value()};
}

int effective_cores(const Machine& machine) {
  double cores = std::max(1, machine.cores_usable);
  if (machine.cpu_quota) cores = std::min(cores, std::max(1.0, *machine.cpu_quota));
  return static_cast<int>(cores);
}

int effective_cores() {
  Machine machine;
  machine.cores_usable = usable_cores();
  machine.cpu_quota = read_cpu_quota(whole_file("/proc/self/cgroup"));
  return effective_cores(machine);
}

std::map<std::string, std::string> library_versions() {
  int major = 0;
  int minor = 0;
  int patch = 0;
  zmq_version(&major, &minor, &patch);
  const dnnl_version_t& dnnl = *dnnl_version();
  return {{"oneDNN", fmt::format("{}.{}.{}", dnnl.major, dnnl.minor, dnnl.patch)},
          {"ZeroMQ", fmt::format("{}.{}.{}", major, minor, patch)},
          {"Boost", fmt::format("{}.{}.{}", BOOST_VERSION / 100'000, BOOST_VERSION / 100 % 1000,
                                BOOST_VERSION % 100)},
          {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10'000, FMT_VERSION / 100 % 100,
                              FMT_VERSION % 100)},
          {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                        NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
          {"NCCL", nccl_version()}};
}

}  // namespace paceline
