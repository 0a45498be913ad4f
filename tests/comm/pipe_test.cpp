// SPDX-License-Identifier: Apache-2.0
#include "common/comm/pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <string>

#include "common/base/error.h"

namespace paceline {
namespace {

/// While it lives this process gets no more descriptors.
class NoMoreDescriptors {
 public:
  NoMoreDescriptors() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &kept_), 0);
    rlimit none = kept_;
    none.rlim_cur = 0;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoMoreDescriptors() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &kept_), 0); }
  NoMoreDescriptors(const NoMoreDescriptors&) = delete;
  NoMoreDescriptors& operator=(const NoMoreDescriptors&) = delete;

 private:
  rlimit kept_{};
};

TEST(Pipe, CarriesBytesAndClosesOnExec) {
  const Pipe pipe = make_pipe("a test", O_NONBLOCK);
  char byte = 'x';
  ASSERT_EQ(write(pipe.write.get(), &byte, 1), 1);
  byte = ' ';
  ASSERT_EQ(read(pipe.read.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  EXPECT_EQ(read(pipe.read.get(), &byte, 1), -1) << "does not block";
  for (const FileDescriptor* end : {&pipe.read, &pipe.write}) {
    EXPECT_EQ(fcntl(end->get(), F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(fcntl(make_pipe("a test").read.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST(Pipe, SaysForWhatThereIsNone) {
  std::string said;
  {
    const NoMoreDescriptors none;
    try {
      static_cast<void>(make_pipe("the doorbell"));
    } catch (const Error& error) {
      said = error.what();
    }
  }
  EXPECT_EQ(said, "cannot make a pipe for the doorbell: Too many open files");
}

}  // namespace
}  // namespace paceline
