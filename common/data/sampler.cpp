// SPDX-License-Identifier: Apache-2.0
#include "common/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/error.h"
#include "common/core/random.h"

namespace paceline {

namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Uniform in [0, bound): the high word of a 64×64-bit product (Lemire 2019); its bias is below
/// bound/2^64.
std::uint64_t below(std::uint64_t random, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(random) * bound) >> 64);
}

}  // namespace

Sampler::Sampler(std::int64_t dataset_size, std::int64_t total_samples, std::int64_t batch,
                 int world, int rank, std::uint64_t seed)
    : dataset_size_(dataset_size),
      total_samples_(total_samples),
      global_batch_(batch * world),
      world_(world),
      rank_(rank),
      seed_(seed),
      steps_per_epoch_(0),
      steps_(0) {
  if (world < 1 || rank < 0 || rank >= world || batch < 1 || total_samples < 0) {
    throw ConfigError(fmt::format("sampler: rank {} of {}, batch {}, {} samples in all", rank,
                                  world, batch, total_samples));
  }
  if (dataset_size < world) {
    throw ConfigError(fmt::format("data set: {} samples, at least one per rank ({}) is needed",
                                  dataset_size, world));
  }
  steps_per_epoch_ = divide_up(dataset_size_, global_batch_);
  steps_ = total_samples_ / dataset_size_ * steps_per_epoch_ +
           divide_up(total_samples_ % dataset_size_, global_batch_);
}

std::int64_t Sampler::samples_before(std::int64_t step) const noexcept {
  const std::int64_t in_epoch = std::min(step % steps_per_epoch_ * global_batch_, dataset_size_);
  return std::min(step / steps_per_epoch_ * dataset_size_ + in_epoch, total_samples_);
}

SampleSlice Sampler::at(std::int64_t step) {
  if (step < 0 || step >= steps_) {
    throw Error(fmt::format("sampler: step {} of {}", step, steps_));
  }
  load_epoch(step / steps_per_epoch_);
  SampleSlice slice;
  slice.global_samples = samples_before(step + 1) - samples_before(step);
  const std::int64_t base = slice.global_samples / world_;
  const std::int64_t extra = slice.global_samples % world_;
  const std::int64_t begin =
      step % steps_per_epoch_ * global_batch_ + rank_ * base + std::min<std::int64_t>(rank_, extra);
  const std::int64_t count = base + (rank_ < extra ? 1 : 0);
  const auto first = permutation_.begin() + begin;
  slice.indices.assign(first, first + count);
  return slice;
}

void Sampler::load_epoch(std::int64_t epoch) {
  if (epoch == epoch_) {
    return;
  }
  permutation_.resize(static_cast<std::size_t>(dataset_size_));
  std::iota(permutation_.begin(), permutation_.end(), 0U);
  const std::uint64_t key =
      stream_key(stream_key(seed_, "sampler"), static_cast<std::uint64_t>(epoch));
  for (std::size_t i = permutation_.size(); i > 1; --i) {  // Fisher–Yates
    std::swap(permutation_[i - 1], permutation_[below(splitmix64(key + i), i)]);
  }
  epoch_ = epoch;
}

}  // namespace paceline
