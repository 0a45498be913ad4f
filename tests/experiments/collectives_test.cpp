// SPDX-License-Identifier: Apache-2.0
// cuda.collectives: who sums the gradients of sync=hierarchical and sync=sharded with device=cuda,
// as the configuration alone decides.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/config/config_file.h"
#include "experiments/backends.h"
#include "ring/nccl_backend.h"

namespace paceline {
namespace {

using Settings = std::vector<std::string>;

Config on_gpus(const std::string& sync, const Settings& settings = {}) {
  Config config;
  config.sync = sync;
  config.device = "cuda";
  config.world = 4;
  config.model = "mlp";
  config.topology.ranks_per_node = 2;
  config.data.name = "synthetic";
  apply_overrides(config, settings);
  return config;
}

/// Empty where the configuration is accepted.
std::string refusal_of(const Config& config) {
  try {
    validate_elsewhere(config);
    return {};
  } catch (const ConfigError& error) {
    return error.what();
  }
}

struct NeedsHost {
  const char* sync;
  const char* setting;
  const char* named;  ///< in notes and refusals
};

constexpr NeedsHost kNeedHost[] = {
    {"hierarchical", "compress.method=fp16", "compress = fp16"},
    {"hierarchical", "compress.method=randomk", "compress = randomk"},
    {"hierarchical", "compress.method=powersgd", "compress = powersgd"},
    {"hierarchical", "sync.exact=true", "sync.exact = true"},
    {"hierarchical", "link.inter=1gbit,50us", "link.inter or link.intra"},
    {"hierarchical", "link.intra=1gbit,50us", "link.inter or link.intra"},
    {"sharded", "sync.exact=true", "sync.exact = true"},
    {"sharded", "link.inter=1gbit,50us", "link.inter or link.intra"},
};

TEST(Collectives, AutoTakesTheHostForWhatNcclCannotDo) {
  for (const NeedsHost& c : kNeedHost) {
    SCOPED_TRACE(std::string(c.sync) + " " + c.setting);
    const Config config = on_gpus(c.sync, {c.setting});
    EXPECT_EQ(refusal_of(config), "");
    EXPECT_FALSE(sums_by_nccl(config));
    EXPECT_EQ(collectives_of(config), "host");
    EXPECT_FALSE(find_backend(c.sync).takes_gpu(config));
    EXPECT_EQ(collectives_note(config),
              std::string("sync=") + c.sync +
                  ": gradients are summed on the host, not by NCCL, because of " + c.named);
    EXPECT_TRUE(nccl_variables(on_gpus(c.sync, {c.setting, "nccl.algo=ring"})).empty());
  }
}

TEST(Collectives, NcclRefusesByNameAndOffersTheHost) {
  for (const NeedsHost& c : kNeedHost) {
    SCOPED_TRACE(std::string(c.sync) + " " + c.setting);
    const Config config = on_gpus(c.sync, {c.setting, "cuda.collectives=nccl"});
    const std::string refused = refusal_of(config);
    EXPECT_TRUE(refused.starts_with(std::string(c.named) +
                                    " and cuda.collectives = nccl with sync = " + c.sync + ": "))
        << refused;
    EXPECT_TRUE(refused.ends_with(", or cuda.collectives = host")) << refused;
    EXPECT_EQ(refusal_of(on_gpus(c.sync, {c.setting, "cuda.collectives=host"})), "");
  }
}

/// With the reason of the host's form, not with an offer of it.
TEST(Collectives, WhatNeitherCanDoIsNotOffered) {
  const Settings neither[] = {{"sharded", "compress.method=topk"},
                              {"hierarchical", "compress.method=topk"},
                              {"sharded", "optimizer.name=onebit_adam"},
                              {"hierarchical", "optimizer.name=onebit_adam"}};
  for (const Settings& c : neither) {
    SCOPED_TRACE(c[0] + " " + c[1]);
    for (const char* who : {"auto", "nccl", "host"}) {
      const Config config =
          on_gpus(c[0], {c[1], "optimizer.lr=0.001", std::string("cuda.collectives=") + who});
      const std::string refused = refusal_of(config);
      EXPECT_FALSE(refused.empty());
      EXPECT_EQ(refused.find("cuda.collectives"), std::string::npos) << refused;
    }
  }
}

TEST(Collectives, AutoTakesNcclForEverythingElse) {
  const Settings others[] = {{},
                             {"sync.wire=fp16"},
                             {"sync.wire=bf16"},
                             {"optimizer.name=adam", "optimizer.clip_norm=0.5"},
                             {"optimizer.name=lars"},
                             {"optimizer.name=lamb"},
                             {"norm.kind=sync_batch"},
                             {"precision.compute=fp16"},
                             {"train.accumulate=2"},
                             {"data.shares=2,1,1,1"},
                             {"sync.overlap=false"},
                             {"cuda.graph=true"}};
  for (const char* sync : {"hierarchical", "sharded"}) {
    for (const Settings& settings : others) {
      SCOPED_TRACE(std::string(sync) + " " + (settings.empty() ? "" : settings[0]));
      Config config = on_gpus(sync, settings);
      EXPECT_EQ(refusal_of(config), "");
      EXPECT_TRUE(sums_by_nccl(config));
      EXPECT_TRUE(find_backend(sync).takes_gpu(config));
      EXPECT_EQ(collectives_note(config),
                std::string("sync=") + sync + ": gradients are summed by NCCL between the GPUs");
      config.cuda.collectives = "nccl";
      EXPECT_EQ(refusal_of(config), "");
      EXPECT_TRUE(sums_by_nccl(config));
      config.cuda.collectives = "host";
      EXPECT_EQ(refusal_of(config), "");
      EXPECT_FALSE(sums_by_nccl(config));
      EXPECT_NE(collectives_note(config).find("because of cuda.collectives = host"),
                std::string::npos);
    }
  }
}

TEST(Collectives, AreChosenWhereThereIsAChoice) {
  for (const char* sync : {"hierarchical", "sharded", "ring"}) {
    const Config config = on_gpus(sync, {"device=cpu"});
    EXPECT_FALSE(sums_by_nccl(config));
    EXPECT_EQ(collectives_note(config), "");
    EXPECT_EQ(refusal_of(on_gpus(sync, {"device=cpu", "cuda.collectives=host"})),
              "cuda.collectives = host needs device = cuda");
  }
  for (const char* who : {"nccl", "host"}) {
    const std::string key = std::string("cuda.collectives=") + who;
    const auto refused = [&](const char* sync, const char* why) {
      return fmt::format(
          "cuda.collectives = {} with sync = {}: {}; allowed: auto, or sync = hierarchical or "
          "sharded",
          who, sync, why);
    };
    EXPECT_EQ(refusal_of(on_gpus("nccl", {key})), refused("nccl", "it always sums by NCCL"));
    for (const char* sync : {"ring", "ps", "hogwild", "local"}) {
      EXPECT_EQ(refusal_of(on_gpus(sync, {key})),
                refused(sync, "it never sums by NCCL (sync = nccl is the flat sum)"));
    }
  }
  EXPECT_TRUE(sums_by_nccl(on_gpus("nccl")));
  EXPECT_EQ(collectives_of(on_gpus("nccl")), "nccl");
  EXPECT_EQ(collectives_of(on_gpus("ring")), std::nullopt);
  EXPECT_FALSE(sums_by_nccl(on_gpus("ring")));
  EXPECT_EQ(collectives_note(on_gpus("nccl")), "");
}

TEST(Collectives, NodesAreThoseOfTheCpu) {
  for (const int world : {2, 3, 4, 5}) {
    for (int per_node = 0; per_node <= world; ++per_node) {
      Config config =
          on_gpus("hierarchical", {"topology.ranks_per_node=" + std::to_string(per_node),
                                   "world=" + std::to_string(world)});
      const std::string on_gpu = refusal_of(config);
      config.device = "cpu";
      EXPECT_EQ(on_gpu, refusal_of(config));
      EXPECT_EQ(on_gpu.empty(), world > 2 && per_node > 1 && per_node < world) << on_gpu;
    }
  }
}

TEST(Collectives, KeysOfNcclAreForAllThatSumByIt) {
  const Settings keys{"nccl.algo=ring", "nccl.proto=ll128", "nccl.min_ctas=2", "nccl.max_ctas=8"};
  const std::map<std::string, std::string> variables{{"NCCL_ALGO", "Ring"},
                                                     {"NCCL_PROTO", "LL128"},
                                                     {"NCCL_MIN_CTAS", "2"},
                                                     {"NCCL_MAX_CTAS", "8"}};
  for (const std::string sync : {"nccl", "hierarchical", "sharded"}) {
    EXPECT_EQ(refusal_of(on_gpus(sync, keys)), "");
    EXPECT_EQ(nccl_variables(on_gpus(sync, keys)), variables);
    EXPECT_EQ(refusal_of(on_gpus(sync, {"nccl.min_ctas=8", "nccl.max_ctas=4"})),
              "nccl.min_ctas = 8 with sync = " + sync + ": it is more than nccl.max_ctas = 4");
    EXPECT_EQ(refusal_of(on_gpus(sync, {"nccl.algo=tree"})),
              sync == "nccl" ? ""
                             : "nccl.algo = tree with sync = " + sync +
                                   ": reduce-scatter, all-gather and broadcast are not run by it; "
                                   "allowed: auto, ring");
  }
  Config staged = on_gpus("sharded", keys);
  staged.cuda.collectives = "host";
  EXPECT_TRUE(nccl_variables(staged).empty());
  EXPECT_TRUE(nccl_variables(on_gpus("ring", keys)).empty());
}

TEST(Collectives, ErrorsNameTheSyncAndWhatGoesWithoutNccl) {
  EXPECT_EQ(nccl_user(on_gpus("nccl")).instead, "sync = ring, which goes through the host");
  for (const std::string sync : {"hierarchical", "sharded"}) {
    const NcclUser user = nccl_user(on_gpus(sync));
    EXPECT_EQ(user.setting, "sync = " + sync);
    EXPECT_EQ(user.instead, "cuda.collectives = host");
  }
}

}  // namespace
}  // namespace paceline
