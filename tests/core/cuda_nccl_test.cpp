// SPDX-License-Identifier: Apache-2.0
// The CUDA module's table of NCCL against a made-up library of NCCL's names: which function gets
// which argument. The module loads without a driver.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/core/cuda/abi.h"

namespace paceline {
namespace {

const cuda::Api& real_module() {
  static const cuda::Api* api = [] {
    void* library = dlopen(PACELINE_CUDA_MODULE_FOLDER "/libpaceline_cuda.so", RTLD_NOW);
    return reinterpret_cast<cuda::EntryPoint*>(dlsym(library, cuda::kEntryPoint))();
  }();
  return *api;
}

/// What open() says in a process of its own, since it opens once.
int opened_elsewhere(const char* file, const char* version) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("MADE_UP_NCCL_VERSION", version, 1);
    int found = 0;
    const int status = real_module().nccl.open(file, &found);
    _exit(status == cuda::kSuccess ? 0 : status == cuda::kNcclTooOld ? 1 : 2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(CudaNccl, OpensWhatIsThereAndNewEnough) {
  EXPECT_EQ(opened_elsewhere(PACELINE_MADE_UP_NCCL, "21800"), 0);
  EXPECT_EQ(opened_elsewhere(PACELINE_MADE_UP_NCCL, "21799"), 1);
  EXPECT_EQ(opened_elsewhere("/nowhere/libnccl.so.2", "22809"), 2);
  EXPECT_EQ(opened_elsewhere("libc.so.6", "22809"), 2) << "it has none of the functions";
}

TEST(CudaNccl, EveryCallReachesItsFunctionWithItsArguments) {
  const cuda::NcclApi& nccl = real_module().nccl;
  int version = 0;
  ASSERT_EQ(nccl.open(PACELINE_MADE_UP_NCCL, &version), cuda::kSuccess);
  EXPECT_EQ(version, 22809);
  cuda::NcclId id{};
  EXPECT_EQ(nccl.unique_id(&id), 0);
  const cuda::NcclOptions options{3, 5};
  void* comm = nullptr;
  EXPECT_EQ(nccl.init(&comm, 4, &id, 2, &options), 0) << "in progress is no error";
  int state = 0;
  EXPECT_EQ(nccl.async_error(comm, &state), 0);
  EXPECT_EQ(state, cuda::kNcclInProgress);
  void* part = nullptr;
  EXPECT_EQ(nccl.split(comm, 6, 7, &part, &options), 0);
  float memory[8] = {};
  nccl.group_start();
  nccl.all_reduce(memory, memory, 8, Precision::fp32, cuda::NcclSum::sum, comm, nullptr);
  nccl.reduce_scatter(memory, memory, 4, Precision::fp16, cuda::NcclSum::average, comm, nullptr);
  nccl.all_gather(memory, memory, 2, Precision::bf16, comm, nullptr);
  nccl.group_end();
  const int failed = nccl.broadcast(memory, 1, Precision::fp32, 3, comm, nullptr);
  EXPECT_EQ(failed, cuda::kNcclStatus + 2);
  EXPECT_STREQ(real_module().error_text(failed), "made up error");
  EXPECT_STREQ(nccl.last_error(comm), "made up words");
  nccl.finalize(comm);
  nccl.destroy(comm);
  nccl.abort(part);
  void* library = dlopen(PACELINE_MADE_UP_NCCL, RTLD_NOW | RTLD_NOLOAD);
  const auto calls = reinterpret_cast<const char* (*)()>(dlsym(library, "made_up_nccl_calls"));
  // Types and sums are nccl.h's: ncclFloat32 7, ncclFloat16 6, ncclBfloat16 9, ncclSum 0,
  // ncclAvg 4.
  EXPECT_STREQ(calls(),
               "init 4 2 105 0 3 5\nsplit 1 6 7\ngroup_start\nall_reduce 1 8 7 0\n"
               "reduce_scatter 4 6 4\nall_gather 2 9\ngroup_end\nbroadcast 1 1 7 3\nfinalize\n"
               "destroy\nabort 1\n");
}

}  // namespace
}  // namespace paceline
