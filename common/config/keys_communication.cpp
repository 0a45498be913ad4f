// SPDX-License-Identifier: Apache-2.0
// The keys of backends, transports and machines, and of what a run leaves.
#include "common/config/key_builders.h"

namespace paceline::keys {

void add_communication(std::vector<Key>& keys) {
  using namespace std::chrono_literals;
  keys.push_back(size("bucket.size", in<&Config::bucket, &BucketConfig::size>, 4, 64 * kGiB,
                      "largest bucket of gradients"));
  keys.push_back(size("bucket.first_size", in<&Config::bucket, &BucketConfig::first_size>, 4,
                      64 * kGiB, "the same for the bucket that is ready first"));
  keys.push_back(boolean("bucket.cut", in<&Config::bucket, &BucketConfig::cut>,
                         "a larger tensor becomes several buckets (of 64 KiB at least); else, and "
                         "where tensors matter "
                         "(lars, lamb, powersgd), a bucket alone"));
  keys.push_back(
      integer("ps.servers", in<&Config::ps, &PsConfig::servers>, 1, 1024, "servers of the ps"));
  keys.push_back(choice("ps.placement", in<&Config::ps, &PsConfig::placement>,
                        {"process", "colocated"},
                        "servers as processes of their own, or in the first ranks"));
  keys.push_back(choice("ps.consistency", in<&Config::ps, &PsConfig::consistency>,
                        {"bsp", "ssp", "asp"}, "synchronous, bounded staleness, asynchronous"));
  keys.push_back(integer("ps.staleness", in<&Config::ps, &PsConfig::staleness>, 0, 1'000'000,
                         "ps.consistency=ssp: how many steps a worker may run ahead"));
  keys.push_back(choice("ps.transport", in<&Config::ps, &PsConfig::transport>,
                        {"auto", "tcp", "ipc"}, "between workers and servers"));
  keys.push_back(choice("ps.device", in<&Config::ps, &PsConfig::device>, {"cpu", "cuda"},
                        "where servers keep weights and optimizer and update them; cuda: in a "
                        "GPU's memory, whatever device is"));
  keys.push_back(choice("async.rate", in<&Config::async, &AsyncConfig::rate>,
                        {"constant", "staleness"},
                        "asgd, ps with asp or ssp; staleness: learning rate / max(staleness, 1)"));
  keys.push_back(choice("async.compensate", in<&Config::async, &AsyncConfig::compensate>,
                        {"none", "constant", "adaptive"},
                        "likewise: delay compensation of stale gradients (DC-ASGD)"));
  keys.push_back(number("async.lambda", in<&Config::async, &AsyncConfig::lambda>,
                        {0.0, 1e6, false, false},
                        "of async.compensate; 0: the paper's 0.04 (constant) or 2 (adaptive)"));
  keys.push_back(number("async.mean_square", in<&Config::async, &AsyncConfig::mean_square>,
                        {0.0, 1.0, false, true},
                        "async.compensate=adaptive: decay of the mean square"));
  keys.push_back(choice("ring.algorithm", in<&Config::ring, &RingConfig::algorithm>,
                        {"auto", "ring", "tree", "halving_doubling", "hierarchical"},
                        "allreduce of sync=ring; auto picks by size"));
  keys.push_back(size("ring.chunk", in<&Config::ring, &RingConfig::chunk>, 0, 64 * kGiB,
                      "bytes moved in one round; 0: chosen by size"));
  keys.push_back(
      choice("nccl.algo", in<&Config::nccl, &NcclConfig::algo>,
             {"auto", "ring", "tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"},
             "where NCCL sums: the one algorithm that it may use (NCCL_ALGO); auto: NCCL's tuner"));
  keys.push_back(choice("nccl.proto", in<&Config::nccl, &NcclConfig::proto>,
                        {"auto", "ll", "ll128", "simple"},
                        "where NCCL sums: its protocol (NCCL_PROTO); auto: NCCL's tuner"));
  keys.push_back(integer("nccl.min_ctas", in<&Config::nccl, &NcclConfig::min_ctas>, 0, 64,
                         "where NCCL sums: least CUDA blocks of a collective; 0: NCCL's choice"));
  keys.push_back(integer("nccl.max_ctas", in<&Config::nccl, &NcclConfig::max_ctas>, 0, 64,
                         "where NCCL sums: most CUDA blocks of a collective, which it takes from "
                         "computing; 0: NCCL's choice"));
  keys.push_back(integer("local.steps", in<&Config::local, &LocalConfig::steps>, 1, kBillion,
                         "steps of each rank between two averages of the weights"));
  keys.push_back(choice("local.outer", in<&Config::local, &LocalConfig::outer>,
                        {"average", "nesterov"},
                        "what becomes of the average: the weights, or (DiLoCo) a gradient for SGD "
                        "with Nesterov momentum"));
  keys.push_back(number("local.outer_lr", in<&Config::local, &LocalConfig::outer_lr>,
                        {0.0, 1e3, true, false}, "local.outer=nesterov: its learning rate"));
  keys.push_back(number("local.outer_momentum", in<&Config::local, &LocalConfig::outer_momentum>,
                        {0.0, 1.0, false, true}, "local.outer=nesterov: its momentum"));
  keys.push_back(integer("easgd.period", in<&Config::easgd, &EasgdConfig::period>, 1, kBillion,
                         "steps of each rank between two exchanges with the center"));
  keys.push_back(number("easgd.alpha", in<&Config::easgd, &EasgdConfig::alpha>,
                        {0.0, 1.0, false, false},
                        "part of the way to the center that a replica moves; 0: 0.9 / world"));
  keys.push_back(choice("gossip.mode", in<&Config::gossip, &GossipConfig::mode>,
                        {"synchronous", "asynchronous"},
                        "partners meet in every step; or even ranks call odd ones, which answer at "
                        "any time (AD-PSGD)"));
  keys.push_back(choice("gossip.graph", in<&Config::gossip, &GossipConfig::graph>,
                        {"ring", "random"},
                        "partners of a step: neighbours in a ring, or random pairs"));
  keys.push_back(choice("comm.transport", in<&Config::comm, &CommConfig::transport>,
                        {"auto", "inproc", "shm", "tcp"},
                        "between ranks; auto: shared memory within a node, TCP between nodes"));
  keys.push_back(duration("comm.timeout", in<&Config::comm, &CommConfig::timeout>, 100ms, 24h,
                          "a rank that is silent or dead ends the run within it"));
  keys.push_back(
      text("comm.host", in<&Config::comm, &CommConfig::host>, "IPv4 or IPv6 address to listen on"));
  keys.push_back(integer("comm.tcp_connections", in<&Config::comm, &CommConfig::tcp_connections>, 1,
                         64, "TCP connections per pair of ranks"));
}

void add_machine(std::vector<Key>& keys) {
  using namespace std::chrono_literals;
  keys.push_back(
      text("link.inter", in<&Config::link, &LinkConfig::inter>,
           "emulated link between nodes: RATE,LATENCY as in 1gbit,50us; none: unshaped"));
  keys.push_back(text("link.intra", in<&Config::link, &LinkConfig::intra>,
                      "the same between ranks of one node"));
  keys.push_back(integer("topology.ranks_per_node",
                         in<&Config::topology, &TopologyConfig::ranks_per_node>, 0, 1024,
                         "ranks that share a node and its network card; 0: all ranks"));
  keys.push_back(duration("compute.emulate", in<&Config::compute, &ComputeConfig::emulate>, 0s, 1h,
                          "pad a step's forward and backward to that of a given device; 0: off"));
  keys.push_back(integer("compute.threads", in<&Config::compute, &ComputeConfig::threads>, 1, 1024,
                         "threads per worker for the layers' arithmetic"));
  keys.push_back(boolean("compute.winograd", in<&Config::compute, &ComputeConfig::winograd>,
                         "device=cpu, compute.threads=1: 3x3 convolutions of stride 1 in fp32 by "
                         "Winograd's minimal filtering where the channels are multiples of 16; "
                         "false: all by oneDNN's direct convolution"));
  keys.push_back(
      integer("cuda.device", in<&Config::cuda, &CudaConfig::device>, -1, 1023,
              "device=cuda: index of the GPU of every rank (with ps.device=cuda of every "
              "server); -1: a machine's ranks, then its servers, take its GPUs in turn"));
  keys.push_back(boolean("cuda.tf32", in<&Config::cuda, &CudaConfig::tf32>,
                         "device=cuda: fp32 products on tensor cores, in TF32"));
  keys.push_back(boolean("cuda.tune", in<&Config::cuda, &CudaConfig::tune>,
                         "device=cuda: the first batch of a size times cuDNN's proposals for every "
                         "convolution and the fastest is taken, not the first; two runs may then "
                         "choose differently, and so differ in their last bits"));
  keys.push_back(choice("cuda.attention", in<&Config::cuda, &CudaConfig::attention>,
                        {"auto", "fused", "products"},
                        "device=cuda, in bf16 or fp16: auto: attention in cuDNN's fused kernels "
                        "where equal steps give equal bits; fused: wherever cuDNN has them; "
                        "products: two products and a softmax"));
  keys.push_back(
      choice("cuda.norm", in<&Config::cuda, &CudaConfig::norm>, {"own", "auto", "cudnn"},
             "device=cuda: batch norm in training by own: the program's kernels; "
             "auto: cuDNN for the layers that it computes (in bf16 and fp16 of a "
             "multiple of 8 channels, in fp32 of 4), which takes it some tenths of a "
             "second at first for each shape, own for the others; cudnn: a layer that it "
             "does not compute ends the run"));
  keys.push_back(choice("cuda.pool", in<&Config::cuda, &CudaConfig::pool>, {"own", "auto", "cudnn"},
                        "device=cuda: maxima and means over windows, as cuda.norm"));
  keys.push_back(boolean("cuda.graph", in<&Config::cuda, &CudaConfig::graph>,
                         "device=cuda: from the third time on, a batch's forward and backward are "
                         "launched as a few CUDA graphs, not kernel by kernel"));
  keys.push_back(choice("cuda.collectives", in<&Config::cuda, &CudaConfig::collectives>,
                        {"auto", "nccl", "host"},
                        "device=cuda with sync=hierarchical or sharded: who sums the gradients: "
                        "nccl: NCCL between the GPUs; host: copies in page-locked memory and the "
                        "TCP of sync on CPUs; auto: NCCL unless a setting needs the host"));
  keys.push_back(
      text("run.dir", in<&Config::run, &RunDirConfig::dir>, "folder that gets the run's folder"));
  keys.push_back(text("run.name", in<&Config::run, &RunDirConfig::name>,
                      "last part of the run folder's name; empty: the backend's name"));
  keys.push_back(boolean("observe.trace", in<&Config::observe, &ObserveConfig::trace>,
                         "write trace.json (Chrome, Perfetto)"));
  keys.push_back(
      boolean("observe.steps", in<&Config::observe, &ObserveConfig::steps>, "write steps.jsonl"));
  keys.push_back(boolean("observe.tensorboard", in<&Config::observe, &ObserveConfig::tensorboard>,
                         "write TensorBoard event files"));
  keys.push_back(boolean("observe.mllog", in<&Config::observe, &ObserveConfig::mllog>,
                         "write :::MLLOG lines to mllog.txt"));
  keys.push_back(
      boolean("observe.csv", in<&Config::observe, &ObserveConfig::csv>, "write steps.csv"));
  keys.push_back(text("fault.kill", in<&Config::fault, &FaultConfig::kill>,
                      "for tests: RANK@PHASE[:STEP], that rank sends itself SIGKILL there; phases "
                      "start, rendezvous, forward, backward, commit, last"));
  keys.push_back(
      text("fault.stop", in<&Config::fault, &FaultConfig::stop>, "for tests: likewise SIGSTOP"));
  keys.push_back(text("fault.slow_rank", in<&Config::fault, &FaultConfig::slow_rank>,
                      "RANK:FACTORx, several with commas, as in 0:2x,2:4x: those ranks take so "
                      "many times their step time"));
  keys.push_back(text("fault.jitter", in<&Config::fault, &FaultConfig::jitter>,
                      "random delay of each step by seed, as a share of its time: uniform:0.2 (up "
                      "to), normal:0.1, lognormal:0.3, exponential:0.2 (mean), or none"));
}

}  // namespace paceline::keys
