// SPDX-License-Identifier: Apache-2.0
#include "common/observe/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "common/base/error.h"

namespace paceline {
namespace {

/// 0 or errno.
int write_and_sync(const char* path, std::string_view text) noexcept {
  const int fd = ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && ::fsync(fd) != 0 && errno != EINVAL) error = errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  return error;
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::string temporary = path.string() + ".tmp";
  int error = write_and_sync(temporary.c_str(), text);
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    ::unlink(temporary.c_str());
    throw Error(fmt::format("cannot write {}: {}", path.string(), std::strerror(error)));
  }
}

std::string read_text_file(const std::filesystem::path& path, std::size_t most_bytes) {
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) {
    throw Error(fmt::format("cannot read {}: {}", path.string(),
                            status ? status.message() : "not a regular file"));
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(fmt::format("cannot read {}: {}", path.string(), std::strerror(errno)));
  std::string text;
  char block[16384];
  while (in.read(block, sizeof block), in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (text.size() > most_bytes) {
      throw Error(fmt::format("{}: larger than {} bytes", path.string(), most_bytes));
    }
  }
  return text;
}

}  // namespace paceline
