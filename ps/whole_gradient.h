// SPDX-License-Identifier: Apache-2.0
// Updates that depend on more than one key (clipping by the global norm, skipping a gradient that
// is not finite, LARS), in two phases:
//   1. a server that has all workers' pushes of a key sums them and answers with `norms`;
//   2. a worker that has the norms of all keys computes every key's factors, the same ones as all
//      other workers, and sends them in `apply`; the server updates once all have, and answers with
//      `weights`.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/sync/optimizer_spec.h"
#include "ps/partition.h"

namespace paceline {

/// What a key holds of one tensor (of everything, where tensors do not matter).
struct KeyPart {
  Range range;             ///< elements of the key
  std::size_t tensor = 0;  ///< index into the plan's tensors
  bool layerwise = false;  ///< a tensor of two or more dimensions: LARS scales its step
};

/// By key, in order. `tensors` covers the partition's arena, or is empty: one part per key.
[[nodiscard]] std::vector<std::vector<KeyPart>> cut_keys(const Partition& partition,
                                                         std::span<const TensorRange> tensors);

/// Sums of squares of one part.
struct PartNorms {
  double gradient = 0.0;  ///< of the workers' sum; not finite where an element of it is not
  double weights = 0.0;
};

[[nodiscard]] std::vector<std::byte> encode_norms(std::span<const PartNorms> norms);
/// Throws WireError unless the bytes are `parts` norms.
[[nodiscard]] std::vector<PartNorms> decode_norms(std::span<const std::byte> bytes,
                                                  std::size_t parts);

/// What `apply` says about a key: its payload, as floats.
struct KeyFactors {
  float gradient = 1.0F;      ///< of the mean gradient: clipping
  std::vector<float> ratios;  ///< of each part: LARS's trust ratio, else 1
};

[[nodiscard]] std::vector<std::byte> encode_factors(const KeyFactors& factors);
/// Throws WireError unless the bytes are `parts` ratios and a factor, all finite.
[[nodiscard]] KeyFactors decode_factors(std::span<const std::byte> bytes, std::size_t parts);

/// Gathers the norms of one step on a worker. Not thread-safe.
class StepNorms {
 public:
  StepNorms(const OptimizerSpec& spec, const Partition& partition,
            std::span<const TensorRange> tensors);

  /// Parts of a key's norms.
  [[nodiscard]] std::size_t parts(std::size_t key) const { return parts_.at(key).size(); }
  /// Takes a key's norms of a sum over `samples`; true when no key is missing. Throws WireError
  /// where a key comes twice or the samples differ.
  bool put(std::size_t key, std::vector<PartNorms> norms, std::uint64_t samples);

  struct Result {
    bool skip = false;                ///< the gradient is not finite and the update is left out
    std::vector<KeyFactors> factors;  ///< by key
  };
  /// Of the step whose norms are complete; the next one begins.
  [[nodiscard]] Result take();

 private:
  void set_ratios(double scale, Result& result) const;

  OptimizerSpec spec_;
  std::vector<std::vector<KeyPart>> parts_;
  std::vector<std::vector<PartNorms>> norms_;  ///< by key; empty: not yet there
  std::size_t present_ = 0;
  std::uint64_t samples_ = 0;
};

}  // namespace paceline
