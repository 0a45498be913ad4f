// SPDX-License-Identifier: Apache-2.0
// The plans of graphs that were asked for, each made once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/core/cuda/dnn_graph.h"

namespace paceline::cuda {

/// `Extents`: numbers that tell one graph from another.
template <std::size_t Extents>
class DnnPlans {
 public:
  using Key = std::array<std::int64_t, Extents>;

  /// Empty where the graph has a plan, else why not. make() plans it, or throws Failure.
  template <typename Make>
  [[nodiscard]] const std::string& obstacle(const Key& key, const Make& make) {
    return known(key, make).obstacle;
  }
  /// Throws Failure where there is an obstacle.
  template <typename Make>
  [[nodiscard]] const DnnPlan& plan(const Key& key, const Make& make) {
    const Known& found = known(key, make);
    if (!found.plan) {
      throw not_supported(found.obstacle);
    }
    return *found.plan;
  }

 private:
  struct Known {
    std::optional<DnnPlan> plan;  // none where there is an obstacle
    std::string obstacle;
  };
  template <typename Make>
  const Known& known(const Key& key, const Make& make) {
    const auto [at, added] = known_.try_emplace(key);
    if (added) {
      try {
        at->second.plan.emplace(make());
      } catch (const Failure& failure) {
        at->second.obstacle = failure.text;
      }
    }
    return at->second;
  }

  std::map<Key, Known> known_;
};

}  // namespace paceline::cuda
