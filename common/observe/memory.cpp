// SPDX-License-Identifier: Apache-2.0
#include "common/observe/memory.h"

#include <sys/resource.h>

#include <cstdio>

namespace paceline {
namespace {

std::int64_t high_water_mark() noexcept {
  std::FILE* const status = std::fopen("/proc/self/status", "re");
  if (status == nullptr) return 0;
  char line[256];
  long long kib = 0;
  while (std::fgets(line, sizeof line, status) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kib) == 1) break;
  }
  std::fclose(status);
  return kib * 1024;
}

}  // namespace

std::int64_t peak_rss_bytes() noexcept {
  if (const std::int64_t bytes = high_water_mark(); bytes > 0) return bytes;
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * 1024 : 0;
}

}  // namespace paceline
