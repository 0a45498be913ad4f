// SPDX-License-Identifier: Apache-2.0
#include "common/config/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "common/base/error.h"
#include "common/config/value_text.h"

namespace paceline {
namespace {

template <auto Member>
auto& top(Config& config) {
  return config.*Member;
}
template <auto Group, auto Member>
auto& in(Config& config) {
  return config.*Group.*Member;
}

Key boolean(std::string_view name, KeyField field, std::string_view help) {
  return {name, KeyKind::boolean, field, 0, 0, {}, {}, help};
}
Key integer(std::string_view name, KeyField field, std::int64_t low, std::int64_t high,
            std::string_view help) {
  return {name, KeyKind::integer, field, low, high, {}, {}, help};
}
Key number(std::string_view name, KeyField field, NumberBounds bounds, std::string_view help) {
  return {name, KeyKind::number, field, 0, 0, bounds, {}, help};
}
Key text(std::string_view name, KeyField field, std::string_view help) {
  return {name, KeyKind::text, field, 0, 0, {}, {}, help};
}
Key choice(std::string_view name, KeyField field, std::vector<std::string_view> choices,
           std::string_view help) {
  return {name, KeyKind::choice, field, 0, 0, {}, std::move(choices), help};
}
Key size(std::string_view name, KeyField field, std::int64_t low, std::int64_t high,
         std::string_view help) {
  return {name, KeyKind::size, field, low, high, {}, {}, help};
}
Key duration(std::string_view name, KeyField field, Nanoseconds low, Nanoseconds high,
             std::string_view help) {
  return {name, KeyKind::duration, field, low.count(), high.count(), {}, {}, help};
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kBillion = 1'000'000'000;
constexpr std::int64_t kTrillion = 1'000 * kBillion;

void add_general_keys(std::vector<Key>& keys) {
  using namespace std::chrono_literals;
  keys.push_back(text("sync", top<&Config::sync>,
                      "the backend that synchronises gradients; in a file also sync.backend"));
  keys.push_back(choice(
      "model", top<&Config::model>,
      {"softmax", "mlp", "cnn", "resmlp", "resnet20", "resnet50", "logistic", "gpt"},
      "softmax regression, MLP 784-512-512-10, a CNN with two convolutions, an MLP with "
      "residual blocks that a step may leave out, ResNet-20 for 32x32 images, ResNet-50 v1.5, "
      "logistic regression on sparse rows, or a GPT on text"));
  keys.push_back(choice("device", top<&Config::device>, {"cpu", "cuda"},
                        "where layers compute; cuda: an NVIDIA GPU"));
  keys.push_back(integer("world", top<&Config::world>, 1, 1024, "workers"));
  keys.push_back(integer("seed", top<&Config::seed>, 0, kMost,
                         "of the initial weights and of the order of samples"));
  keys.push_back(boolean("sync.exact", in<&Config::sync_options, &SyncConfig::exact>,
                         "sum gradients as scaled 64-bit integers: the same bits in any order"));
  keys.push_back(boolean("sync.overlap", in<&Config::sync_options, &SyncConfig::overlap>,
                         "communicate while backward still runs"));
  keys.push_back(boolean("sync.priority", in<&Config::sync_options, &SyncConfig::priority>,
                         "of buckets that wait, the one needed first in forward goes first"));
  keys.push_back(boolean("sync.find_unused", in<&Config::sync_options, &SyncConfig::find_unused>,
                         "parameters without a gradient in a step count as zero; false: an error"));
  keys.push_back(choice("sync.wire", in<&Config::sync_options, &SyncConfig::wire>,
                        {"fp32", "bf16", "fp16"}, "element type of gradients as they travel"));
  keys.push_back(choice("data.name", in<&Config::data, &DataConfig::name>,
                        {"fashion-mnist", "cifar10", "synthetic", "libsvm", "sparse", "text"},
                        "data set; synthetic: made-up images, sparse: made-up sparse rows, "
                        "text: the bytes of any file"));
  keys.push_back(
      text("data.path", in<&Config::data, &DataConfig::path>,
           "folder of fashion-mnist's idx.gz files or of cifar10's .bin files; or the training "
           "set in libsvm's format, whose test set is the same name with .t (without "
           "one, every tenth row), or any file, whose last tenth is the test set"));
  keys.push_back(
      text("data.shape", in<&Config::data, &DataConfig::shape>,
           "data.name=synthetic: height, width and channels of an image, as in 224x224x3"));
  keys.push_back(integer("data.classes", in<&Config::data, &DataConfig::classes>, 1, 65536,
                         "data.name=synthetic: number of classes"));
  keys.push_back(integer("data.features", in<&Config::data, &DataConfig::features>, 1, 1 << 28,
                         "data.name=sparse: number of features"));
  keys.push_back(integer("data.nonzeros", in<&Config::data, &DataConfig::nonzeros>, 1, 1 << 20,
                         "data.name=sparse: features that a row draws"));
  keys.push_back(
      integer("data.context", in<&Config::data, &DataConfig::context>, 1, 1 << 16,
              "data.name=text: bytes of a sample, at each of which the next is predicted"));
  keys.push_back(choice("data.augment", in<&Config::data, &DataConfig::augment>,
                        {"none", "standard"},
                        "standard: shift training images by up to 4 pixels and mirror half of "
                        "them, by (seed, epoch, sample)"));
  keys.push_back(integer("data.train_limit", in<&Config::data, &DataConfig::train_limit>, 0,
                         kBillion, "use only the first n training images; 0: all"));
  keys.push_back(integer("data.test_limit", in<&Config::data, &DataConfig::test_limit>, 0, kBillion,
                         "use only the first n test images; 0: all"));
  keys.push_back(text("data.shares", in<&Config::data, &DataConfig::shares>,
                      "sizes of the ranks' own parts of the data, as in 2,1,1; those that run out "
                      "go on with zero samples; empty: equal batches of one common order"));
}

void add_model_keys(std::vector<Key>& keys) {
  keys.push_back(integer("gpt.layers", in<&Config::gpt, &GptConfig::layers>, 1, 1000,
                         "model=gpt: transformer blocks"));
  keys.push_back(integer("gpt.heads", in<&Config::gpt, &GptConfig::heads>, 1, 1 << 12,
                         "model=gpt: attention heads, which divide gpt.width"));
  keys.push_back(integer("gpt.width", in<&Config::gpt, &GptConfig::width>, 1, 1 << 16,
                         "model=gpt: channels of a position"));
}

void add_training_keys(std::vector<Key>& keys) {
  keys.push_back(integer("train.batch", in<&Config::train, &TrainConfig::batch>, 1, 1 << 20,
                         "samples per worker and micro-batch"));
  keys.push_back(integer("train.accumulate", in<&Config::train, &TrainConfig::accumulate>, 1,
                         1 << 16, "micro-batches per step, of which the last communicates"));
  keys.push_back(integer("train.samples", in<&Config::train, &TrainConfig::samples>, 1, kTrillion,
                         "samples to train on, all workers together"));
  keys.push_back(integer("train.eval_every", in<&Config::train, &TrainConfig::eval_every>, 0,
                         kTrillion, "samples between evaluations; 0: only at the end"));
  keys.push_back(number("train.target_accuracy", in<&Config::train, &TrainConfig::target_accuracy>,
                        {0.0, 1.0, false, false}, "test accuracy whose time is recorded; 0: none"));
  keys.push_back(choice("train.on_nan", in<&Config::train, &TrainConfig::on_nan>,
                        {"stop", "continue"}, "what a loss that is not finite does"));
  keys.push_back(number("train.drop_path", in<&Config::train, &TrainConfig::drop_path>,
                        {0.0, 1.0, false, true},
                        "model=resmlp: chance that a rank leaves a block out of a step"));
  keys.push_back(choice("optimizer.name", in<&Config::optimizer, &OptimizerConfig::name>,
                        {"sgd", "adam", "lars", "lamb", "onebit_adam"}, "update rule"));
  keys.push_back(number("optimizer.lr", in<&Config::optimizer, &OptimizerConfig::lr>,
                        {0.0, 1e6, false, false}, "base learning rate"));
  keys.push_back(number("optimizer.momentum", in<&Config::optimizer, &OptimizerConfig::momentum>,
                        {0.0, 1.0, false, true}, "of sgd"));
  keys.push_back(boolean("optimizer.nesterov", in<&Config::optimizer, &OptimizerConfig::nesterov>,
                         "Nesterov's form of the momentum (sgd)"));
  keys.push_back(number("optimizer.weight_decay",
                        in<&Config::optimizer, &OptimizerConfig::weight_decay>,
                        {0.0, 1e6, false, false}, "L2 term added to the gradient"));
  keys.push_back(number("optimizer.beta1", in<&Config::optimizer, &OptimizerConfig::beta1>,
                        {0.0, 1.0, false, true}, "of adam"));
  keys.push_back(number("optimizer.beta2", in<&Config::optimizer, &OptimizerConfig::beta2>,
                        {0.0, 1.0, false, true}, "of adam"));
  keys.push_back(number("optimizer.epsilon", in<&Config::optimizer, &OptimizerConfig::epsilon>,
                        {0.0, 1.0, true, false}, "of adam"));
  keys.push_back(number("optimizer.trust", in<&Config::optimizer, &OptimizerConfig::trust>,
                        {0.0, 1e3, true, false}, "lars: a tensor's rate is trust * |w| / |g|"));
  keys.push_back(number("optimizer.clip_norm", in<&Config::optimizer, &OptimizerConfig::clip_norm>,
                        {0.0, 1e9, false, false},
                        "largest global norm of the mean gradient; 0: no clipping"));
  keys.push_back(integer("optimizer.freeze_step",
                         in<&Config::optimizer, &OptimizerConfig::freeze_step>, 1, kBillion,
                         "onebit_adam: steps of full Adam before the variance freezes"));
  keys.push_back(choice("lr.schedule", in<&Config::lr, &LearningRateConfig::schedule>,
                        {"constant", "step", "cosine"}, "of the learning rate after warm-up"));
  keys.push_back(integer("lr.warmup_steps", in<&Config::lr, &LearningRateConfig::warmup_steps>, 0,
                         kBillion, "steps of linear warm-up"));
  keys.push_back(integer("lr.step_every", in<&Config::lr, &LearningRateConfig::step_every>, 1,
                         kBillion, "lr.schedule=step: steps between drops"));
  keys.push_back(number("lr.gamma", in<&Config::lr, &LearningRateConfig::gamma>,
                        {0.0, 1.0, true, false}, "lr.schedule=step: factor of each drop"));
  keys.push_back(number("lr.min_lr", in<&Config::lr, &LearningRateConfig::min_lr>,
                        {0.0, 1e6, false, false}, "lr.schedule=cosine: floor"));
  keys.push_back(
      choice("lr.scale", in<&Config::lr, &LearningRateConfig::scale>, {"none", "linear", "sqrt"},
             "multiplies optimizer.lr by (samples per step / lr.base_batch) or its root"));
  keys.push_back(integer("lr.base_batch", in<&Config::lr, &LearningRateConfig::base_batch>, 1,
                         kBillion, "samples per step that optimizer.lr was chosen for"));
}

void add_technique_keys(std::vector<Key>& keys) {
  keys.push_back(choice("precision.compute", in<&Config::precision, &PrecisionConfig::compute>,
                        {"fp32", "bf16", "fp16"},
                        "of products and activations; weights stay fp32; also precision"));
  keys.push_back(
      choice("precision.loss_scale", in<&Config::precision, &PrecisionConfig::loss_scale>,
             {"auto", "dynamic", "fixed", "none"}, "auto: dynamic with fp16, else none"));
  keys.push_back(number("precision.initial_scale",
                        in<&Config::precision, &PrecisionConfig::initial_scale>,
                        {1.0, 1e9, false, false}, "of the loss; a power of two"));
  keys.push_back(integer("precision.growth_every",
                         in<&Config::precision, &PrecisionConfig::growth_every>, 1, kBillion,
                         "steps without overflow until the dynamic scale doubles"));
  keys.push_back(choice("norm.kind", in<&Config::norm, &NormConfig::kind>,
                        {"auto", "none", "batch", "sync_batch", "group", "layer"},
                        "normalisation after each hidden layer of mlp and cnn and each convolution "
                        "of a resnet; auto: batch in resnets, else none; also norm"));
  keys.push_back(integer("norm.groups", in<&Config::norm, &NormConfig::groups>, 1, 1024,
                         "of norm.kind=group; must divide the channels"));
  keys.push_back(number("norm.momentum", in<&Config::norm, &NormConfig::momentum>,
                        {0.0, 1.0, true, false}, "of the running statistics"));
  keys.push_back(choice("compress.method", in<&Config::compress, &CompressConfig::method>,
                        {"none", "topk", "randomk", "threshold", "onebit", "sign", "qsgd",
                         "powersgd", "fp16", "bf16"},
                        "how gradients are compressed; also compress"));
  keys.push_back(number("compress.density", in<&Config::compress, &CompressConfig::density>,
                        {0.0, 1.0, true, false}, "topk, randomk: share of elements that travel"));
  keys.push_back(number("compress.threshold", in<&Config::compress, &CompressConfig::threshold>,
                        {0.0, 1e9, true, false},
                        "threshold: smallest magnitude in the mean gradient that travels"));
  keys.push_back(integer("compress.levels", in<&Config::compress, &CompressConfig::levels>, 1,
                         32767, "qsgd: quantisation levels"));
  keys.push_back(integer("compress.rank", in<&Config::compress, &CompressConfig::rank>, 1, 1024,
                         "powersgd: rank of the approximation"));
  keys.push_back(boolean("compress.error_feedback",
                         in<&Config::compress, &CompressConfig::error_feedback>,
                         "add what was left out to the next gradient"));
}

void add_communication_keys(std::vector<Key>& keys) {
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

void add_emulation_keys(std::vector<Key>& keys) {
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

std::vector<Key> make_keys() {
  std::vector<Key> keys;
  add_general_keys(keys);
  add_model_keys(keys);
  add_training_keys(keys);
  add_technique_keys(keys);
  add_communication_keys(keys);
  add_emulation_keys(keys);
  return keys;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string raw_as_text(const RawValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *whole);
  if (const auto* real = std::get_if<double>(&value)) return format_number(*real);
  std::string text = std::get<std::string>(value);
  constexpr std::size_t kShown = 80;
  if (text.size() > kShown) {
    text.resize(kShown);
    text += "...";
  }
  return toml_quoted(text);
}

/// The value as an int64 (integer, size in bytes, duration in ns), empty for another type.
std::optional<std::int64_t> as_int64(const Key& key, const RawValue& value) {
  std::optional<std::int64_t> result;
  const auto* text = std::get_if<std::string>(&value);
  const auto* whole = std::get_if<std::int64_t>(&value);
  if (whole != nullptr) {
    const bool counts = key.kind == KeyKind::integer || key.kind == KeyKind::size;
    if (counts || (key.kind == KeyKind::duration && *whole == 0)) result = *whole;
  } else if (text != nullptr && key.kind == KeyKind::size) {
    result = parse_size(*text);
  } else if (text != nullptr && key.kind == KeyKind::duration) {
    if (const auto parsed = parse_duration(*text)) result = parsed->count();
  }
  return result;
}

std::optional<double> as_number(const RawValue& value) {
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  return std::nullopt;
}

bool within(const NumberBounds& bounds, double value) {
  return (bounds.open_low ? value > bounds.low : value >= bounds.low) &&
         (bounds.open_high ? value < bounds.high : value <= bounds.high);
}

/// Stores into the field; false when the value is of the wrong type or out of range.
bool store(Config& config, const Key& key, const RawValue& value) {
  switch (key.kind) {
    case KeyKind::boolean: {
      const auto* flag = std::get_if<bool>(&value);
      if (flag == nullptr) return false;
      std::get<bool& (*)(Config&)>(key.field)(config) = *flag;
      return true;
    }
    case KeyKind::number: {
      const auto real = as_number(value);
      if (!real || !within(key.number, *real)) return false;
      std::get<double& (*)(Config&)>(key.field)(config) = *real;
      return true;
    }
    case KeyKind::text:
    case KeyKind::choice: {
      const auto* text = std::get_if<std::string>(&value);
      if (text == nullptr || !printable_utf8(*text)) return false;
      if (key.kind == KeyKind::choice && std::ranges::find(key.choices, *text) == key.choices.end())
        return false;
      std::get<std::string& (*)(Config&)>(key.field)(config) = *text;
      return true;
    }
    default: {
      const auto whole = as_int64(key, value);
      if (!whole || *whole < key.low || *whole > key.high) return false;
      std::visit(
          [&](auto field) {
            using Value = std::remove_reference_t<decltype(field(config))>;
            if constexpr (std::is_integral_v<Value> && !std::is_same_v<Value, bool>)
              field(config) = static_cast<Value>(*whole);
            else if constexpr (std::is_same_v<Value, Nanoseconds>)
              field(config) = Nanoseconds(*whole);
          },
          key.field);
      return true;
    }
  }
  return false;
}

}  // namespace

std::span<const Key> config_keys() {
  static const std::vector<Key> keys = make_keys();
  return keys;
}

const Key* find_key(std::string_view name) {
  if (name == "sync.backend") name = "sync";
  if (name == "compress") name = "compress.method";
  if (name == "precision") name = "precision.compute";
  if (name == "norm") name = "norm.kind";
  const auto keys = config_keys();
  const auto found = std::ranges::find(keys, name, &Key::name);
  return found == keys.end() ? nullptr : &*found;
}

std::string nearest_name(std::string_view name, std::span<const std::string_view> names) {
  std::string_view best;
  // Longer inputs cannot be a slip of a key; this also bounds the work on untrusted text.
  std::size_t least = name.size() > 64 ? 0 : std::max<std::size_t>(3, name.size() / 3 + 1);
  for (const std::string_view candidate : names) {
    const std::size_t distance = name.size() > 64 ? least : edit_distance(name, candidate);
    if (distance < least && distance < candidate.size()) {
      least = distance;
      best = candidate;
    }
  }
  return std::string(best);
}

std::string unknown_key_message(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Key& key : config_keys()) names.push_back(key.name);
  std::string near = nearest_name(name, names);
  if (near.empty()) {  // the right last part in the wrong group
    for (const std::string_view candidate : names) {
      if (candidate.ends_with(fmt::format(".{}", name))) near = candidate;
    }
  }
  std::string shown(name.substr(0, 80));
  const std::string hint = near.empty() ? std::string("see docs/configuration.md for all keys")
                                        : fmt::format("did you mean '{}'?", near);
  return fmt::format("unknown key {} ({})", toml_quoted(shown), hint);
}

std::string allowed_text(const Key& key) {
  switch (key.kind) {
    case KeyKind::boolean:
      return "true or false";
    case KeyKind::integer:
      if (key.high == kMost) return fmt::format("an integer from {} up", key.low);
      return fmt::format("an integer from {} to {}", key.low, key.high);
    case KeyKind::number:
      return fmt::format("a number {} {:g} and {} {:g}", key.number.open_low ? "above" : "from",
                         key.number.low, key.number.open_high ? "below" : "up to", key.number.high);
    case KeyKind::text:
      return "a text without control characters";
    case KeyKind::choice:
      return fmt::format("one of {}", fmt::join(key.choices, ", "));
    case KeyKind::size:
      return fmt::format("a size from {} to {}, such as 65536, 1MB or 25MiB", format_size(key.low),
                         format_size(key.high));
    case KeyKind::duration:
      return fmt::format("a duration from {} to {}, such as 50us, 120ms or 2s",
                         format_duration(Nanoseconds(key.low)),
                         format_duration(Nanoseconds(key.high)));
  }
  return {};
}

void set_value(Config& config, const Key& key, const RawValue& value, std::string_view where) {
  if (!store(config, key, value)) {
    throw ConfigError(fmt::format("{}{} = {} is not allowed: it must be {}", where, key.name,
                                  raw_as_text(value), allowed_text(key)));
  }
}

std::string value_as_toml(const Config& config, const Key& key) {
  Config copy = config;  // the table's accessors give mutable references
  return std::visit(
      [&](auto field) -> std::string {
        const auto& value = field(copy);
        using Value = std::remove_cvref_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>)
          return value ? "true" : "false";
        else if constexpr (std::is_same_v<Value, std::string>)
          return toml_quoted(value);
        else if constexpr (std::is_same_v<Value, double>)
          return format_number(value);
        else if constexpr (std::is_same_v<Value, Nanoseconds>)
          return toml_quoted(format_duration(value));
        else if (key.kind == KeyKind::size) {
          const std::string size = format_size(static_cast<std::int64_t>(value));
          return size.back() == 'B' ? toml_quoted(size) : size;
        } else
          return fmt::format("{}", value);
      },
      key.field);
}

}  // namespace paceline
