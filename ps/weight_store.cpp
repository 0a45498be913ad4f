// SPDX-License-Identifier: Apache-2.0
#include "ps/weight_store.h"

namespace paceline {

WeightStore::WeightStore(std::size_t elements) : elements_(elements) {
  static_cast<void>(add_block());
}

WeightStore::~WeightStore() = default;

std::span<const float> WeightStore::current() const noexcept {
  return blocks_[current_]->memory.as<float>().first(elements_);
}

std::span<float> WeightStore::next() {
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::size_t candidate = (current_ + i) % blocks_.size();
    // Acquire: what the last reader did with the block comes before what is written to it.
    if (blocks_[candidate]->readers.load(std::memory_order_acquire) == 0) {
      next_ = candidate;
      return blocks_[candidate]->memory.as<float>().first(elements_);
    }
  }
  next_ = blocks_.size();
  return add_block();
}

std::span<float> WeightStore::add_block() {
  blocks_.push_back(std::make_shared<Block>());
  blocks_.back()->memory = Buffer(elements_ * sizeof(float));
  return blocks_.back()->memory.as<float>().first(elements_);
}

Payload WeightStore::share() const {
  const std::shared_ptr<Block>& block = blocks_[current_];
  block->readers.fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<const void> reader(block.get(), [block](const void* /*same*/) {
    block->readers.fetch_sub(1, std::memory_order_release);
  });
  return {std::as_bytes(block->memory.as<float>().first(elements_)), std::move(reader)};
}

}  // namespace paceline
