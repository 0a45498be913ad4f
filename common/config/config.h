// SPDX-License-Identifier: Apache-2.0
// The resolved configuration of one run: plain data, validated once (config/validate.h), then only
// read. Every field is a key of the same name in TOML and in `a.b=c` overrides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/time.h"

namespace paceline {

struct DataConfig {
  std::string name =
      "fashion-mnist";  ///< fashion-mnist | cifar10 | synthetic | libsvm | sparse | text
  std::string path = "/usr/share/datasets/fashion-mnist";  ///< folder of idx.gz or .bin files;
                                                           ///< libsvm's or text's file
  std::string shape = "28x28x1";                           ///< synthetic: HEIGHTxWIDTHxCHANNELS
  int classes = 10;                                        ///< synthetic
  std::int64_t features = 50000;                           ///< sparse: width of a row
  std::int64_t nonzeros = 50;    ///< sparse: at most so many features in a row
  std::int64_t context = 128;    ///< text: bytes of a sample
  std::string augment = "none";  ///< none | standard: shift and mirror training images
  std::int64_t train_limit = 0;  ///< use only the first n images; 0: all
  std::int64_t test_limit = 0;   ///< likewise for the test set
  std::string
      shares;  ///< "2,1,1": sizes of the ranks' own parts of the data; empty: one order for all
};

struct GptConfig {
  std::int64_t layers = 4;
  std::int64_t heads = 4;    ///< divide width
  std::int64_t width = 128;  ///< channels of a position
};

struct TrainConfig {
  std::int64_t batch = 64;       ///< samples per worker and micro-batch
  std::int64_t accumulate = 1;   ///< micro-batches per step; only the last one communicates
  std::int64_t samples = 60000;  ///< samples to train on, all workers together
  std::int64_t eval_every = 0;   ///< samples between evaluations; 0: only at the end
  double target_accuracy = 0.0;  ///< test accuracy (0..1) whose time is recorded; 0: none
  std::string on_nan = "stop";   ///< stop | continue
  double drop_path = 0.0;        ///< model=resmlp: chance that a rank leaves a block out of a step
};

struct PrecisionConfig {
  std::string compute = "fp32";  ///< fp32 | bf16 | fp16: operands of products and activations
  std::string loss_scale =
      "auto";                      ///< auto (dynamic with fp16, else none) | dynamic | fixed | none
  double initial_scale = 65536.0;  ///< of the loss; a power of two
  std::int64_t growth_every = 2000;  ///< dynamic: steps without overflow until the scale doubles
};

struct NormConfig {
  std::string kind = "auto";  ///< auto (batch in resnets, else none) | none | batch | sync_batch |
                              ///< group | layer
  int groups = 8;             ///< of kind group
  double momentum = 0.1;      ///< of the running statistics: new = (1-m)·old + m·batch
};

struct OptimizerConfig {
  std::string name = "sgd";  ///< sgd | adam | lars | lamb | onebit_adam
  double lr = 0.05;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double trust = 0.001;            ///< lars: the layers' rate is trust·|w|/|g|
  double clip_norm = 0.0;          ///< largest global norm of the mean gradient; 0: no clipping
  std::int64_t freeze_step = 100;  ///< onebit_adam: steps of full Adam before the variance freezes
};

struct LearningRateConfig {
  std::string schedule = "constant";  ///< constant | step | cosine
  std::int64_t warmup_steps = 0;      ///< linear warm-up
  std::int64_t step_every = 1000;     ///< schedule=step: steps between drops
  double gamma = 0.1;                 ///< schedule=step: factor of each drop
  double min_lr = 0.0;                ///< schedule=cosine: floor
  std::string scale = "none";         ///< none | linear | sqrt, in global batch / base_batch
  std::int64_t base_batch = 64;       ///< samples per step that optimizer.lr was chosen for
};

struct SyncConfig {
  bool exact = false;         ///< sums as scaled 64-bit integers: the same bits in any order
  bool overlap = true;        ///< communicate while backward still runs
  bool priority = true;       ///< of buckets that wait, the one needed first in forward goes first
  bool find_unused = true;    ///< parameters without a gradient in a step count as zero
  std::string wire = "fp32";  ///< fp32 | bf16 | fp16: elements as they travel
};

struct CompressConfig {
  std::string method = "none";  ///< none | topk | randomk | threshold | onebit | sign | qsgd |
                                ///< powersgd | fp16 | bf16
  double density = 0.01;        ///< topk, randomk: share of elements that travel
  double threshold = 1e-3;      ///< threshold: smallest magnitude of the mean gradient that travels
  int levels = 15;              ///< qsgd: quantisation levels s
  int rank = 4;                 ///< powersgd
  bool error_feedback = true;   ///< add what was left out to the next gradient
};

struct BucketConfig {
  std::size_t size = std::size_t{25} << 20;       ///< bytes
  std::size_t first_size = std::size_t{1} << 20;  ///< bytes of the bucket that is ready first
  bool cut = true;                                ///< tensors larger than that become several
};

struct PsConfig {
  int servers = 1;
  std::string placement = "process";  ///< process | colocated (a thread in each of the first ranks)
  std::string consistency = "bsp";    ///< bsp | ssp | asp
  int staleness = 3;                  ///< bound s of ssp
  std::string transport = "auto";     ///< auto | tcp | ipc (ZeroMQ's transport)
  std::string device = "cpu";         ///< cpu | cuda: memory of weights and optimizer state
};

struct AsyncConfig {
  std::string rate = "constant";    ///< constant | staleness: learning rate / max(staleness, 1)
  std::string compensate = "none";  ///< none | constant | adaptive: DC-ASGD's variants
  double lambda = 0.0;              ///< of compensate; 0: the paper's 0.04 (constant), 2 (adaptive)
  double mean_square = 0.95;        ///< of compensate=adaptive: decay of the mean square
};

struct RingConfig {
  std::string algorithm = "auto";  ///< auto | ring | tree | halving_doubling | hierarchical
  std::size_t chunk = 0;           ///< bytes moved in one round; 0: chosen by size
};

struct NcclConfig {
  std::string algo = "auto";   ///< auto | ring | tree | collnet_direct | collnet_chain | nvls |
                               ///< nvls_tree; auto: NCCL's tuner or NCCL_ALGO
  std::string proto = "auto";  ///< auto | ll | ll128 | simple; auto: NCCL's tuner or NCCL_PROTO
  int min_ctas = 0;            ///< least CUDA blocks of a collective; 0: NCCL's choice
  int max_ctas = 0;            ///< most; 0: NCCL's choice
};

struct LocalConfig {
  std::int64_t steps = 8;         ///< H: steps of each rank between averages
  std::string outer = "average";  ///< average | nesterov (DiLoCo)
  double outer_lr = 0.7;          ///< of nesterov, as is outer_momentum
  double outer_momentum = 0.9;
};

struct EasgdConfig {
  std::int64_t period = 4;  ///< steps of each rank between exchanges with the center
  double alpha = 0.0;       ///< elastic force on a replica; 0: 0.9 / world
};

struct GossipConfig {
  std::string mode = "synchronous";  ///< synchronous | asynchronous (AD-PSGD)
  std::string graph = "ring";        ///< ring | random: who may be partners
};

struct CommConfig {
  std::string transport = "auto";  ///< auto | inproc | shm | tcp
  Nanoseconds timeout = std::chrono::seconds(30);
  std::string host = "127.0.0.1";  ///< address to listen on (IPv4 or IPv6)
  int tcp_connections = 1;         ///< connections per pair of ranks
};

struct LinkConfig {
  std::string inter = "none";  ///< link between nodes: "1gbit,50us" or none (unshaped)
  std::string intra = "none";  ///< link between ranks of one node
};

struct TopologyConfig {
  int ranks_per_node = 0;  ///< ranks that share a node and its NIC; 0: all ranks on one node
};

struct ComputeConfig {
  Nanoseconds emulate{0};  ///< time one step's forward and backward take on the emulated device
  int threads = 1;         ///< threads per worker for the layers' arithmetic
  bool winograd = true;    ///< device=cpu: 3×3 convolutions by Winograd's minimal filtering
};

struct CudaConfig {
  int device = -1;    ///< index of the GPU; -1: a machine's members take its GPUs in turn
  bool tf32 = false;  ///< fp32 products on tensor cores, with ten bits of mantissa
  bool tune = false;  ///< cuDNN's proposals for a convolution are timed at first
  /// auto: cuDNN's fused kernels where equal steps give equal bits; fused: wherever it has them;
  /// products: never
  std::string attention = "auto";
  /// own: the program's kernels; auto: cuDNN's where it has one; cudnn: its alone. The first is of
  /// batch norms in training that no ranks share
  std::string norm = "own";
  std::string pool = "own";
  bool graph = false;  ///< steps that are known are launched as CUDA graphs
  /// sync=hierarchical and sync=sharded: nccl: NCCL sums; host: copies in page-locked memory do;
  /// auto: NCCL unless a setting needs the host
  std::string collectives = "auto";
};

struct RunDirConfig {
  std::string dir = "runs";
  std::string name;  ///< defaults to the backend's name
};

struct ObserveConfig {
  bool trace = true;         ///< trace.json
  bool steps = true;         ///< steps.jsonl
  bool tensorboard = false;  ///< event files under tensorboard/
  bool mllog = false;        ///< mllog.txt with :::MLLOG lines
  bool csv = false;          ///< steps.csv
};

struct FaultConfig {
  std::string kill;  ///< "RANK@PHASE[:STEP]": that rank sends itself SIGKILL there
  std::string
      stop;  ///< likewise SIGSTOP. Phases: start, rendezvous, forward, backward, commit, last
  std::string slow_rank;        ///< "0:2x,2:4x": those ranks take so many times their step time
  std::string jitter = "none";  ///< none | KIND:AMOUNT, as parse_jitter explains: of step times
};

struct Config {
  std::string sync = "ring";
  std::string model = "cnn";
  std::string device = "cpu";
  int world = 1;
  std::uint64_t seed = 1;
  DataConfig data;
  GptConfig gpt;
  TrainConfig train;
  OptimizerConfig optimizer;
  LearningRateConfig lr;
  SyncConfig sync_options;  ///< keys sync.*
  PrecisionConfig precision;
  NormConfig norm;
  CompressConfig compress;
  BucketConfig bucket;
  PsConfig ps;
  AsyncConfig async;
  RingConfig ring;
  NcclConfig nccl;
  LocalConfig local;
  EasgdConfig easgd;
  GossipConfig gossip;
  CommConfig comm;
  LinkConfig link;
  TopologyConfig topology;
  ComputeConfig compute;
  CudaConfig cuda;
  RunDirConfig run;
  ObserveConfig observe;
  FaultConfig fault;
};

}  // namespace paceline
