// SPDX-License-Identifier: Apache-2.0
// Gradients that travel compressed (common/compress/). What may be added on the way goes through
// the allreduce that the backend uses anyhow: 2(N-1)/N messages sent per rank. The rest is gathered
// from all ranks and decoded by each: N-1 messages sent per rank, so the saving shrinks as N grows;
// messages of different lengths are padded to the longest.
#pragma once

#include <memory>

#include "common/compress/codec.h"
#include "ring/gradient_reducer.h"

namespace paceline {

[[nodiscard]] std::unique_ptr<GradientReducer> make_codec_reducer(const ReducerPlace& place,
                                                                  std::unique_ptr<Codec> codec);

/// PowerSGD, whose two allreduces per bucket go through the backend's own.
[[nodiscard]] std::unique_ptr<GradientReducer> make_power_sgd_reducer(const ReducerPlace& place);

}  // namespace paceline
