// SPDX-License-Identifier: Apache-2.0
#include "common/comm/pipe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/error.h"

namespace paceline {

Pipe make_pipe(std::string_view purpose, int flags) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | flags) != 0) {
    throw Error(fmt::format("cannot make a pipe for {}: {}", purpose, std::strerror(errno)));
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace paceline
