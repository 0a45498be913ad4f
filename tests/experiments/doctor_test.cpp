// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/core/cuda_module.h"
#include "experiments/doctor.h"

namespace paceline {
namespace {

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool any_has(const std::vector<std::string>& words, std::string_view part) {
  for (const std::string& word : words) {
    if (has(word, part)) return true;
  }
  return false;
}

TEST(DoctorParse, CgroupQuota) {
  EXPECT_EQ(parse_cpu_max("200000 100000\n"), 2.0);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 0.5);
  EXPECT_FALSE(parse_cpu_max("max 100000"));
  for (const char* text : {"", "max", "200000", "x 100000", "1 0", "-1 100000", "1 ", " 1"}) {
    EXPECT_FALSE(parse_cpu_max(text)) << text;
  }
  EXPECT_EQ(parse_cfs_quota("150000", "100000"), 1.5);
  EXPECT_FALSE(parse_cfs_quota("-1", "100000"));
  EXPECT_FALSE(parse_cfs_quota("", ""));
}

TEST(DoctorParse, CgroupPath) {
  constexpr std::string_view kMixed = "4:memory:/a/b\n2:cpu,cpuacct:/c\n1:name=systemd:/\n0::/u\n";
  EXPECT_EQ(cgroup_path(kMixed, ""), "/u");
  EXPECT_EQ(cgroup_path(kMixed, "memory"), "/a/b");
  EXPECT_EQ(cgroup_path(kMixed, "cpu"), "/c");
  EXPECT_EQ(cgroup_path(kMixed, "cpuacct"), "/c");
  EXPECT_EQ(cgroup_path(kMixed, "pids"), "/");
  EXPECT_EQ(cgroup_path("", "cpu"), "/");
  EXPECT_EQ(cgroup_path("nonsense\n1:\n::", "cpu"), "/");
}

TEST(DoctorParse, ChosenWord) {
  EXPECT_EQ(bracketed_word("always [madvise] never"), "madvise");
  for (const char* text : {"", "a", "[", "]", "][", "a [b"}) EXPECT_EQ(bracketed_word(text), "");
}

TEST(DoctorParse, EffectiveCores) {
  Machine machine;
  EXPECT_EQ(effective_cores(machine), 1);
  machine.cores_usable = 8;
  EXPECT_EQ(effective_cores(machine), 8);
  machine.cpu_quota = 2.5;
  EXPECT_EQ(effective_cores(machine), 2);
  machine.cpu_quota = 0.5;
  EXPECT_EQ(effective_cores(machine), 1);
  machine.cpu_quota = 100.0;
  EXPECT_EQ(effective_cores(machine), 8);
}

TEST(DoctorVariables, NcclIsExplained) {
  const VariableNote off = explain_variable("NCCL_IB_DISABLE", "1");
  EXPECT_TRUE(has(off.meaning, "InfiniBand"));
  EXPECT_TRUE(has(off.meaning, "sockets"));
  EXPECT_TRUE(has(off.warning, "no cure"));
  EXPECT_EQ(explain_variable("NCCL_IB_DISABLE", "0").warning, "");
  EXPECT_TRUE(has(explain_variable("NCCL_NET_GDR_LEVEL", "PIX").warning, "widens or narrows"));
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO"}) {
    EXPECT_TRUE(has(explain_variable(name, "Ring").warning, "tuner")) << name;
  }
  EXPECT_EQ(explain_variable("NCCL_DEBUG", "INFO").warning, "");
  EXPECT_TRUE(has(explain_variable("NCCL_IB_DISABEL", "1").warning, "NCCL_IB_DISABLE"));
  EXPECT_TRUE(has(explain_variable("NCCL_XYZZY_FOO_BAR_BAZ", "1").warning, "ignores"));
}

TEST(DoctorVariables, OnlyThoseThatMatter) {
  const auto notes = explain_variables(
      {{"NCCL_TYPO", "1"}, {"OMP_NUM_THREADS", "8"}, {"OMP_FOO", "1"}, {"PACELINE_X", "1"}});
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0].name, "NCCL_TYPO");
  EXPECT_EQ(notes[1].name, "OMP_NUM_THREADS");
}

DoctorReport sample_report() {
  DoctorReport report;
  report.machine.cores_online = report.machine.cores_usable = 4;
  report.machine.memory_bytes = std::int64_t{8} << 30;
  report.machine.huge_pages = "madvise";
  report.machine.dev_shm_bytes = std::int64_t{4} << 30;
  report.machine.gpu = "no driver";
  report.build = "Release";
  report.ipv4 = {2e9, 1e-5, ""};
  report.ipv6 = report.ipv4;
  return report;
}

TEST(DoctorWords, FollowFromTheReport) {
  DoctorReport report = sample_report();
  auto words = plain_words(report);
  EXPECT_TRUE(has(words.at(0), "Up to 4 workers fit"));
  EXPECT_TRUE(any_has(words, "at least 50 ms")) << "100 MB at 2 GB/s";
  EXPECT_TRUE(any_has(words, "above 16 Gbit/s"));
  EXPECT_TRUE(any_has(words, "no usable GPU"));
  for (const char* absent : {"cgroup", "affinity", "huge", "/dev/shm", "IPv6", "mean little"}) {
    EXPECT_FALSE(any_has(words, absent)) << absent;
  }
  report.machine.cores_usable = 3;
  report.machine.cpu_quota = 1.5;
  report.machine.memory_limit_bytes = std::int64_t{1} << 30;
  report.machine.huge_pages = "never";
  report.machine.dev_shm_bytes = 64 << 20;
  report.ipv6.reset();
  report.build = "Debug";
  report.variables = explain_variables({{"NCCL_IB_DISABLE", "1"}});
  words = plain_words(report);
  EXPECT_TRUE(has(words.at(0), "One worker fits"));
  for (const char* present : {"1.5 cores' worth", "3 of 4 cores", "1.0 GiB of memory", "huge",
                              "/dev/shm", "IPv6", "Debug", "NCCL_IB_DISABLE=1"}) {
    EXPECT_TRUE(any_has(words, present)) << present;
  }
  report.ipv4.error = "bind: no";
  EXPECT_TRUE(any_has(plain_words(report), "bind: no"));
}

TEST(Doctor, SmokeRunInBothForms) {
  setenv("NCCL_IB_DISABLE", "1", 1);
  const DoctorReport report = examine();
  unsetenv("NCCL_IB_DISABLE");
  EXPECT_GE(report.machine.cores_usable, 1);
  EXPECT_GT(report.machine.memory_bytes, 0);
  EXPECT_EQ(report.ipv4.error, "");
  EXPECT_GT(report.ipv4.bytes_per_second, 1e6);
  EXPECT_GT(report.ipv4.half_round_trip_s, 0.0);
  EXPECT_LT(report.ipv4.half_round_trip_s, 1.0);
  EXPECT_GT(report.memcpy_bytes_per_second, 1e6);
  EXPECT_NE(report.machine.gpu.empty(), report.machine.gpus.empty());
  if (report.ipv6) {
    EXPECT_EQ(report.ipv6->error, "");
  }
  const std::string text = doctor_text(report);
  for (const char* part :
       {"cores", "/dev/shm", "oneDNN", "ZeroMQ", "Boost", "NCCL", "compiler", "NCCL_IB_DISABLE=1",
        "TCP 127.0.0.1", "CUDA module", "What limits runs here"}) {
    EXPECT_TRUE(has(text, part)) << part;
  }
  const auto json = nlohmann::json::parse(doctor_json(report));
  EXPECT_EQ(json["workers_that_fit"].get<int>(), effective_cores(report.machine));
  EXPECT_EQ(effective_cores(), effective_cores(report.machine));
  EXPECT_EQ(json["notes"][0]["name"].get<std::string>(), "NCCL_IB_DISABLE");
  EXPECT_FALSE(json["limits"].empty());
  EXPECT_EQ(json["cuda_module"].get<std::string>(), cuda_module().description());
}

}  // namespace
}  // namespace paceline
