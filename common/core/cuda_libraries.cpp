// SPDX-License-Identifier: Apache-2.0
#include "common/core/cuda_libraries.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace paceline {

namespace {

namespace fs = std::filesystem;

std::string_view environment_text(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

/// Calls use(part) for every non-empty part between colons.
template <typename Use>
void for_each_part(std::string_view list, Use use) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    if (end > 0) {
      use(fs::path(list.substr(0, end)));
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->is_directory(error)) {
      found.push_back(at->path());
    }
  }
  std::ranges::sort(found);
  return found;
}

/// PREFIX/lib/python3*/{site,dist}-packages/nvidia/*/lib
void add_python(const fs::path& prefix, std::vector<fs::path>& folders) {
  for (const fs::path& version : folders_in(prefix / "lib")) {
    if (!version.filename().string().starts_with("python3")) {
      continue;
    }
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& package : folders_in(version / packages / "nvidia")) {
        folders.push_back(package / "lib");
      }
    }
  }
}

/// Where pip installs: the environments in use, then for the python3 on PATH what it has itself,
/// what root's pip gave a distribution's (Debian's /usr has /usr/local) and the user's own.
std::vector<fs::path> python_prefixes() {
  std::vector<fs::path> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string_view prefix = environment_text(name); !prefix.empty()) {
      prefixes.emplace_back(prefix);
    }
  }
  for_each_part(environment_text("PATH"), [&](const fs::path& folder) {
    std::error_code error;
    if (fs::exists(folder / "python3", error)) {
      prefixes.push_back(folder.parent_path());
      prefixes.push_back(folder.parent_path() / "local");
    }
  });
  if (const std::string_view user = environment_text("PYTHONUSERBASE"); !user.empty()) {
    prefixes.emplace_back(user);
  } else if (const std::string_view home = environment_text("HOME"); !home.empty()) {
    prefixes.push_back(fs::path(home) / ".local");
  }
  return prefixes;
}

std::vector<fs::path> usual_folders() {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& folder) { folders.push_back(folder); };
  for_each_part(environment_text("PACELINE_CUDA_LIBRARIES"), add);
  for_each_part(environment_text("LD_LIBRARY_PATH"), add);
  for (const fs::path& prefix : python_prefixes()) {
    add_python(prefix, folders);
  }
  const std::string_view home = environment_text("CUDA_HOME");
  const fs::path cuda = home.empty() ? fs::path("/usr/local/cuda") : fs::path(home);
  for (const char* part : {"lib64", "lib"}) {
    folders.push_back(cuda / part);
  }
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"}) {
    folders.emplace_back(folder);
  }
  return folders;
}

}  // namespace

CudaLibraries::CudaLibraries() : CudaLibraries(usual_folders()) {}

CudaLibraries::CudaLibraries(std::vector<fs::path> folders) : folders_(std::move(folders)) {}

std::string CudaLibraries::find(std::initializer_list<const char*> names) const {
  for (const fs::path& folder : folders_) {
    for (const char* name : names) {
      std::error_code error;
      if (fs::exists(folder / name, error)) {
        return (folder / name).string();
      }
    }
  }
  return *names.begin();
}

std::string CudaLibraries::blas() const {
  return find({"libcublasLt.so.13", "libcublasLt.so.12"});
}

std::string CudaLibraries::dnn() const {
  return find({"libcudnn.so.9"});
}

std::string CudaLibraries::nccl() const {
  return find({"libnccl.so.2"});
}

}  // namespace paceline
