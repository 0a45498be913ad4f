// SPDX-License-Identifier: Apache-2.0
// The plans of graphs that were asked for, each made once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/core/cuda/dnn_graph.h"
#include "common/core/cuda/math_abi.h"
#include "common/core/cuda/workspace.h"

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

/// A layer that is one graph forward and one backward. `Graphs` has, as static functions of a
/// Shape, forward_key and backward_key (what of it tells graphs apart), and forward and backward
/// of a library, a target and a Shape, which plan or throw Failure.
template <typename Shape, std::size_t Extents, typename Graphs>
class DnnLayer {
 public:
  /// Both are borrowed; the handle's stream is that of the workspaces given.
  DnnLayer(const DnnLibrary& library, cudnnHandle_t handle)
      : library_(library), handle_(handle), target_(handle) {}

  /// Empty where the layer and its gradient are computed.
  [[nodiscard]] const std::string& obstacle(const Shape& shape) {
    const std::string& of_forward =
        forward_.obstacle(Graphs::forward_key(shape), planner(Graphs::forward, shape));
    return !of_forward.empty()
               ? of_forward
               : backward_.obstacle(Graphs::backward_key(shape), planner(Graphs::backward, shape));
  }

  /// Throws Failure where it is not computed on `target`.
  [[nodiscard]] static WorkspacePlan planned(const DnnLibrary& library, const DnnTarget& target,
                                             const Shape& shape) {
    const DnnPlan forward = Graphs::forward(library, target, shape);
    const DnnPlan backward = Graphs::backward(library, target, shape);
    const DnnTraits both = forward.traits().with(backward.traits());
    return {forward.bytes(), backward.bytes(), both.notes, both.slices};
  }

 protected:
  void run_forward(const Shape& shape, const std::vector<DnnBinding>& bindings,
                   Workspace& workspace) {
    run(forward_.plan(Graphs::forward_key(shape), planner(Graphs::forward, shape)), bindings,
        workspace);
  }
  void run_backward(const Shape& shape, const std::vector<DnnBinding>& bindings,
                    Workspace& workspace) {
    run(backward_.plan(Graphs::backward_key(shape), planner(Graphs::backward, shape)), bindings,
        workspace);
  }

 private:
  template <typename Plan>
  [[nodiscard]] auto planner(Plan plan, const Shape& shape) const {
    return [this, plan, &shape] { return plan(library_, target_, shape); };
  }
  void run(const DnnPlan& plan, const std::vector<DnnBinding>& bindings,
           Workspace& workspace) const {
    plan.run(handle_, bindings, workspace.get(plan.bytes()));
  }

  const DnnLibrary& library_;
  cudnnHandle_t handle_;
  DnnTarget target_;
  DnnPlans<Extents> forward_;
  DnnPlans<Extents> backward_;
};

}  // namespace paceline::cuda
