// SPDX-License-Identifier: Apache-2.0
#include "common/observe/environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/base/cores.h"
#include "git_version.h"  // made by the build

extern "C" char** environ;

namespace paceline {
namespace {

std::string read_cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return {};
}

std::string compiler_name() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

}  // namespace

std::map<std::string, std::string> recorded_variables() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    for (const std::string_view prefix : kRecordedPrefixes) {
      if (text.starts_with(prefix)) {
        variables.emplace(text.substr(0, equals), text.substr(equals + 1));
      }
    }
  }
  return variables;
}

Environment read_environment(std::map<std::string, std::string> libraries) {
  Environment environment;
  utsname names{};
  if (uname(&names) == 0) {
    environment.host = names.nodename;
    environment.kernel = fmt::format("{} {} {}", names.sysname, names.release, names.machine);
  }
  environment.cpu_model = read_cpu_model();
  environment.cores_online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  environment.cores_usable = usable_cores();
  environment.memory_bytes =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  environment.compiler = compiler_name();
  environment.version = program_version();
  environment.libraries = std::move(libraries);
  environment.variables = recorded_variables();
  return environment;
}

std::string environment_to_json(const Environment& environment) {
  nlohmann::ordered_json json;
  json["host"] = environment.host;
  json["cpu_model"] = environment.cpu_model;
  json["cores_online"] = environment.cores_online;
  json["cores_usable"] = environment.cores_usable;
  json["memory_bytes"] = environment.memory_bytes;
  json["kernel"] = environment.kernel;
  json["compiler"] = environment.compiler;
  json["version"] = environment.version;
  json["libraries"] = environment.libraries;
  json["variables"] = environment.variables;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string program_version() {
  return PACELINE_GIT_VERSION;
}

}  // namespace paceline
