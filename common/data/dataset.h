// SPDX-License-Identifier: Apache-2.0
// Labelled images in memory.
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
  /// Writes samples `indices` to `inputs` ([n, h, w, c], normalised) and `labels` ([n]).
  virtual void gather(std::span<const std::uint32_t> indices, std::span<float> inputs,
                      std::span<std::int32_t> labels) const = 0;
};

enum class Split : std::uint8_t { train, test };

/// Reads an idx pair (LeCun's format, gzipped or plain, named as Fashion-MNIST's). `limit` > 0
/// keeps the first so many. Pixels become (x/255 − mean)/std with Fashion-MNIST's 0.2860, 0.3530.
/// Throws ConfigError naming the file when it is missing, has a wrong magic, is truncated or holds
/// a label over 9; sizes in the header are checked against the data before memory is taken.
[[nodiscard]] std::unique_ptr<Dataset> load_fashion_mnist(const std::string& folder, Split split,
                                                          std::int64_t limit);

/// Parses idx bytes already in memory (the fuzzer's target). `what` names them in errors.
struct IdxData {
  std::vector<std::uint32_t> dims;
  std::vector<std::uint8_t> values;
};
[[nodiscard]] IdxData parse_idx(std::span<const std::uint8_t> bytes, std::string_view what);

/// Learnable made-up images: class prototypes plus noise, a function of (seed, index) alone.
[[nodiscard]] std::unique_ptr<Dataset> make_synthetic(std::int64_t size, SampleShape shape,
                                                      int classes, std::uint64_t seed, Split split);

}  // namespace paceline
