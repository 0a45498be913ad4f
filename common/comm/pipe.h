// SPDX-License-Identifier: Apache-2.0
// A pipe, whose ends close with their owner and on exec.
#pragma once

#include <string_view>

#include "common/comm/file_descriptor.h"

namespace paceline {

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

/// `flags` as pipe2() takes them, besides O_CLOEXEC. Throws Error naming `purpose`, as in "the
/// doorbell".
[[nodiscard]] Pipe make_pipe(std::string_view purpose, int flags = 0);

}  // namespace paceline
