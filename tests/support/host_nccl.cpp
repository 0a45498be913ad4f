// SPDX-License-Identifier: Apache-2.0
#include "tests/support/host_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/core/cuda/abi.h"
#include "tests/support/host_log.h"
#include "tests/support/host_nccl_parts.h"
#include "tests/support/host_stream.h"

namespace paceline::test {

namespace {

using cuda::kSuccess;
using cuda::NcclOptions;

constexpr int kInvalidUsage = 5;
/// Longer than any test's timeout: only a test that would hang gets here.
constexpr std::chrono::seconds kGiveUp{60};

/// One collective of all members.
struct Meeting {
  NcclParts parts;
  int arrived = 0;
  int left = 0;
  bool done = false;
};

struct Member;

struct Split {
  struct Entry {
    int color;
    int key;
    int rank;
    std::shared_ptr<Member> member;
    std::shared_ptr<Member> parent;
    void** made;
  };
  std::vector<Entry> entries;
};

struct Clique {
  int size = 0;
  int joined = 0;
  std::map<std::int64_t, Meeting> meetings;
  std::map<std::int64_t, Split> splits;
};

/// A rank of the job and its GPU: what its communicators have in common.
struct Owner {
  int rank = 0;
  std::int64_t issued = 0;
  std::int64_t queued = 0;  ///< collectives that have not ended
};

struct Member {
  std::shared_ptr<Clique> clique;
  std::shared_ptr<Owner> owner;
  int rank = 0;
  std::int64_t executed = 0;
  std::int64_t splits = 0;
  bool aborted = false;
  int state = cuda::kNcclSuccess;
  std::optional<NcclFault> fault;

  int splitting = 0;  ///< splits that not all have called

  [[nodiscard]] bool complete() const { return clique->joined == clique->size && splitting == 0; }
};

/// All state of the double, behind one mutex.
struct Fabric {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  int ids = 0;
  int live = 0;
  std::int64_t double_sums = 0;
  int version = 22809;
  bool aborts_end = true;
  std::optional<NcclFault> fault;
};

Fabric& fabric() {
  static Fabric all;
  return all;
}

struct Handle {
  std::shared_ptr<Member> member;
};

std::shared_ptr<Member> member_of(void* comm) {
  return static_cast<Handle*>(comm)->member;
}

void* new_handle(std::shared_ptr<Member> member) {
  ++fabric().live;
  return std::make_unique<Handle>(Handle{std::move(member)}).release();
}

/// On the rank's stream: returns when all ranks' streams are here, or the rank has aborted.
void meet(const std::shared_ptr<Member>& me, const NcclPart& part, bool strikes) {
  Fabric& all = fabric();
  std::unique_lock lock(all.mutex);
  if (me->aborted) {
    return;
  }
  const std::int64_t number = me->executed++;
  const auto gone = [&] { return me->aborted; };
  if (strikes) {
    if (me->fault->kind == NcclFaultKind::async_error) {
      me->state = me->fault->result;
    }
    all.changed.wait_for(lock, kGiveUp, gone);
    return;
  }
  const std::shared_ptr<Clique> clique = me->clique;
  Meeting& meeting = clique->meetings[number];
  meeting.parts.resize(static_cast<std::size_t>(clique->size));
  meeting.parts[static_cast<std::size_t>(me->rank)] = part;
  if (++meeting.arrived == clique->size && match(meeting.parts)) {
    carry_out(meeting.parts);
    all.double_sums += part.kind == NcclKind::doubles ? 1 : 0;
    meeting.done = true;
    all.changed.notify_all();
  }
  if (!all.changed.wait_for(lock, kGiveUp, [&] { return meeting.done || gone(); })) {
    std::fprintf(stderr, "NCCL's double: a collective was neither joined nor aborted\n");
  }
  if (!meeting.done) {
    meeting.arrived -= clique->size;  // never complete from here on
  }
  if (++meeting.left == clique->size) {
    clique->meetings.erase(number);
  }
}

/// As meet(); the GPU has done it then.
void work_off(const std::shared_ptr<Member>& me, const NcclPart& part, bool strikes) {
  meet(me, part, strikes);
  const std::lock_guard lock(fabric().mutex);
  --me->owner->queued;
  fabric().changed.notify_all();
}

int issue(void* comm, void* stream, const NcclPart& part, std::string_view what) {
  const std::shared_ptr<Member> me = member_of(comm);
  bool strikes = false;
  {
    const std::lock_guard lock(fabric().mutex);
    if (!me->complete()) {
      return cuda::kNcclStatus + kInvalidUsage;
    }
    Owner& owner = *me->owner;
    strikes = me->fault && me->fault->rank == owner.rank && me->fault->after <= owner.issued;
    ++owner.issued;
    if (strikes && me->fault->kind == NcclFaultKind::error) {
      return cuda::kNcclStatus + me->fault->result;
    }
    ++owner.queued;
  }
  host_log().add({what, stream, part.to, part.count});
  static_cast<HostStream*>(stream)->queue([=] { work_off(me, part, strikes); });
  return kSuccess;
}

int open(const char* file, int* version) {
  const std::lock_guard lock(fabric().mutex);
  *version = fabric().version;
  if (*version == 0) {
    return cuda::kNoLibrary;
  }
  return file != nullptr && *version >= cuda::kOldestNccl ? kSuccess : cuda::kNcclTooOld;
}

int unique_id(cuda::NcclId* id) {
  const std::lock_guard lock(fabric().mutex);
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "double %d", ++fabric().ids);
  return kSuccess;
}

int init(void** comm, int world, const cuda::NcclId* id, int rank, const NcclOptions* /*options*/) {
  Fabric& all = fabric();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Clique>& clique = all.cliques[id->bytes];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>();
    clique->size = world;
  }
  auto member = std::make_shared<Member>();
  member->clique = clique;
  member->owner = std::make_shared<Owner>(Owner{rank, 0, 0});
  member->rank = rank;
  member->fault = all.fault;
  if (++clique->joined == clique->size) {
    all.cliques.erase(id->bytes);
  }
  *comm = new_handle(std::move(member));
  return kSuccess;
}

/// Every color's members become a clique, ordered by key.
void form(Split& callers) {
  std::ranges::sort(callers.entries, {}, [](const Split::Entry& entry) {
    return std::make_tuple(entry.color, entry.key, entry.rank);
  });
  std::map<int, std::shared_ptr<Clique>> cliques;
  for (const Split::Entry& entry : callers.entries) {
    std::shared_ptr<Clique>& clique = cliques[entry.color];
    if (clique == nullptr) {
      clique = std::make_shared<Clique>();
    }
    entry.member->rank = clique->size++;
    clique->joined = clique->size;
    entry.member->clique = clique;
    --entry.parent->splitting;
    std::atomic_ref<void*>(*entry.made).store(new_handle(entry.member));
  }
}

int split(void* comm, int color, int key, void** made, const NcclOptions* /*options*/) {
  const std::shared_ptr<Member> me = member_of(comm);
  const std::lock_guard lock(fabric().mutex);
  const std::int64_t number = me->splits++;
  Split& callers = me->clique->splits[number];
  auto member = std::make_shared<Member>();
  member->owner = me->owner;
  member->fault = me->fault;
  callers.entries.push_back({color, key, me->rank, std::move(member), me, made});
  ++me->splitting;
  if (static_cast<int>(callers.entries.size()) == me->clique->size) {
    form(callers);
    me->clique->splits.erase(number);  // its entries hold members, and those the clique
  }
  return kSuccess;
}

int async_error(void* comm, int* state) {
  const std::shared_ptr<Member> me = member_of(comm);
  const std::lock_guard lock(fabric().mutex);
  *state = me->complete() ? me->state : cuda::kNcclInProgress;
  return kSuccess;
}

const char* last_error(void* /*comm*/) {
  return "as the test asked for";
}

int all_reduce(const void* from, void* to, std::size_t count, Precision format, cuda::NcclSum sum,
               void* comm, void* stream) {
  return issue(comm, stream, {NcclKind::all_reduce, from, to, count, format, sum, 0}, "all_reduce");
}

int sum_doubles(double* values, std::size_t count, void* comm, void* stream) {
  return issue(comm, stream,
               {NcclKind::doubles, values, values, count, Precision::fp32, cuda::NcclSum::sum, 0},
               "sum_doubles");
}

int reduce_scatter(const void* from, void* to, std::size_t count, Precision format,
                   cuda::NcclSum sum, void* comm, void* stream) {
  return issue(comm, stream, {NcclKind::reduce_scatter, from, to, count, format, sum, 0},
               "reduce_scatter");
}

int all_gather(const void* from, void* to, std::size_t count, Precision format, void* comm,
               void* stream) {
  return issue(comm, stream, {NcclKind::all_gather, from, to, count, format, cuda::NcclSum::sum, 0},
               "all_gather");
}

int broadcast(void* memory, std::size_t count, Precision format, int root, void* comm,
              void* stream) {
  return issue(comm, stream,
               {NcclKind::broadcast, memory, memory, count, format, cuda::NcclSum::sum, root},
               "broadcast");
}

using Handles = std::vector<std::unique_ptr<Handle>>;

/// The calling thread's group: communicators whose abort waits for its end.
struct Group {
  int depth = 0;
  Handles aborted;
};

Group& group_of_thread() {
  thread_local Group group;
  return group;
}

/// Frees their memory, for which the device has to be idle.
void reclaim(Handles handles) {
  Fabric& all = fabric();
  std::unique_lock lock(all.mutex);
  const auto idle = [&] {
    return all.aborts_end && std::ranges::all_of(handles, [](const auto& handle) {
             return handle->member->owner->queued == 0;
           });
  };
  if (!all.changed.wait_for(lock, kGiveUp, idle)) {
    std::fprintf(stderr, "NCCL's double: an abort waited for what nobody ended\n");
  }
  all.live -= static_cast<int>(handles.size());
}

/// Collectives are queued as they come, which is one of the orders that a group allows.
int group_start() {
  ++group_of_thread().depth;
  return kSuccess;
}

int group_end() {
  Group& group = group_of_thread();
  if (--group.depth == 0) {
    reclaim(std::exchange(group.aborted, {}));
  }
  return kSuccess;
}

int finalize(void* /*comm*/) {
  return kSuccess;
}

int destroy(void* comm) {
  const std::unique_ptr<Handle> owned(static_cast<Handle*>(comm));
  const std::lock_guard lock(fabric().mutex);
  --fabric().live;
  return kSuccess;
}

int abort(void* comm) {
  constexpr int kAbortsGroups = 22200;
  Handles aborted;
  aborted.emplace_back(static_cast<Handle*>(comm));
  bool now = true;
  {
    const std::lock_guard lock(fabric().mutex);
    aborted.front()->member->aborted = true;
    fabric().changed.notify_all();
    now = group_of_thread().depth == 0 || fabric().version < kAbortsGroups;
  }
  if (now) {
    reclaim(std::move(aborted));
  } else {
    group_of_thread().aborted.push_back(std::move(aborted.front()));
  }
  return kSuccess;
}

}  // namespace

cuda::NcclApi host_nccl() {
  return {open,       unique_id,      init,       split,     async_error, last_error,
          all_reduce, reduce_scatter, all_gather, broadcast, sum_doubles, group_start,
          group_end,  finalize,       destroy,    abort};
}

void set_nccl_fault(std::optional<NcclFault> fault) {
  const std::lock_guard lock(fabric().mutex);
  fabric().fault = fault;
}

void set_nccl_version(int version) {
  const std::lock_guard lock(fabric().mutex);
  fabric().version = version;
}

std::int64_t host_nccl_double_sums() {
  const std::lock_guard lock(fabric().mutex);
  return fabric().double_sums;
}

void let_nccl_aborts_end(bool end) {
  const std::lock_guard lock(fabric().mutex);
  fabric().aborts_end = end;
  fabric().changed.notify_all();
}

int live_nccl_communicators() {
  const std::lock_guard lock(fabric().mutex);
  return fabric().live;
}

}  // namespace paceline::test
