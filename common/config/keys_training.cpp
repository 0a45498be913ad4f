// SPDX-License-Identifier: Apache-2.0
// The keys of what is trained, on what and how.
#include "common/config/key_builders.h"

namespace paceline::keys {

void add_general(std::vector<Key>& keys) {
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

void add_model(std::vector<Key>& keys) {
  keys.push_back(integer("gpt.layers", in<&Config::gpt, &GptConfig::layers>, 1, 1000,
                         "model=gpt: transformer blocks"));
  keys.push_back(integer("gpt.heads", in<&Config::gpt, &GptConfig::heads>, 1, 1 << 12,
                         "model=gpt: attention heads, which divide gpt.width"));
  keys.push_back(integer("gpt.width", in<&Config::gpt, &GptConfig::width>, 1, 1 << 16,
                         "model=gpt: channels of a position"));
}

void add_training(std::vector<Key>& keys) {
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

void add_technique(std::vector<Key>& keys) {
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

}  // namespace paceline::keys
