// SPDX-License-Identifier: Apache-2.0
#include "ring/nccl_communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/error.h"
#include "common/comm/machine_identity.h"

namespace paceline {

namespace {

constexpr int kRemoteError = 6;  // ncclRemoteError
constexpr std::chrono::microseconds kNcclPoll{50};
constexpr std::chrono::seconds kOrderlyEnd{1};
constexpr Nanoseconds kAbortLimit = std::chrono::seconds(5);

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// The machine and the GPU in it.
std::string gpu_identity(const Gpu& gpu) {
  const auto index = static_cast<std::size_t>(gpu.index());
  return fmt::format("{} {}", machine_identity(), gpu.module().devices().at(index).bus_id);
}

std::string bytes_of(const cuda::NcclId& id) {
  return {id.bytes, sizeof id.bytes};
}

/// Its version. Throws as open_nccl() does.
int opened_nccl(const CudaModule& module) {
  const std::string file = module.libraries().nccl();
  int version = 0;
  const int status = module.api().nccl.open(file.c_str(), &version);
  if (status == cuda::kNcclTooOld) {
    throw Error(fmt::format("NCCL {} ({}) is too old: {} or newer is needed",
                            nccl_version_text(version), file,
                            nccl_version_text(cuda::kOldestNccl)));
  }
  if (status == cuda::kNoLibrary) {
    std::vector<std::string> searched;
    for (const auto& folder : module.libraries().folders()) {
      searched.push_back(folder.string());
    }
    throw Error(fmt::format(
        "NCCL is missing: {} does not open or lacks functions; searched: {}, then the loader's "
        "own folders (PACELINE_CUDA_LIBRARIES adds one)",
        file, fmt::join(searched, ", ")));
  }
  module.check(status, fmt::format("opening {}", file));
  return version;
}

}  // namespace

std::string open_nccl(const CudaModule& module) {
  return nccl_version_text(opened_nccl(module));
}

void open_nccl_for(const NcclUser& user, const CudaModule& module) {
  try {
    open_nccl(module);
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}: {}; use {}", user.setting, error.what(), user.instead));
  }
}

void check_own_gpu(const NcclUser& user, const Gpu& gpu, Communicator& workers) {
  const std::vector<std::string> all = workers.allgather(gpu_identity(gpu));
  for (std::size_t b = 0; b < all.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (all[a] == all[b]) {
        throw ConfigError(
            fmt::format("{}: ranks {} and {} have the same GPU ({}), and NCCL refuses two ranks on "
                        "one GPU; use {}",
                        user.setting, a, b, all[a].substr(all[a].rfind(' ') + 1), user.instead));
      }
    }
  }
}

NcclCommunicators::NcclCommunicators(Gpu& gpu, Communicator& workers, const NcclOptions& options,
                                     AbortToken& abort)
    : gpu_(gpu),
      api_(gpu.api().nccl),
      version_(opened_nccl(gpu.module())),
      options_(options),
      abort_(abort),
      rank_(workers.rank()),
      size_(workers.size()) {
  cuda::NcclId id{};
  if (rank_ == 0) {
    gpu.check(api_.unique_id(&id), "NCCL: drawing an id");
  }
  const std::string bytes = workers.broadcast(0, rank_ == 0 ? bytes_of(id) : std::string{});
  if (bytes.size() != sizeof id.bytes) {
    throw Error(fmt::format("rank 0 sent an NCCL id of {} bytes", bytes.size()));
  }
  std::memcpy(id.bytes, bytes.data(), bytes.size());
  void* comm = nullptr;
  const int status = api_.init(&comm, size_, &id, rank_, &options_.limits);
  if (comm != nullptr) {
    comms_.push_back(comm);
  }
  if (status != cuda::kSuccess) {
    const std::exception_ptr why = failure(status, comm, "joining the ranks");
    abort_all();
    std::rethrow_exception(why);
  }
  try {
    settle(kWorld, "joining the ranks");
  } catch (...) {
    abort_all();
    throw;
  }
}

NcclCommunicators::~NcclCommunicators() {
  const std::scoped_lock lock(mutex_);
  if (orderly_ && finalized()) {
    for (void* comm : std::exchange(comms_, {})) {
      static_cast<void>(api_.destroy(comm));
    }
  }
  abort_all();
}

/// Splits before their parent.
bool NcclCommunicators::finalized() noexcept {
  const Deadline deadline = Deadline::after(kOrderlyEnd);
  std::vector<void*> comms = comms_;
  std::ranges::reverse(comms);
  for (void* comm : comms) {
    if (api_.finalize(comm) != cuda::kSuccess) {
      return false;
    }
    int state = cuda::kNcclInProgress;
    while (api_.async_error(comm, &state) == cuda::kSuccess && state == cuda::kNcclInProgress &&
           !deadline.passed()) {
      std::this_thread::sleep_for(kNcclPoll);
    }
    if (state != cuda::kNcclSuccess) {
      return false;
    }
  }
  return true;
}

/// Splits before their parent.
void NcclCommunicators::abort_all() {
  std::vector<void*> comms = std::exchange(comms_, {});
  if (!comms.empty()) {
    std::ranges::reverse(comms);
    aborts_.emplace_back(gpu_, version_, comms, std::min(options_.timeout, kAbortLimit));
  }
}

std::exception_ptr NcclCommunicators::failure(int status, void* comm, std::string_view what) const {
  const char* words = comm != nullptr ? api_.last_error(comm) : nullptr;
  const bool has_words = words != nullptr && *words != '\0';
  const std::string text = fmt::format("rank {}: NCCL failed while {}: {}{}{}{}", rank_, what,
                                       gpu_.api().error_text(status), has_words ? " (" : "",
                                       has_words ? words : "", has_words ? ")" : "");
  return status == cuda::kNcclStatus + kRemoteError ? std::make_exception_ptr(PeerLost(text))
                                                    : std::make_exception_ptr(Error(text));
}

int NcclCommunicators::state_of(void* comm) const {
  int state = cuda::kNcclSuccess;
  const int status = api_.async_error(comm, &state);
  return status != cuda::kSuccess         ? status
         : state == cuda::kNcclInProgress ? cuda::kNotReady
         : state == cuda::kNcclSuccess    ? cuda::kSuccess
                                          : cuda::kNcclStatus + state;
}

void NcclCommunicators::fail_locked(std::exception_ptr why) {
  if (!failure_) {
    failure_ = std::move(why);
    abort_all();
  }
}

void NcclCommunicators::fail(std::exception_ptr why) {
  const std::scoped_lock lock(mutex_);
  fail_locked(std::move(why));
}

void NcclCommunicators::check() {
  const std::scoped_lock lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
}

bool NcclCommunicators::failed() {
  const std::scoped_lock lock(mutex_);
  return failure_ != nullptr;
}

void NcclCommunicators::watch(std::string_view what) {
  try {
    abort_.check();
  } catch (...) {
    return fail(std::current_exception());
  }
  const std::scoped_lock lock(mutex_);
  for (void* comm : comms_) {
    const int status = state_of(comm);
    if (status != cuda::kSuccess && status != cuda::kNotReady) {
      return fail_locked(failure(status, comm, what));
    }
  }
}

/// Waits until the communicator has taken what was asked of it: nearly always at once, since its
/// connections exist after the first use.
void NcclCommunicators::settle(Id comm, std::string_view what) {
  const Deadline deadline = Deadline::after(options_.timeout);
  for (;;) {
    watch(what);
    {
      const std::scoped_lock lock(mutex_);
      if (failure_) {
        std::rethrow_exception(failure_);
      }
      if (state_of(comms_.at(comm)) == cuda::kSuccess) {
        return;
      }
      if (deadline.passed()) {
        fail_locked(std::make_exception_ptr(TimeoutError(
            fmt::format("rank {} waited more than {:.1f} s for the other ranks while {} with NCCL",
                        rank_, seconds(options_.timeout.count()), what))));
      }
    }
    std::this_thread::sleep_for(kNcclPoll);
  }
}

template <typename Call>
void NcclCommunicators::issue(Id comm, std::string_view what, Call call) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    void* handle = comms_.at(comm);
    if (const int status = call(handle); status != cuda::kSuccess) {
      fail_locked(failure(status, handle, what));
      std::rethrow_exception(failure_);
    }
  }
  settle(comm, what);
}

NcclCommunicators::Id NcclCommunicators::split(int color, int key) {
  constexpr std::string_view kWhat = "splitting the ranks";
  void*& place = splits_.emplace_back(nullptr);  // written when NCCL is done, not by the call
  issue(kWorld, kWhat,
        [&](void* comm) { return api_.split(comm, color, key, &place, &options_.limits); });
  void* made = std::atomic_ref<void*>(place).load();
  if (made == nullptr) {
    throw Error(fmt::format("rank {}: NCCL made no communicator by {}", rank_, kWhat));
  }
  Id id = 0;
  {
    const std::scoped_lock lock(mutex_);
    id = comms_.size();
    comms_.push_back(made);
  }
  settle(id, kWhat);
  return id;
}

void NcclCommunicators::all_reduce(Id comm, const void* from, void* to, std::size_t count,
                                   Precision format, GpuStream& stream) {
  issue(comm, "starting an allreduce", [&](void* handle) {
    return api_.all_reduce(from, to, count, format, cuda::NcclSum::sum, handle, stream.native());
  });
}

namespace {

void* block_of(void* memory, int rank, std::size_t count, Precision format) {
  const std::size_t size = format == Precision::fp32 ? sizeof(float) : sizeof(std::uint16_t);
  return static_cast<std::byte*>(memory) + static_cast<std::size_t>(rank) * count * size;
}

}  // namespace

void NcclCommunicators::reduce_scatter(Id comm, int rank, void* memory, std::size_t count,
                                       Precision format, GpuStream& stream) {
  issue(comm, "starting a reduce-scatter", [&](void* handle) {
    return api_.reduce_scatter(memory, block_of(memory, rank, count, format), count, format,
                               cuda::NcclSum::sum, handle, stream.native());
  });
}

void NcclCommunicators::all_gather(Id comm, int rank, void* memory, std::size_t count,
                                   Precision format, GpuStream& stream) {
  issue(comm, "starting an all-gather", [&](void* handle) {
    return api_.all_gather(block_of(memory, rank, count, format), memory, count, format, handle,
                           stream.native());
  });
}

void NcclCommunicators::sum_doubles(Id comm, std::span<double> values, GpuStream& stream) {
  issue(comm, "starting a sum of doubles", [&](void* handle) {
    return api_.sum_doubles(values.data(), values.size(), handle, stream.native());
  });
}

void NcclCommunicators::broadcast(Id comm, int root, void* memory, std::size_t count,
                                  Precision format, GpuStream& stream) {
  issue(comm, "starting a broadcast", [&](void* handle) {
    return api_.broadcast(memory, count, format, root, handle, stream.native());
  });
}

}  // namespace paceline
