// SPDX-License-Identifier: Apache-2.0
#include "common/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
                 int world, int rank, std::uint64_t seed, std::span<const double> shares)
    : dataset_size_(dataset_size),
      total_samples_(total_samples),
      batch_(batch),
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
  std::int64_t longest = divide_up(dataset_size_, world_);
  if (!shares.empty()) {
    cut_parts(shares);
    longest = 0;
    for (std::size_t r = 1; r < parts_.size(); ++r) {
      longest = std::max(longest, parts_[r] - parts_[r - 1]);
    }
  }
  steps_per_epoch_ = divide_up(longest, batch_);
  const std::int64_t rest = total_samples_ % dataset_size_;
  std::int64_t last = 0;  // the fewest steps of an epoch that take `rest`
  for (std::int64_t most = steps_per_epoch_; last < most;) {
    const std::int64_t middle = last + (most - last) / 2;
    if (in_epoch(middle) < rest) {
      last = middle + 1;
    } else {
      most = middle;
    }
  }
  steps_ = total_samples_ / dataset_size_ * steps_per_epoch_ + last;
}

void Sampler::cut_parts(std::span<const double> shares) {
  if (shares.size() != static_cast<std::size_t>(world_)) {
    throw ConfigError(fmt::format("data.shares: {} entries for {} ranks", shares.size(), world_));
  }
  const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
  double sum = 0.0;
  parts_.push_back(0);
  for (const double share : shares) {
    sum += share;
    const double end = std::round(static_cast<double>(dataset_size_) * (sum / total));
    parts_.push_back(std::min(static_cast<std::int64_t>(end), dataset_size_));
    if (parts_.back() <= parts_[parts_.size() - 2]) {
      throw ConfigError(fmt::format(
          "data.shares: rank {} would get none of the {} samples of the data set with its share "
          "of {} in {}",
          parts_.size() - 2, dataset_size_, share, total));
    }
  }
}

std::int64_t Sampler::in_epoch(std::int64_t steps) const noexcept {
  if (parts_.empty()) {
    return std::min(steps * batch_ * world_, dataset_size_);
  }
  std::int64_t samples = 0;
  for (std::size_t r = 1; r < parts_.size(); ++r) {
    samples += std::min(parts_[r] - parts_[r - 1], steps * batch_);
  }
  return samples;
}

std::int64_t Sampler::samples_before(std::int64_t step) const noexcept {
  const std::int64_t samples =
      step / steps_per_epoch_ * dataset_size_ + in_epoch(step % steps_per_epoch_);
  return parts_.empty() ? std::min(samples, total_samples_) : samples;
}

SampleSlice Sampler::at(std::int64_t step) {
  if (step < 0 || step >= steps_) {
    throw Error(fmt::format("sampler: step {} of {}", step, steps_));
  }
  load_epoch(step / steps_per_epoch_);
  SampleSlice slice;
  slice.epoch = epoch_;
  slice.global_samples = samples_before(step + 1) - samples_before(step);
  const std::int64_t done = step % steps_per_epoch_ * batch_;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  if (parts_.empty()) {
    const std::int64_t base = slice.global_samples / world_;
    const std::int64_t extra = slice.global_samples % world_;
    begin = done * world_ + rank_ * base + std::min<std::int64_t>(rank_, extra);
    count = base + (rank_ < extra ? 1 : 0);
  } else {
    const auto r = static_cast<std::size_t>(rank_);
    begin = std::min(parts_[r] + done, parts_[r + 1]);
    count = std::min(batch_, parts_[r + 1] - begin);
  }
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
