// SPDX-License-Identifier: Apache-2.0
// Which samples a rank sees at a step: a permutation per (seed, epoch), cut into global batches of
// world·batch samples and those into ranks. The global order does not depend on the world size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

struct SampleSlice {
  std::vector<std::uint32_t> indices;  ///< this rank's samples of the step, maybe none
  std::int64_t global_samples = 0;     ///< of all ranks in this step
};

/// The last global batch of an epoch, and of the run, may be short: its samples are split so that
/// ranks differ by at most one, and every rank takes part, some with none.
/// A pure function of its arguments; not thread-safe (it caches the epoch's permutation).
class Sampler {
 public:
  /// `total_samples`: of the whole run, all ranks together; may span epochs.
  /// Throws ConfigError if the data set holds fewer samples than ranks.
  Sampler(std::int64_t dataset_size, std::int64_t total_samples, std::int64_t batch, int world,
          int rank, std::uint64_t seed);

  /// Steps of the run, the same on every rank.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  [[nodiscard]] SampleSlice at(std::int64_t step);
  /// Samples of all ranks in steps [0, step).
  [[nodiscard]] std::int64_t samples_before(std::int64_t step) const noexcept;

 private:
  void load_epoch(std::int64_t epoch);

  std::int64_t dataset_size_;
  std::int64_t total_samples_;
  std::int64_t global_batch_;
  int world_;
  int rank_;
  std::uint64_t seed_;
  std::int64_t steps_per_epoch_;
  std::int64_t steps_;
  std::int64_t epoch_ = -1;
  std::vector<std::uint32_t> permutation_;
};

}  // namespace paceline
