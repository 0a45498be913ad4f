// SPDX-License-Identifier: Apache-2.0
// Every cell of the table technique × backend: what is accepted trains, what is refused says why,
// and the table in docs/ is the program's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <ostream>

#include "experiments/backends.h"
#include "experiments/memory_backends.h"
#include "experiments/techniques.h"
#include "ring/nccl_backend.h"
#include "tests/support/thread_job.h"

namespace paceline {

void PrintTo(const BackendVariant& variant, std::ostream* out) {
  *out << variant.name;
}

namespace {

using testing::run_thread_job;
using testing::ThreadJobResult;

/// The key of a setting, and its short form in "compress = topk", "precision=fp16", "norm=batch".
bool names_a_key(const std::string& reason, const Technique& technique) {
  for (const std::string& setting : technique.settings) {
    const std::string key = setting.substr(0, setting.find('='));
    std::vector<std::string> names{key};
    for (const char* last : {".method", ".compute", ".kind"}) {
      if (key.ends_with(last)) names.push_back(key.substr(0, key.rfind('.')));
    }
    for (const std::string& name : names) {
      if (reason.find(name + " = ") != std::string::npos ||
          reason.find(name + "=") != std::string::npos) {
        return true;
      }
    }
  }
  return false;
}

bool sets(const Technique& technique, std::initializer_list<std::string_view> prefixes) {
  return std::ranges::any_of(technique.settings, [&](const std::string& setting) {
    return std::ranges::any_of(prefixes, [&](auto prefix) { return setting.starts_with(prefix); });
  });
}

/// `paceline memory` against what rank 0 counted.
void expect_planned(const Config& config, const Dataset& data, const ThreadJobResult& result) {
  const auto model =
      make_model(config.model, data.shape(), data.classes(), model_options(config, 0, nullptr));
  const PlannedUse plan =
      plan_backend(config, find_backend(config.sync), make_bucket_plan(*model, config),
                   make_optimizer_spec(config.optimizer));
  const PlannedServer server =
      plan.server_in_worker ? plan.server.value_or(PlannedServer{}) : PlannedServer{};
  EXPECT_EQ(result.memory.weights, plan.worker.weights + server.weights);
  EXPECT_EQ(result.memory.gradients, plan.worker.gradients);
  EXPECT_EQ(result.memory.optimizer, plan.worker.optimizer + server.optimizer);
  EXPECT_EQ(result.memory.residual, plan.worker.residual);
  EXPECT_GE(result.memory.staging, plan.worker.staging);
  EXPECT_LE(result.memory.staging, plan.worker.staging + server.versions);
}

class Compatibility : public ::testing::TestWithParam<BackendVariant> {
 protected:
  ThreadJobResult expect_trains(const Config& config) {
    const ThreadJobResult result =
        run_thread_job(config, find_backend(config.sync), *train_, *test_);
    EXPECT_GE(result.outcome.steps, 4);
    EXPECT_GE(result.outcome.samples, config.train.samples);
    EXPECT_TRUE(std::isfinite(result.outcome.final_loss));
    expect_planned(config, *train_, result);
    for (const auto& weights : result.weights) {
      EXPECT_EQ(weights, result.weights[0]) << "ranks hold different weights";
      for (const float w : weights) {
        if (!std::isfinite(w)) {
          ADD_FAILURE() << "a weight is " << w;
          break;
        }
      }
    }
    return result;
  }

  ThreadJobResult train_cell(const Technique& technique) {
    Config config = technique_config(technique, GetParam());
    config.comm.timeout = std::chrono::seconds(20);
    config.compress.threshold = 1.0;
    try {
      return expect_trains(config);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "accepted, but: " << error.what();
      return {};
    }
  }

  std::unique_ptr<Dataset> train_ = make_synthetic(48, {8, 8, 1}, 10, 3, Split::train);
  std::unique_ptr<Dataset> test_ = make_synthetic(12, {8, 8, 1}, 10, 3, Split::test);
};

TEST_P(Compatibility, WhatIsAcceptedTrainsAndWhatIsRefusedSaysWhy) {
  if (GetParam().name == "nccl") {  // one GPU per worker
    for (const Technique& technique : all_techniques()) {
      const std::string reason = refusal(technique, GetParam());
      EXPECT_TRUE(reason.empty() || names_a_key(reason, technique)) << reason;
    }
    GTEST_SKIP() << "skipped: no GPU";
  }
  const ThreadJobResult plain = train_cell({});
  for (const Technique& technique : all_techniques()) {
    SCOPED_TRACE(technique.name());
    if (const std::string reason = refusal(technique, GetParam()); !reason.empty()) {
      EXPECT_TRUE(names_a_key(reason, technique)) << reason;
      continue;
    }
    const ThreadJobResult result = train_cell(technique);
    // Accepted means that it is done: fewer bytes, other weights.
    if (sets(technique, {"compress.method=", "sync.wire="})) {
      EXPECT_LT(result.outcome.bytes_sent, 0.8 * plain.outcome.bytes_sent);
    }
    if (sets(technique, {"compress.method=", "sync.wire=", "precision.compute=", "optimizer.",
                         "lr.scale=", "norm.kind="})) {
      EXPECT_NE(result.weights, plain.weights);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Compatibility, ::testing::ValuesIn(all_variants()),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::erase_if(name, [](char c) { return c == '(' || c == ')'; });
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

TEST(CompatibilityTable, IsTheOneInDocs) {
  std::ifstream file(PACELINE_SOURCE_DIR "/docs/compatibility.md");
  const std::string stored((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(stored, compatibility_table(true))
      << "regenerate: paceline compat --markdown > docs/compatibility.md";
}

/// As the table's head says.
TEST(CompatibilityTable, NcclSumsWhatItCanOnGpus) {
  for (BackendVariant variant : all_variants()) {
    if (variant.name != "hierarchical" && variant.name != "sharded") continue;
    variant.settings.emplace_back("device=cuda");
    for (const Technique& technique : all_techniques()) {
      if (!refusal(technique, variant).empty()) continue;
      const bool nccl_can = refusal(technique, {"nccl", {"sync=nccl", "device=cuda"}}).empty();
      EXPECT_EQ(sums_by_nccl(technique_config(technique, variant)), nccl_can)
          << variant.name << ": " << technique.name();
    }
  }
}

TEST(CompatibilityTable, EveryTechniqueHasABackend) {
  for (const Technique& technique : all_techniques()) {
    bool any = false;
    for (const BackendVariant& variant : all_variants()) {
      any = any || refusal(technique, variant).empty();
    }
    EXPECT_TRUE(any) << technique.name();
  }
}

}  // namespace
}  // namespace paceline
