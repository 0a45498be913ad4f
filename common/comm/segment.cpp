// SPDX-License-Identifier: Apache-2.0
#include "common/comm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/error.h"

namespace paceline {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

FileDescriptor make_memfd(std::size_t bytes) {
  FileDescriptor fd(memfd_create("paceline", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw Error(
        fmt::format("cannot make a shared segment of {} bytes: {}", bytes, std::strerror(errno)));
  }
  return fd;
}

}  // namespace

Segment::Segment(FileDescriptor fd, std::size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (memory == MAP_FAILED) {
    throw Error(
        fmt::format("cannot map a shared segment of {} bytes: {}", bytes, std::strerror(errno)));
  }
  if (bytes >= kHugePage) {
    madvise(memory, bytes, MADV_HUGEPAGE);
  }
  data_ = static_cast<std::byte*>(memory);
}

Segment::Segment(std::size_t bytes, bool touch) : Segment(make_memfd(bytes), bytes) {
  if (touch) {
    std::memset(data_, 0, bytes_);
  }
}

Segment Segment::open(pid_t pid, int fd, std::size_t bytes) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, fd);
  FileDescriptor opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!opened.valid() && (errno == ENOENT || errno == ESRCH)) {
    throw PeerLost(fmt::format("process {} has ended: its shared segment {} is gone", pid, path));
  }
  if (!opened.valid() || fstat(opened.get(), &status) != 0) {
    throw Error(fmt::format("cannot open the shared segment {}: {}", path, std::strerror(errno)));
  }
  const auto available = static_cast<std::size_t>(status.st_size);
  if (bytes > available || available == 0) {
    throw Error(fmt::format("the shared segment {} has {} bytes, {} are needed", path, available,
                            bytes == 0 ? 1 : bytes));
  }
  Segment segment(std::move(opened), bytes == 0 ? available : bytes);
  // Page tables are filled now, so that no later access faults; a refusal only costs speed.
  madvise(segment.data_, segment.bytes_, MADV_POPULATE_READ);
  segment.close_descriptor();
  return segment;
}

Segment::~Segment() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

Segment::Segment(Segment&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace paceline
