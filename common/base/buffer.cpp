// SPDX-License-Identifier: Apache-2.0
#include "common/base/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "common/base/error.h"

namespace paceline {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Buffer::Buffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) {
    return;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("cannot allocate {} bytes: {}", bytes, std::strerror(errno)));
  }
  if (bytes >= kHugePage) {
    madvise(memory, bytes, MADV_HUGEPAGE);
  }
  std::memset(memory, 0, bytes);
  data_ = static_cast<std::byte*>(memory);
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace paceline
