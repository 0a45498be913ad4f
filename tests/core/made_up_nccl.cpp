// SPDX-License-Identifier: Apache-2.0
// A made-up libnccl.so.2: NCCL's names and calling convention, nothing behind them. It writes down
// what it is called with.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

namespace {

struct Id {
  char bytes[128];
};
/// The head of ncclConfig_t, which NCCL keeps as it is.
struct ConfigHead {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cluster;
  int min_ctas;
  int max_ctas;
};
constexpr int kInProgress = 7;
constexpr int kSystemError = 2;

std::string& written() {
  static std::string text;
  return text;
}

template <typename... Numbers>
int write(const char* name, Numbers... numbers) {
  written() += name;
  (fmt::format_to(std::back_inserter(written()), " {}", numbers), ...);
  written() += "\n";
  return 0;
}

int comm;
int part;

}  // namespace

extern "C" {

const char* made_up_nccl_calls() {
  return written().c_str();
}
int ncclGetVersion(int* version) {
  const char* text = std::getenv("MADE_UP_NCCL_VERSION");
  *version = text != nullptr ? std::atoi(text) : 22809;
  return 0;
}
int ncclGetUniqueId(Id* id) {
  std::memset(id, 'i', sizeof *id);
  return 0;
}
int ncclCommInitRankConfig(void** made, int ranks, Id id, int rank, ConfigHead* config) {
  *made = &comm;
  write("init", ranks, rank, int{id.bytes[127]}, config->blocking, config->min_ctas,
        config->max_ctas);
  return kInProgress;
}
int ncclCommSplit(void* from, int color, int key, void** made, ConfigHead* /*config*/) {
  *made = &part;
  return write("split", static_cast<int>(from == &comm), color, key);
}
int ncclCommGetAsyncError(void* /*from*/, int* state) {
  *state = kInProgress;
  return 0;
}
const char* ncclGetErrorString(int /*result*/) {
  return "made up error";
}
const char* ncclGetLastError(void* /*from*/) {
  return "made up words";
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int sum, void* /*on*/,
                  void* /*stream*/) {
  return write("all_reduce", static_cast<int>(from == to), count, type, sum);
}
int ncclReduceScatter(const void*, void*, std::size_t count, int type, int sum, void*, void*) {
  return write("reduce_scatter", count, type, sum);
}
int ncclAllGather(const void*, void*, std::size_t count, int type, void*, void*) {
  return write("all_gather", count, type);
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, void*, void*) {
  write("broadcast", static_cast<int>(from == to), count, type, root);
  return kSystemError;
}
int ncclGroupStart() {
  return write("group_start");
}
int ncclGroupEnd() {
  return write("group_end");
}
int ncclCommFinalize(void* /*from*/) {
  return write("finalize");
}
int ncclCommDestroy(void* /*from*/) {
  return write("destroy");
}
int ncclCommAbort(void* from) {
  return write("abort", static_cast<int>(from == &part));
}
}
