// SPDX-License-Identifier: Apache-2.0
// What a server keeps of each of its keys besides its weights; private to ServerState.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ps/server_state.h"

namespace paceline {

/// What a key knows about a worker.
struct ServerState::WorkerOfKey {
  std::uint64_t clock = 0;   ///< pushes taken
  std::uint64_t base = 0;    ///< clock at the last common drain: gaps are counted from there
  std::uint64_t pulled = 0;  ///< version last sent
  bool waiting = false;      ///< a push is to be answered
  bool contributed = false;  ///< `gradient` takes part in the next common update
  Header push;               ///< of the push that waits
  Payload gradient;
  std::uint64_t staleness = 0;
  std::uint16_t flags = 0;
  std::int64_t arrived_ns = 0;
  std::int64_t held_ns = 0;    ///< until all had pushed, where an `apply` must follow
  bool agreed = false;         ///< its `apply` of this round is here
  std::optional<Header> pull;  ///< a pull that waits for the first weights
  Payload backup;  ///< what its next gradient is computed on, as answers carry weights; empty
                   ///< without delay compensation
  [[nodiscard]] std::uint64_t round() const noexcept { return clock - base; }
};

struct ServerState::Key {
  Key(std::size_t key_index, const KeyRange& key_range, std::vector<KeyPart> key_parts, int world)
      : index(key_index),
        range(key_range),
        parts(std::move(key_parts)),
        workers(static_cast<std::size_t>(world)) {}
  std::size_t index;
  KeyRange range;
  std::vector<KeyPart> parts;
  std::uint64_t version = 0;
  bool ready = false;
  std::vector<WorkerOfKey> workers;
  Payload short_weights;           ///< those of `version` in 16 bits, once they were asked for
  std::vector<float> mean_square;  ///< of adaptive delay compensation
  // Between `norms` and the last `apply` of a round (ps/whole_gradient.h).
  bool summed = false;
  std::vector<float> sum;  ///< of the round's gradients
  std::uint64_t samples = 0;
  float lr = 0.0F;
  std::optional<Header> factors;  ///< the first worker's `apply`
  Payload factor_values;
};

}  // namespace paceline
