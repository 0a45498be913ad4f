// SPDX-License-Identifier: Apache-2.0
// One key's weights as immutable, reference-counted versions, so that a reply can be on its way
// without a copy while the next update is computed.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/buffer.h"
#include "ps/payload.h"

namespace paceline {

/// Single writer (the server's thread). Payloads may be released on any thread.
class WeightStore {
 public:
  explicit WeightStore(std::size_t elements);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;
  WeightStore(WeightStore&&) noexcept = default;
  WeightStore& operator=(WeightStore&&) noexcept = default;

  /// The newest published weights.
  [[nodiscard]] std::span<const float> current() const noexcept;
  /// Memory for the next version, which nobody else reads: that of current() itself where no
  /// payload of it is left (half the memory and cache for the usual case), else other memory of
  /// unspecified contents.
  [[nodiscard]] std::span<float> next();
  /// Makes what next() returned the current version.
  void publish() noexcept { current_ = next_; }
  /// The current version as a message's payload; it stays unchanged while the payload lives, even
  /// after this store is gone.
  [[nodiscard]] Payload share() const;
  /// Of all versions that there is memory for; it is not given back.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return blocks_.size() * elements_ * sizeof(float);
  }

 private:
  struct Block {
    Buffer memory;
    std::atomic<int> readers{0};
  };

  [[nodiscard]] std::span<float> add_block();

  std::size_t elements_;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::size_t current_ = 0;
  std::size_t next_ = 0;
};

}  // namespace paceline
