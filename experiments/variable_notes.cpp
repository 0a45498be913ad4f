// SPDX-License-Identifier: Apache-2.0
#include "experiments/variable_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/config/schema.h"
#include "experiments/nccl_names.h"

namespace paceline {
namespace {

/// When a variable deserves its warning.
enum class Warn : unsigned char { never, when_on, when_off, always };

struct Known {
  std::string_view name;
  std::string_view meaning;
  Warn when = Warn::never;
  std::string_view warning = {};
};

constexpr std::string_view kPinned =
    "this overrides what NCCL's tuner would choose for each size and topology: for tests only";

constexpr std::string_view kTakesFromCompute =
    "more blocks take multiprocessors from compute, too few cannot fill the links: for tests only";

constexpr std::string_view kAllOnOneCore =
    "every worker is a program of its own and starts at the first place: several workers may end "
    "up "
    "on one core";
constexpr std::string_view kPeersOnly =
    "paceline does not use OpenBLAS, but peers such as PyTorch do: unset it for comparisons";
constexpr std::string_view kSlower = "layers may be slower than this processor allows";

constexpr std::array kKnown{
    Known{"NCCL_IB_DISABLE", "1 turns InfiniBand and RoCE off; NCCL then uses IP sockets",
          Warn::when_on,
          "usually much slower between nodes. It is a way to find out whether InfiniBand is to "
          "blame, no cure for poor bandwidth: unset it afterwards"},
    Known{"NCCL_NET_GDR_LEVEL",
          "how far apart network card and GPU may be for GPUDirect RDMA to be used: LOC never, PIX "
          "same PCI switch, PXB several switches, PHB same NUMA node, SYS always",
          Warn::always,
          "it widens or narrows when GPUDirect RDMA is used; NCCL knows the topology, so set it "
          "only after measuring"},
    Known{"NCCL_NET_GDR_READ", "whether sends, too, read GPU memory directly (GPUDirect RDMA)"},
    Known{"NCCL_ALGO", "which algorithms NCCL may use (Ring, Tree, CollnetDirect, NVLS, ...)",
          Warn::always, kPinned},
    Known{"NCCL_PROTO", "which protocols NCCL may use (LL, LL128, Simple)", Warn::always,
          "this overrides what NCCL's tuner would choose for each size; forcing LL128 where it is "
          "not safe can corrupt data: for tests only"},
    Known{
        "NCCL_DEBUG",
        "how much NCCL prints: VERSION, WARN, INFO or TRACE; INFO names the network, the links and "
        "the channels that it chose"},
    Known{"NCCL_DEBUG_SUBSYS", "which parts NCCL_DEBUG=INFO prints about"},
    Known{"NCCL_DEBUG_FILE", "the file that NCCL_DEBUG's lines go to"},
    Known{"NCCL_SOCKET_IFNAME",
          "which network interfaces carry sockets and the start-up; ^name leaves one out",
          Warn::always, "a name that a node lacks makes NCCL fail at start; all nodes must agree"},
    Known{"NCCL_SOCKET_FAMILY", "AF_INET or AF_INET6: IPv4 or IPv6 sockets only"},
    Known{"NCCL_SOCKET_NTHREADS", "helper threads per socket connection: CPU for bandwidth"},
    Known{"NCCL_NSOCKS_PERTHREAD", "sockets per helper thread"},
    Known{"NCCL_IB_HCA", "which InfiniBand/RoCE cards and ports are used", Warn::always,
          "cards left out are bandwidth left out"},
    Known{"NCCL_IB_GID_INDEX", "the GID used for RoCE; a wrong one makes connections fail"},
    Known{"NCCL_IB_TIMEOUT", "time-out exponent of InfiniBand verbs"},
    Known{"NCCL_IB_RETRY_CNT", "InfiniBand retries before an error"},
    Known{"NCCL_IB_SL", "InfiniBand service level"},
    Known{"NCCL_IB_TC", "InfiniBand/RoCE traffic class"},
    Known{"NCCL_IB_QPS_PER_CONNECTION", "queue pairs per connection, for routing entropy"},
    Known{"NCCL_IB_PCI_RELAXED_ORDERING", "relaxed ordering of PCI writes by the card"},
    Known{"NCCL_IB_ADAPTIVE_ROUTING", "use a fabric's adaptive routing"},
    Known{"NCCL_P2P_DISABLE", "1 turns direct GPU-to-GPU copies (NVLink, PCI) off", Warn::when_on,
          "traffic within the node then goes through host memory: much slower"},
    Known{"NCCL_P2P_LEVEL",
          "how far apart two GPUs may be to copy directly: LOC never, NVL, PIX, PXB, PHB, SYS "
          "always"},
    Known{"NCCL_SHM_DISABLE", "1 turns shared memory between GPUs of a node off", Warn::when_on,
          "without peer-to-peer copies traffic within the node then uses the network"},
    Known{"NCCL_NET", "the network module: IB, Socket or a plugin's", Warn::always,
          "Socket leaves InfiniBand and RoCE unused, as NCCL_IB_DISABLE=1 does"},
    Known{"NCCL_NET_PLUGIN", "the network plugin to load (none: no plugin)"},
    Known{"NCCL_TUNER_PLUGIN", "the tuner plugin to load; it chooses algorithm and protocol"},
    Known{
        "NCCL_BUFFSIZE", "bytes of the buffer between a pair of GPUs (4 MiB unless set)",
        Warn::always,
        "larger ones take GPU memory for every pair and channel, smaller ones bandwidth: for tests "
        "only"},
    Known{"NCCL_NTHREADS", "CUDA threads per block (64, 128, 256 or 512)", Warn::always,
          "for tests only: NCCL chooses by GPU and protocol"},
    Known{"NCCL_MIN_NCHANNELS", "least channels, so CUDA blocks, per operation", Warn::always,
          "more channels take multiprocessors from compute"},
    Known{"NCCL_MAX_NCHANNELS", "most channels, so CUDA blocks, per operation", Warn::always,
          "too few channels cannot fill the links"},
    Known{"NCCL_MIN_CTAS", "least CUDA blocks per operation", Warn::always, kTakesFromCompute},
    Known{"NCCL_MAX_CTAS", "most CUDA blocks per operation", Warn::always, kTakesFromCompute},
    Known{"NCCL_CROSS_NIC", "whether rings and trees may use different cards on different nodes"},
    Known{"NCCL_TOPO_FILE", "an XML file with the topology", Warn::always,
          "one that does not fit this machine gives bad rings"},
    Known{"NCCL_TOPO_DUMP_FILE", "where NCCL writes the topology that it found"},
    Known{"NCCL_GRAPH_FILE", "an XML file with the rings and trees to use", Warn::always, kPinned},
    Known{"NCCL_NVLS_ENABLE", "NVLink SHARP: sums in the NVSwitch", Warn::when_off,
          "sums then run on the GPUs alone, slower where there is an NVSwitch"},
    Known{"NCCL_COLLNET_ENABLE", "sums in the network (a plugin such as SHARP)"},
    Known{"NCCL_DMABUF_ENABLE", "register GPU memory by dma-buf for GPUDirect RDMA", Warn::when_off,
          "without the module nvidia_peermem, network cards then reach GPU memory only through the "
          "host"},
    Known{"NCCL_CUMEM_ENABLE", "allocate through CUDA's virtual memory interface"},
    Known{"NCCL_IGNORE_CPU_AFFINITY", "ignore the affinity that the job was given", Warn::when_on,
          "NCCL's threads then leave the cores that the scheduler assigned"},
    Known{"NCCL_CHECKS_DISABLE", "1 leaves argument checks out", Warn::when_on,
          "a wrong call then hangs or corrupts data instead of failing"},
    Known{"NCCL_LAUNCH_MODE", "PARALLEL or GROUP: how kernels are launched"},
    Known{"NCCL_COMM_ID", "address:port for the start-up instead of a passed id"},
    Known{"NCCL_COMM_BLOCKING", "whether calls on communicators block"},
    Known{"NCCL_CONF_FILE", "a file with more settings", Warn::always,
          "variables set in that file are not shown here"},
    Known{"NCCL_HOSTID", "the host's identity; equal ones count as one node"},
    Known{"NCCL_OOB_NET_ENABLE", "use the network module for the start-up, too"},
    Known{"NCCL_PXN_DISABLE", "1 forbids reaching a card through another GPU of the node"},
    Known{"NCCL_SET_THREAD_NAME", "name NCCL's threads"},
    Known{"NCCL_ASYNC_ERROR_HANDLING",
          "read by PyTorch, not NCCL: its older name of TORCH_NCCL_ASYNC_ERROR_HANDLING"},
    Known{"NCCL_BLOCKING_WAIT",
          "read by PyTorch, not NCCL: its older name of TORCH_NCCL_BLOCKING_WAIT"},
    Known{"NCCL_IB_GDR_LEVEL", "the older name of NCCL_NET_GDR_LEVEL", Warn::always,
          "use NCCL_NET_GDR_LEVEL"},
    Known{
        "OMP_NUM_THREADS",
        "threads of OpenMP programs; a worker of paceline uses compute.threads whatever this says"},
    Known{"OMP_PROC_BIND", "true binds OpenMP threads to cores", Warn::always, kAllOnOneCore},
    Known{"OMP_PLACES", "the places that OpenMP threads are bound to", Warn::always, kAllOnOneCore},
    Known{"GOMP_CPU_AFFINITY", "the cores that GNU OpenMP binds threads to", Warn::always,
          kAllOnOneCore},
    Known{"OPENBLAS_CORETYPE", "the processor that OpenBLAS takes this one for", Warn::always,
          kPeersOnly},
    Known{"OPENBLAS_L2_SIZE", "the cache size that OpenBLAS assumes", Warn::always, kPeersOnly},
    Known{"OPENBLAS_NUM_THREADS", "OpenBLAS's threads", Warn::always, kPeersOnly},
    Known{"DNNL_VERBOSE", "oneDNN prints every primitive that runs", Warn::when_on,
          "printing slows every step"},
    Known{"ONEDNN_VERBOSE", "oneDNN prints every primitive that runs", Warn::when_on,
          "printing slows every step"},
    Known{"DNNL_MAX_CPU_ISA", "the newest instruction set that oneDNN may use", Warn::always,
          kSlower},
    Known{"ONEDNN_MAX_CPU_ISA", "the newest instruction set that oneDNN may use", Warn::always,
          kSlower},
    Known{"CUDA_VISIBLE_DEVICES", "the GPUs that CUDA programs see, and their order"},
};

bool applies(Warn when, std::string_view value) {
  switch (when) {
    case Warn::never:
      return false;
    case Warn::when_on:
      return !value.empty() && value != "0";
    case Warn::when_off:
      return value == "0";
    case Warn::always:
      return true;
  }
  return false;
}

std::string unknown_warning(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Known& known : kKnown) {
    if (known.name.starts_with("NCCL_")) names.push_back(known.name);
  }
  names.insert(names.end(), kOtherNcclNames.begin(), kOtherNcclNames.end());
  const std::string near = nearest_name(name, names);
  return near.empty()
             ? std::string("NCCL ignores names that it does not know")
             : fmt::format("NCCL ignores names that it does not know; did you mean {}?", near);
}

}  // namespace

VariableNote explain_variable(std::string_view name, std::string_view value) {
  const auto* const known = std::ranges::find(kKnown, name, &Known::name);
  VariableNote note{std::string(name), std::string(value), {}, {}};
  if (std::ranges::find(kOtherNcclNames, name) != kOtherNcclNames.end()) {
    note.meaning = "a setting of NCCL 2.28 for tuning and tests; NVIDIA's manual explains it";
    return note;
  }
  if (known == kKnown.end()) {
    note.meaning = name.starts_with("NCCL_") ? "unknown to NCCL 2.28"
                                             : "not a variable that this program knows";
    if (name.starts_with("NCCL_")) note.warning = unknown_warning(name);
    return note;
  }
  note.meaning = known->meaning;
  if (applies(known->when, value)) note.warning = known->warning;
  return note;
}

std::vector<VariableNote> explain_variables(const std::map<std::string, std::string>& variables) {
  std::vector<VariableNote> notes;
  for (const auto& [name, value] : variables) {
    const bool known = std::ranges::find(kKnown, name, &Known::name) != kKnown.end();
    if (known || name.starts_with("NCCL_")) notes.push_back(explain_variable(name, value));
  }
  return notes;
}

}  // namespace paceline
