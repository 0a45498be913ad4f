// SPDX-License-Identifier: Apache-2.0
#include "common/core/layer.h"

#include <fmt/format.h>

namespace paceline {

std::vector<std::string> implementations_of(std::span<const std::unique_ptr<Layer>> layers) {
  std::vector<std::string> all;
  for (const auto& layer : layers) {
    for (const std::string& one : layer->implementations()) {
      all.push_back(fmt::format("{}: {}", layer->name(), one));
    }
  }
  return all;
}

}  // namespace paceline
