// SPDX-License-Identifier: Apache-2.0
// What this machine has, for `paceline doctor`: asked of /proc, /sys and the dynamic loader. What
// the system does not tell stays empty.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

/// Cores' worth of time that "MAX PERIOD" of cgroup v2's cpu.max allows; empty for "max" or text
/// that is not valid.
[[nodiscard]] std::optional<double> parse_cpu_max(std::string_view text);

/// The same for cgroup v1's cpu.cfs_quota_us and cpu.cfs_period_us.
[[nodiscard]] std::optional<double> parse_cfs_quota(std::string_view quota,
                                                    std::string_view period);

/// This process's group of `controller` ("" for v2) in the text of /proc/self/cgroup; "/" when it
/// is not named there.
[[nodiscard]] std::string cgroup_path(std::string_view self_cgroup, std::string_view controller);

/// The chosen word of "always [madvise] never".
[[nodiscard]] std::string bracketed_word(std::string_view text);

struct Machine {
  int cores_online = 0;
  int cores_usable = 0;             ///< affinity
  std::optional<double> cpu_quota;  ///< cores' worth of time of the cgroup; empty: no limit
  std::int64_t memory_bytes = 0;
  std::int64_t memory_available_bytes = 0;
  std::optional<std::int64_t> memory_limit_bytes;  ///< of the cgroup
  std::string huge_pages;                          ///< transparent: always, madvise, never
  std::optional<std::int64_t> dev_shm_bytes;       ///< empty: no /dev/shm
  bool ipv6_loopback = false;
  std::string gpu;                ///< why there is none; empty when gpus is not
  std::vector<std::string> gpus;  ///< one entry per GPU
  std::string driver;             ///< its version, empty without
  std::string cuda_module;        ///< what this program's CUDA module can use, or why not
  /// What would be opened for cuBLASLt, cuDNN and NCCL: a file, or a name that the loader knows.
  std::map<std::string, std::string> cuda_libraries;
};

[[nodiscard]] Machine inspect_machine();

/// Bytes that processes may use, and what says so.
struct HostMemory {
  std::int64_t bytes = 0;
  bool cgroup = false;  ///< a cgroup's limit, below what the machine has
};
[[nodiscard]] HostMemory host_memory();

/// Cores that can compute at once: affinity, or the cgroup's quota rounded down where that is less;
/// at least 1.
[[nodiscard]] int effective_cores(const Machine& machine);
/// Of this machine, without asking for more than that.
[[nodiscard]] int effective_cores();

/// Versions of the libraries in use, by name ("oneDNN", "ZeroMQ", "Boost", "NCCL", ...); NCCL is
/// opened (the file that runs would open) to ask it and reads "not found" where there is none.
[[nodiscard]] std::map<std::string, std::string> library_versions();

}  // namespace paceline
