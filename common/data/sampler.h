// SPDX-License-Identifier: Apache-2.0
// Which samples a rank sees at a step: a permutation per (seed, epoch), cut into global batches of
// world·batch samples and those into ranks. The global order does not depend on the world size.
// With shares each rank has a part of the permutation of its own, and parts may differ in size.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

struct SampleSlice {
  std::vector<std::uint32_t> indices;  ///< this rank's samples of the step, maybe none
  std::int64_t global_samples = 0;     ///< of all ranks in this step
  std::int64_t epoch = 0;              ///< the pass over the data set that the step belongs to
};

/// The last global batch of an epoch, and of the run, may be short: its samples are split so that
/// ranks differ by at most one, and every rank takes part, some with none.
/// With shares rank r owns the contiguous r-th part of each epoch's permutation, in proportion to
/// shares[r], and takes up to `batch` of it per step; a rank that ran out takes part with none
/// until the largest part is finished (as torch's Join does). The run's last step is not cut short
/// then. A pure function of its arguments; not thread-safe (it caches the epoch's permutation).
class Sampler {
 public:
  /// `total_samples`: of the whole run, all ranks together; may span epochs.
  /// `shares`: empty, or `world` numbers above 0. Throws ConfigError if the data set holds fewer
  /// samples than ranks, or a rank's part would be empty.
  Sampler(std::int64_t dataset_size, std::int64_t total_samples, std::int64_t batch, int world,
          int rank, std::uint64_t seed, std::span<const double> shares = {});

  /// Steps of the run, the same on every rank.
  [[nodiscard]] std::int64_t steps() const noexcept { return steps_; }
  [[nodiscard]] SampleSlice at(std::int64_t step);
  /// Samples of all ranks in steps [0, step).
  [[nodiscard]] std::int64_t samples_before(std::int64_t step) const noexcept;

 private:
  void cut_parts(std::span<const double> shares);
  /// Samples that all ranks take from an epoch in its first `steps` steps.
  [[nodiscard]] std::int64_t in_epoch(std::int64_t steps) const noexcept;
  void load_epoch(std::int64_t epoch);

  std::int64_t dataset_size_;
  std::int64_t total_samples_;
  std::int64_t batch_;
  int world_;
  int rank_;
  std::uint64_t seed_;
  std::int64_t steps_per_epoch_;
  std::int64_t steps_;
  std::vector<std::int64_t> parts_;  // world + 1 bounds in the permutation; empty without shares
  std::int64_t epoch_ = -1;
  std::vector<std::uint32_t> permutation_;
};

}  // namespace paceline
