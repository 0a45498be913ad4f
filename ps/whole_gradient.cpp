// SPDX-License-Identifier: Apache-2.0
#include "ps/whole_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/core/arena_optimizer.h"
#include "ps/bytes.h"

namespace paceline {

std::vector<std::vector<KeyPart>> cut_keys(const Partition& partition,
                                           std::span<const TensorRange> tensors) {
  std::vector<std::vector<KeyPart>> result;
  std::size_t tensor = 0;
  for (const KeyRange& key : partition.keys()) {
    std::vector<KeyPart> parts;
    if (tensors.empty()) {
      parts.push_back({{0, key.elements()}, 0, false});
    }
    for (std::size_t at = key.arena.begin; !tensors.empty() && at < key.arena.end;) {
      while (tensors[tensor].range.end <= at) {
        ++tensor;
      }
      const std::size_t end = std::min(tensors[tensor].range.end, key.arena.end);
      parts.push_back(
          {{at - key.arena.begin, end - key.arena.begin}, tensor, tensors[tensor].dimensions > 1});
      at = end;
    }
    result.push_back(std::move(parts));
  }
  return result;
}

std::vector<std::byte> encode_norms(std::span<const PartNorms> norms) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  for (const PartNorms& part : norms) {
    out.put(part.gradient);
    out.put(part.weights);
  }
  return bytes;
}

std::vector<PartNorms> decode_norms(std::span<const std::byte> bytes, std::size_t parts) {
  if (bytes.size() != parts * 2 * sizeof(double)) {
    throw WireError(fmt::format("norms of {} bytes, want {} parts", bytes.size(), parts));
  }
  ByteReader in(bytes);
  std::vector<PartNorms> norms(parts);
  for (PartNorms& part : norms) {
    part.gradient = in.get_double();
    part.weights = in.get_double();
  }
  return norms;
}

std::vector<std::byte> encode_factors(const KeyFactors& factors) {
  std::vector<std::byte> bytes;
  ByteWriter out(bytes);
  out.put(factors.gradient);
  for (const float ratio : factors.ratios) {
    out.put(ratio);
  }
  return bytes;
}

KeyFactors decode_factors(std::span<const std::byte> bytes, std::size_t parts) {
  if (bytes.size() != (1 + parts) * sizeof(float)) {
    throw WireError(fmt::format("apply of {} bytes, want {} parts", bytes.size(), parts));
  }
  ByteReader in(bytes);
  KeyFactors factors;
  factors.gradient = in.get_float();
  bool finite = std::isfinite(factors.gradient);
  for (std::size_t i = 0; i < parts; ++i) {
    factors.ratios.push_back(in.get_float());
    finite = finite && std::isfinite(factors.ratios.back());
  }
  if (!finite) {
    throw WireError("apply: a factor is not finite");
  }
  return factors;
}

StepNorms::StepNorms(const OptimizerSpec& spec, const Partition& partition,
                     std::span<const TensorRange> tensors)
    : spec_(spec), parts_(cut_keys(partition, tensors)), norms_(parts_.size()) {}

bool StepNorms::put(std::size_t key, std::vector<PartNorms> norms, std::uint64_t samples) {
  if (!norms_.at(key).empty()) {
    throw WireError(fmt::format("norms of key {} came twice in a step", key));
  }
  if (present_ > 0 && samples != samples_) {
    throw WireError(
        fmt::format("norms of key {} are of {} samples, others of {}", key, samples, samples_));
  }
  samples_ = samples;
  norms_[key] = std::move(norms);
  return ++present_ == norms_.size();
}

StepNorms::Result StepNorms::take() {
  Result result;
  double square = 0.0;
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    result.factors.push_back({1.0F, std::vector<float>(parts_[k].size(), 1.0F)});
    for (const PartNorms& part : norms_[k]) {
      square += part.gradient;
    }
  }
  // As the owner of a whole arena has it (common/core/arena_optimizer.h).
  double scale = samples_ == 0 ? 0.0 : static_cast<double>(1.0F / static_cast<float>(samples_));
  const double norm = std::sqrt(square) * scale;
  if (std::isfinite(norm)) {
    const float clip = clip_factor(norm, spec_.clip_norm);
    scale *= static_cast<double>(clip);
    for (KeyFactors& factors : result.factors) {
      factors.gradient = clip;
    }
    if (spec_.kind == OptimizerKind::lars) {
      set_ratios(scale, result);
    }
  } else {
    // Otherwise NaN reaches the weights as it would from any other owner.
    result.skip = spec_.skip_nonfinite;
  }
  std::ranges::fill(norms_, std::vector<PartNorms>());
  present_ = 0;
  return result;
}

/// A tensor's ratio from the norms of all its parts, added in the order of the keys.
void StepNorms::set_ratios(double scale, Result& result) const {
  std::vector<PartNorms> tensors(parts_.empty() ? 0 : parts_.back().back().tensor + 1);
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    for (std::size_t p = 0; p < parts_[k].size(); ++p) {
      PartNorms& tensor = tensors[parts_[k][p].tensor];
      tensor.gradient += norms_[k][p].gradient;
      tensor.weights += norms_[k][p].weights;
    }
  }
  for (std::size_t k = 0; k < parts_.size(); ++k) {
    for (std::size_t p = 0; p < parts_[k].size(); ++p) {
      const PartNorms& tensor = tensors[parts_[k][p].tensor];
      if (parts_[k][p].layerwise) {
        result.factors[k].ratios[p] =
            lars_ratio(spec_, std::sqrt(tensor.weights), std::sqrt(tensor.gradient) * scale);
      }
    }
  }
}

}  // namespace paceline
