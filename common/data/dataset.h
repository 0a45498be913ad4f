// SPDX-License-Identifier: Apache-2.0
// Labelled samples in memory: images, sparse rows, or windows of a text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/core/model.h"

namespace paceline {

/// Immutable after construction, so any number of threads may read it.
class Dataset {
 public:
  Dataset() = default;
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  [[nodiscard]] virtual std::int64_t size() const noexcept = 0;
  [[nodiscard]] virtual SampleShape shape() const noexcept = 0;
  [[nodiscard]] virtual int classes() const noexcept = 0;
  /// Over 1 where each position of a sample has a label of its own (text).
  [[nodiscard]] virtual std::int64_t labels_per_sample() const noexcept { return 1; }
  /// The samples' features where they are sparse (then shape() is their number, and gather fills
  /// `labels` alone and takes empty `inputs`); null: images.
  [[nodiscard]] virtual const SparseMatrix* sparse() const noexcept { return nullptr; }
  /// Writes samples `indices` to `inputs` ([n, h, w, c], normalised) and `labels` ([n,
  /// labels_per_sample()]).
  virtual void gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
                      std::span<std::int32_t> labels) const = 0;
  /// The same for training in pass `epoch` over the set: augmented where the set was made so. A
  /// sample's draw depends on (seed, epoch, index) alone, so on no rank or batch.
  virtual void gather_training(std::span<const std::uint32_t> indices, std::int64_t /*epoch*/,
                               std::span<float> inputs, std::span<std::int32_t> labels) const {
    gather(indices, inputs, labels);
  }
};

struct Datasets {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
};

/// What gather_training() does to an image. Standard (as in He et al. 2016 for CIFAR): the image
/// shifted by up to 4 pixels each way, black moving in, and mirrored in half of the cases.
struct Augmentation {
  bool standard = false;
  std::uint64_t seed = 0;
};

enum class Split : std::uint8_t { train, test };

/// Reads an idx pair (LeCun's format, gzipped or plain, named as Fashion-MNIST's). `limit` > 0
/// keeps the first so many. Pixels become (x/255 − mean)/std with Fashion-MNIST's 0.2860, 0.3530.
/// Throws ConfigError naming the file when it is missing, has a wrong magic, is truncated or holds
/// a label over 9; sizes in the header are checked against the data before memory is taken.
[[nodiscard]] std::unique_ptr<Dataset> load_fashion_mnist(const std::string& folder, Split split,
                                                          std::int64_t limit,
                                                          const Augmentation& augmentation = {});

/// Reads CIFAR-10's binary files from `folder`, data_batch_1.bin to data_batch_5.bin or
/// test_batch.bin: records of a label byte and 3072 bytes, the red, the green and the blue plane of
/// 32×32; any number of records per file. `limit` > 0 keeps the first so many. Bytes become
/// (x/255 − mean)/deviation per channel, with the training set's 0.4914, 0.4822, 0.4465 and 0.2470,
/// 0.2435, 0.2616. Throws ConfigError naming the file when it is missing, its length is no multiple
/// of 3073, or a label is over 9.
[[nodiscard]] std::unique_ptr<Dataset> load_cifar10(const std::string& folder, Split split,
                                                    std::int64_t limit,
                                                    const Augmentation& augmentation = {});

/// Parses idx bytes already in memory (the fuzzer's target). `what` names them in errors.
struct IdxData {
  std::vector<std::uint32_t> dims;
  std::vector<std::uint8_t> values;
};
[[nodiscard]] IdxData parse_idx(std::span<const std::uint8_t> bytes, std::string_view what);

/// Learnable made-up images: class prototypes plus noise, a function of (seed, index) alone. A set
/// of more than 64 MiB is not kept: its images are made whenever they are gathered. Throws
/// ConfigError for a size, extent or number of classes below 1, or over 65536 classes.
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(std::int64_t size, SampleShape shape,
                                                      int classes, std::uint64_t seed, Split split,
                                                      const Augmentation& augmentation = {});

/// "224x224x3": height, width, channels. Throws ConfigError naming data.shape.
[[nodiscard]] SampleShape parse_image_shape(std::string_view text);

}  // namespace paceline
