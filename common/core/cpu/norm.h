// SPDX-License-Identifier: Apache-2.0
// The norms: y = act(γ·(x − mean)/√(variance + 1e-5) + β) with γ, β per channel, at first 1 and 0;
// ForwardPass::addend goes inside the activation.
// They differ in what mean and (biased) variance are taken over.
//   batch       a channel over this rank's samples and all positions (Ioffe & Szegedy 2015)
//   sync_batch  the same over the samples of all ranks, each weighted by its number of them
//   group       the channels of a group over all positions of one sample (Wu & He 2018)
//   layer       all channels and positions of one sample: PyTorch's LayerNorm for vectors (Ba,
//               Kiros & Hinton 2016), its GroupNorm with one group for images
// batch and sync_batch keep a running mean and variance for evaluation,
// new = (1 − momentum)·old + momentum·batch, the variance unbiased as in PyTorch; a batch of one
// element per channel leaves the running variance alone.
#pragma once

#include <memory>
#include <string>

#include "common/core/cpu/layers.h"

namespace paceline {

/// Parameters "gamma" [c] and "beta" [c]; buffers: running mean [c], running variance [c]. Throws
/// ConfigError when the groups do not divide the channels.
[[nodiscard]] std::unique_ptr<Layer> make_norm(std::string name, SampleShape input,
                                               const NormSetup& setup);

}  // namespace paceline
