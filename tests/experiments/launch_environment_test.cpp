// SPDX-License-Identifier: Apache-2.0
#include "experiments/launch_environment.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace paceline {
namespace {

std::string refusal(const EnvironmentMap& environment, const LaunchFlags& flags = {}) {
  try {
    static_cast<void>(detect_launch(environment, flags));
    return "accepted";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

const EnvironmentMap kTorchrun{{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"MASTER_ADDR", "node-a"},
                               {"MASTER_PORT", "29500"}};
const EnvironmentMap kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const EnvironmentMap kSlurm{{"SLURM_PROCID", "5"},  {"SLURM_NTASKS", "8"},
                            {"SLURM_LOCALID", "1"}, {"SLURM_STEP_ID", "0"},
                            {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_NODELIST", "gpu[03-05,9],login"}};

EnvironmentMap with(EnvironmentMap base, const EnvironmentMap& more) {
  for (const auto& [name, value] : more) {
    base[name] = value;
  }
  return base;
}

TEST(LaunchEnvironment, NothingOnAPlainMachine) {
  const LaunchEnvironment launch = detect_launch({{"HOME", "/root"}, {"PATH", "/bin"}});
  EXPECT_EQ(launch.source, LaunchSource::none);
  EXPECT_EQ(launch.world, 1);
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment launch = detect_launch(kTorchrun);
  EXPECT_EQ(launch.source, LaunchSource::torchrun);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.hub_host, "node-a");
  EXPECT_EQ(launch.hub_port, 29500);
}

TEST(LaunchEnvironment, TorchrunsOwnStoreKeepsItsPort) {
  EXPECT_EQ(detect_launch(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).hub_port,
            29501);
  EXPECT_EQ(detect_launch(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                           {"MASTER_PORT", "65535"}}))
                .hub_port,
            65534);
}

TEST(LaunchEnvironment, OpenMpi) {
  const LaunchEnvironment launch = detect_launch(kOpenMpi);
  EXPECT_EQ(launch.source, LaunchSource::open_mpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.hub_host, "127.0.0.1");
  EXPECT_EQ(launch.hub_port, kDefaultHubPort);
}

TEST(LaunchEnvironment, SeveralNodesNeedAnAddress) {
  const EnvironmentMap wide =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  EXPECT_EQ(refusal(wide),
            "Open MPI started ranks on several nodes, but MASTER_ADDR is not set: it must be the "
            "address of rank 0's node (or PACELINE_HUB=HOST:PORT)");
  EXPECT_EQ(detect_launch(with(wide, {{"MASTER_ADDR", "node-b"}})).hub_host, "node-b");
  EXPECT_EQ(detect_launch(with(wide, {{"PACELINE_HUB", "[::1]:77"}})).hub_host, "::1");
}

TEST(LaunchEnvironment, SlurmTaskButNotAnAllocationsShell) {
  const LaunchEnvironment launch = detect_launch(kSlurm);
  EXPECT_EQ(launch.source, LaunchSource::slurm);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.hub_host, "gpu03");
  EnvironmentMap shell = kSlurm;
  shell.erase("SLURM_STEP_ID");
  EXPECT_EQ(detect_launch(shell).source, LaunchSource::none);
  EXPECT_EQ(detect_launch(with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).source,
            LaunchSource::none);
}

TEST(LaunchEnvironment, FirstSlurmHost) {
  EXPECT_EQ(first_slurm_host("node1"), "node1");
  EXPECT_EQ(first_slurm_host("a,b[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("gpu[03-05,9]"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[7,9]"), "gpu7");
  EXPECT_EQ(first_slurm_host("rack[2-3]-ib,x"), "rack2-ib");
  EXPECT_THROW(static_cast<void>(first_slurm_host("gpu[03-05")), ConfigError);
  EXPECT_THROW(static_cast<void>(first_slurm_host("")), ConfigError);
  EXPECT_THROW(static_cast<void>(first_slurm_host("a[1]b[2]")), ConfigError);
}

TEST(LaunchEnvironment, Pmi) {
  const LaunchEnvironment launch =
      detect_launch({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}});
  EXPECT_EQ(launch.source, LaunchSource::pmi);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world, 2);
}

TEST(LaunchEnvironment, OwnVariables) {
  const LaunchEnvironment launch = detect_launch(
      {{"PACELINE_RANK", "1"}, {"PACELINE_WORLD", "2"}, {"PACELINE_HUB", "10.0.0.7:4000"}});
  EXPECT_EQ(launch.source, LaunchSource::paceline);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.hub_host, "10.0.0.7");
  EXPECT_EQ(launch.hub_port, 4000);
}

TEST(LaunchEnvironment, TheOrderOfPrecedence) {
  LaunchFlags flags;
  flags.rank = "0";
  flags.world = "9";
  flags.hub = "localhost:5";
  EnvironmentMap all = with(with(kTorchrun, kOpenMpi), kSlurm);
  all = with(all, {{"PMI_RANK", "0"}, {"PMI_SIZE", "6"}});
  all = with(all, {{"PACELINE_RANK", "0"}, {"PACELINE_WORLD", "7"}});
  EXPECT_EQ(detect_launch(all, flags).source, LaunchSource::flags);
  EXPECT_EQ(detect_launch(all, flags).world, 9);
  EXPECT_EQ(detect_launch(all, flags).hub_port, 5);
  const auto without = [&all](const char* name) {
    all.erase(name);
    return detect_launch(all).source;
  };
  EXPECT_EQ(detect_launch(all).source, LaunchSource::paceline);
  all.erase("PACELINE_RANK");
  EXPECT_EQ(without("PACELINE_WORLD"), LaunchSource::torchrun);
  EXPECT_EQ(without("RANK"), LaunchSource::open_mpi);
  EXPECT_EQ(without("OMPI_COMM_WORLD_RANK"), LaunchSource::slurm);
  EXPECT_EQ(without("SLURM_PROCID"), LaunchSource::pmi);
  EXPECT_EQ(without("PMI_SIZE"), LaunchSource::none);
}

TEST(LaunchEnvironment, WorldAloneIsNotALaunch) {
  LaunchFlags flags;
  flags.world = "4";
  EXPECT_EQ(detect_launch({}, flags).source, LaunchSource::none);
}

TEST(LaunchEnvironment, ContradictionsAreNamed) {
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "4"}})),
            "RANK=4 is not allowed: it must be an integer from 0 to 3 (WORLD_SIZE=4)");
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "-1"}})),
            "RANK=-1 is not allowed: it must be an integer from 0 to 3 (WORLD_SIZE=4)");
  EXPECT_EQ(refusal(with(kTorchrun, {{"RANK", "two"}})),
            "RANK=two is not allowed: it must be an integer from 0 to 3 (WORLD_SIZE=4)");
  EXPECT_EQ(refusal(with(kTorchrun, {{"WORLD_SIZE", "0"}})),
            "WORLD_SIZE=0 is not allowed: it must be an integer from 1 to 1024");
  EXPECT_EQ(refusal(with(kTorchrun, {{"LOCAL_RANK", "9"}})),
            "LOCAL_RANK=9 is not allowed: it must be an integer from 0 to 3 (WORLD_SIZE=4)");
  EXPECT_EQ(refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}})),
            "MASTER_PORT=70000 is not allowed: it must be an integer from 1 to 65535");
  EXPECT_EQ(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}})),
            "OMPI_COMM_WORLD_RANK=2 is not allowed: it must be an integer from 0 to 1 "
            "(OMPI_COMM_WORLD_SIZE=2)");
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_PROCID", "8"}})),
            "SLURM_PROCID=8 is not allowed: it must be an integer from 0 to 7 (SLURM_NTASKS=8)");
  EXPECT_EQ(refusal({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}}),
            "PMI_RANK=x is not allowed: it must be an integer from 0 to 1 (PMI_SIZE=2)");
  EXPECT_EQ(refusal({{"PACELINE_RANK", "1"}}),
            "PACELINE_RANK is set (1) but PACELINE_WORLD is not: both are needed");
  EXPECT_EQ(refusal({{"PACELINE_WORLD", "2"}}),
            "PACELINE_WORLD is set (2) but PACELINE_RANK is not: both are needed");
}

TEST(LaunchEnvironment, FlagsAreChecked) {
  LaunchFlags flags;
  flags.rank = "2";
  EXPECT_EQ(refusal({}, flags), "--rank is set (2) but --world is not: both are needed");
  flags.world = "2";
  EXPECT_EQ(refusal({}, flags),
            "--rank=2 is not allowed: it must be an integer from 0 to 1 (--world=2)");
  flags.rank = "1";
  for (const std::string hub : {"", ":77", "host:", "host:x", "host:0", "[::1", "[::1]77"}) {
    flags.hub = hub;
    EXPECT_EQ(refusal({}, flags).rfind("--hub=", 0), 0U) << hub << ": " << refusal({}, flags);
  }
  flags.hub = "::1";
  EXPECT_EQ(detect_launch({}, flags).hub_host, "::1");
  EXPECT_EQ(detect_launch({}, flags).hub_port, kDefaultHubPort);
  flags.rank.reset();
  EXPECT_EQ(refusal({}, flags), "--hub is set (::1) but --rank is not: both are needed");
}

TEST(LaunchEnvironment, TheNonceTellsJobsApartNotRanks) {
  const std::uint64_t nonce = detect_launch(kSlurm).nonce;
  EXPECT_NE(nonce, 0U);
  EXPECT_EQ(detect_launch(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).nonce,
            nonce);
  EXPECT_NE(detect_launch(with(kSlurm, {{"SLURM_JOB_ID", "78"}})).nonce, nonce);
}

TEST(LaunchEnvironment, EmptyVariablesCountAsUnset) {
  EXPECT_EQ(detect_launch({{"RANK", ""}, {"WORLD_SIZE", "4"}}).source, LaunchSource::none);
}

TEST(LaunchEnvironment, ReadsThisProcess) {
  const EnvironmentMap environment = current_environment();
  EXPECT_TRUE(environment.contains("PATH"));
}

}  // namespace
}  // namespace paceline
