// SPDX-License-Identifier: Apache-2.0
#include "common/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace paceline {
namespace {

TEST(UsableCores, AreTheThreadsAffinity) {
  const std::vector<int> all = usable_processors();
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  ASSERT_EQ(static_cast<int>(all.size()), CPU_COUNT(&mine));
  EXPECT_EQ(usable_cores(), static_cast<int>(all.size()));
  std::vector<int> narrowed;
  int cores = 0;
  std::thread([&] {
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(all.back(), &last);
    ASSERT_EQ(sched_setaffinity(0, sizeof last, &last), 0);
    narrowed = usable_processors();
    cores = usable_cores();
  }).join();
  EXPECT_EQ(narrowed, std::vector<int>{all.back()});
  EXPECT_EQ(cores, 1);
  EXPECT_EQ(usable_processors(), all) << "another thread's";
}

}  // namespace
}  // namespace paceline
