// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_abort.h"

#include <condition_variable>
#include <mutex>
#include <system_error>

namespace paceline {

namespace {

constexpr int kNcclAbortsGroups = 22200;  ///< 2.22; older ones abort each at once, in a group too

}  // namespace

struct NcclAbort::Work {
  cuda::NcclApi nccl;
  int (*use_device)(int index);
  int device;

  std::mutex mutex;  ///< guards what follows
  std::condition_variable ended;
  int running = 0;

  void run(const std::vector<void*>& comms) noexcept {
    static_cast<void>(use_device(device));
    const bool group = comms.size() > 1;
    if (group) {
      static_cast<void>(nccl.group_start());
    }
    for (void* comm : comms) {
      static_cast<void>(nccl.abort(comm));
    }
    if (group) {
      static_cast<void>(nccl.group_end());
    }
    const std::scoped_lock lock(mutex);
    --running;
    ended.notify_all();
  }
};

NcclAbort::NcclAbort(const Gpu& gpu, int version, const std::vector<void*>& comms,
                     Nanoseconds limit)
    : waits_(gpu.waits()), deadline_(Deadline::after(limit)), work_(std::make_shared<Work>()) {
  work_->nccl = gpu.api().nccl;
  work_->use_device = gpu.api().use_device;
  work_->device = gpu.index();
  if (version >= kNcclAbortsGroups) {
    begin(comms);
    return;
  }
  for (void* comm : comms) {
    begin({comm});
  }
}

NcclAbort::~NcclAbort() {
  std::unique_lock lock(work_->mutex);
  const bool over =
      work_->ended.wait_for(lock, deadline_.left(), [&] { return work_->running == 0; });
  lock.unlock();
  if (!over) {
    waits_->give_up();
  }
  for (std::thread& thread : threads_) {
    over ? thread.join() : thread.detach();
  }
}

void NcclAbort::begin(const std::vector<void*>& comms) {
  {
    const std::scoped_lock lock(work_->mutex);
    ++work_->running;
  }
  try {
    threads_.emplace_back([work = work_, comms] { work->run(comms); });
  } catch (const std::system_error&) {  // no more threads
    work_->run(comms);
  }
}

}  // namespace paceline
