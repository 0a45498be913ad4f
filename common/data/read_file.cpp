// SPDX-License-Identifier: Apache-2.0
#include "common/data/read_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

struct GzClose {
  void operator()(gzFile_s* file) const noexcept { gzclose(file); }
};

}  // namespace

std::vector<std::uint8_t> read_data_file(const std::string& path) {
  errno = 0;
  const std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rb"));
  if (!file) {
    throw ConfigError(
        fmt::format("{}: cannot open: {}", path, errno != 0 ? std::strerror(errno) : "no memory"));
  }
  std::vector<std::uint8_t> bytes;
  while (true) {
    const std::size_t had = bytes.size();
    bytes.resize(had + kReadBytes);
    const int got = gzread(file.get(), bytes.data() + had, static_cast<unsigned>(kReadBytes));
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (got < 0 || code == Z_BUF_ERROR) {
      throw ConfigError(fmt::format("{}: {} after {} bytes: {}", path,
                                    code == Z_BUF_ERROR ? "truncated" : "cannot read", had,
                                    code == Z_ERRNO ? std::strerror(errno) : message));
    }
    bytes.resize(had + static_cast<std::size_t>(got));
    if (got == 0) {
      return bytes;
    }
    if (bytes.size() > kMaxFileBytes) {
      throw ConfigError(fmt::format("{}: holds over {} bytes", path, kMaxFileBytes));
    }
  }
}

}  // namespace paceline
