// SPDX-License-Identifier: Apache-2.0
// environment.json: where and with what a run was made.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace paceline {

struct Environment {
  std::string host;
  std::string cpu_model;
  int cores_online = 0;
  int cores_usable = 0;  ///< this process's affinity
  std::int64_t memory_bytes = 0;
  std::string kernel;    ///< "Linux 6.1.0 x86_64"
  std::string compiler;  ///< that built this program
  std::string version;   ///< git describe of the source, or the project's version
  std::map<std::string, std::string> libraries;  ///< name, version; given by the caller
  std::map<std::string, std::string> variables;  ///< see kRecordedPrefixes
};

/// Environment variables that begin with one of these change how a run behaves and are recorded.
inline constexpr const char* kRecordedPrefixes[] = {
    "NCCL_", "PACELINE_", "OMP_", "GOMP_", "ONEDNN_", "DNNL_", "OPENBLAS_", "CUDA_", "MALLOC_"};

/// Asks the system; what it does not tell stays empty or 0.
[[nodiscard]] Environment read_environment(std::map<std::string, std::string> libraries = {});

/// Variables that are set and begin with one of kRecordedPrefixes.
[[nodiscard]] std::map<std::string, std::string> recorded_variables();

[[nodiscard]] std::string environment_to_json(const Environment& environment);

/// git describe of the source this program was built from ("v0.1-12-gabc-dirty"), or the project's
/// version where it was not built from git.
[[nodiscard]] std::string program_version();

}  // namespace paceline
