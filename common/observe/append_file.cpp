// SPDX-License-Identifier: Apache-2.0
#include "common/observe/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/base/error.h"

namespace paceline {

namespace {
constexpr std::size_t kBufferBytes = std::size_t{64} << 10;
}

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (fd_ < 0) {
    throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
  buffer_.reserve(kBufferBytes + 1024);
}

AppendFile::~AppendFile() {
  try {
    flush();
  } catch (const Error&) {
    buffer_.clear();
  }
  ::close(fd_);
}

void AppendFile::written() {
  if (buffer_.size() >= kBufferBytes) flush();
}

void AppendFile::flush() {
  std::string_view left = buffer_;
  while (!left.empty()) {
    const ssize_t count = ::write(fd_, left.data(), left.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      buffer_.erase(0, buffer_.size() - left.size());
      throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(error)));
    }
    left.remove_prefix(static_cast<std::size_t>(count));
  }
  buffer_.clear();
}

}  // namespace paceline
