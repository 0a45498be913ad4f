// SPDX-License-Identifier: Apache-2.0
// Training with CUDA graphs and without, on whatever module the Gpu is made of.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/core/gpu/gpu_model.h"
#include "tests/core/inputs.h"

namespace paceline::test {

struct GraphStep {
  std::int64_t samples;
  float loss_scale = 1.0F;
  bool evaluates = false;  ///< afterwards
};

struct GraphCase {
  const char* name;
  SampleShape input;
  int classes = 10;
  ModelOptions options{};
  std::vector<GraphStep> steps{};
  bool hooked = false;
};

struct GraphRun {
  std::vector<double> losses{};
  std::vector<float> weights{};
  std::vector<float> statistics{};
  std::vector<std::int64_t> launches{};  ///< of each step
  bool operator==(const GraphRun&) const = default;
};

/// As buckets of two layers do: the stream waits before a forward and is marked after a backward.
class MarkingHooks final : public LayerHooks {
 public:
  explicit MarkingHooks(Gpu& gpu) : stream_(gpu.stream()), event_(gpu) {}
  void before_forward(int layer) override {
    if (queues_before_forward(layer)) {
      stream_.wait(event_);
    }
  }
  void after_forward(int /*layer*/) override {}
  void after_backward(int layer) override {
    if (queues_after_backward(layer)) {
      stream_.record(event_);
    }
  }
  [[nodiscard]] bool queues_before_forward(int layer) const override { return layer == 0; }
  [[nodiscard]] bool queues_after_backward(int layer) const override { return layer % 2 == 0; }

 private:
  GpuStream& stream_;
  GpuEvent event_;
};

/// SGD on the device. `count` tells how often streams were given work so far.
inline GraphRun run_steps(
    Gpu& gpu, const GraphCase& job,
    const std::function<std::int64_t()>& count = [] { return std::int64_t{0}; }) {
  constexpr float kRate = 0.02F;
  const auto model = make_gpu_model(job.name, job.input, job.classes, job.options, gpu);
  GraphRun run;
  run.weights.resize(model->parameter_elements());
  model->initialise(run.weights, 3);
  const auto weights = gpu.allocate(run.weights.size(), "weights");
  const auto gradients = gpu.allocate(run.weights.size(), "gradients");
  gpu.upload(run.weights, weights->values());
  MarkingHooks hooks(gpu);
  std::uint64_t key = 0;
  for (const GraphStep& step : job.steps) {
    auto x = values(++key, static_cast<std::size_t>(step.samples * job.input.elements()));
    const auto y =
        labels(key, static_cast<std::size_t>(step.samples * model->positions()), job.classes);
    if (std::string(job.name) == "gpt") {
      const auto tokens = labels(key + 100, x.size(), job.classes);
      x.assign(tokens.begin(), tokens.end());
    }
    const Batch batch{x, y, step.samples, step.loss_scale};
    model->begin_step(static_cast<std::int64_t>(key));
    const std::int64_t before = count();
    static_cast<void>(model->train_batch(batch, weights->values(), gradients->values(),
                                         job.hooked ? &hooks : nullptr));
    run.launches.push_back(count() - before);
    run.losses.push_back(model->take_result().loss_sum);
    gpu.each(static_cast<std::int64_t>(run.weights.size()),
             kernels::AddScaled{weights->values().data(), gradients->values().data(),
                                weights->values().data(), -kRate / step.loss_scale},
             "a step");
    if (step.evaluates) {
      run.losses.push_back(model->evaluate_batch(batch, weights->values()).loss_sum);
    }
  }
  gpu.download(weights->values(), run.weights);
  const auto statistics = model->buffers();
  run.statistics.assign(statistics.begin(), statistics.end());
  return run;
}

/// Both kinds of batch slots, a smaller batch, a larger one, evaluations and loss scales between.
inline std::vector<GraphStep> many_steps(std::int64_t samples) {
  const GraphStep usual{samples, 8.0F};
  const GraphStep smaller{samples - 1, 8.0F};
  return {usual,   usual, usual, usual, usual,   {samples, 8.0F, true}, usual,
          smaller, usual, usual, usual, smaller, {samples + 1, 8.0F},   usual,
          usual,   usual, usual, usual, usual,   {samples, 4.0F},       usual};
}

/// Models of all kinds, with hooks that cut their steps and without.
inline std::vector<GraphCase> graph_cases() {
  ModelOptions plain;
  ModelOptions dropping;
  dropping.drop_path = 0.3;
  ModelOptions half;
  half.precision = Precision::fp16;
  ModelOptions gpt;
  gpt.gpt = {2, 2, 16};
  ModelOptions fused = gpt;
  fused.precision = Precision::bf16;
  return {{"mlp", {2, 2, 1}, 10, plain, many_steps(4)},
          {"cnn", {8, 8, 1}, 10, plain, many_steps(3), true},
          {"cnn", {8, 8, 1}, 10, half, many_steps(3)},
          {"resmlp", {1, 1, 6}, 10, dropping, many_steps(3), true},
          {"resnet20", {8, 8, 3}, 10, plain, many_steps(2), true},
          {"gpt", {8, 1, 1}, 50, gpt, many_steps(2)},
          {"gpt", {8, 1, 1}, 50, fused, many_steps(2), true}};
}

/// Norms and pools of which cuDNN has kernels.
inline GraphCase dnn_graph_case() {
  ModelOptions normed;
  normed.precision = Precision::bf16;
  normed.norm.kind = "batch";
  const GraphStep usual{3, 8.0F};
  return {"cnn", {8, 8, 1}, 10, normed, {usual, usual, usual, usual, {3, 8.0F, true}, usual}, true};
}

/// The bits of every case with graphs are those without.
inline void expect_same_bits_with_graphs(const CudaModule& module,
                                         const std::vector<GraphCase>& cases = graph_cases(),
                                         const GpuOptions& options = {}) {
  for (const GraphCase& job : cases) {
    SCOPED_TRACE(std::string(job.name) + (job.hooked ? ", hooked" : ""));
    Gpu plain(module, options);
    GpuOptions graphs = options;
    graphs.graphs = true;
    Gpu with_graphs(module, graphs);
    const GraphRun expected = run_steps(plain, job);
    EXPECT_GT(expected.losses.size(), job.steps.size());
    EXPECT_TRUE(run_steps(with_graphs, job) == expected);
  }
}

}  // namespace paceline::test
