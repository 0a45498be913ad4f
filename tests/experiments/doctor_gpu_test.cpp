// SPDX-License-Identifier: Apache-2.0
// What `paceline doctor` reads of network cards from a made-up /sys, and of GPUs from a double of
// NVML: four GPUs, of which 0 and 1 are joined by two NVLinks, 2 and 3 through a switch.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "experiments/doctor.h"
#include "tests/support/temporary_folder.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

class MadeUpRoot : public ::testing::Test {
 protected:
  void write(const fs::path& file, std::string_view text) {
    fs::create_directories((root() / file).parent_path());
    std::ofstream(root() / file) << text << '\n';
  }
  void driver(const fs::path& device, std::string_view name) {
    fs::create_directories(root() / device);
    fs::create_directory_symlink(fs::path("../drivers") / name, root() / device / "driver");
  }
  [[nodiscard]] const fs::path& root() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST_F(MadeUpRoot, NetworkCards) {
  write("sys/class/net/lo/operstate", "unknown");
  write("sys/class/net/eth1/operstate", "up");
  write("sys/class/net/eth1/speed", "200000");
  write("sys/class/net/eth1/device/numa_node", "1");
  driver("sys/class/net/eth1/device", "mlx5_core");
  write("sys/class/net/eth0/operstate", "down");
  write("sys/class/net/eth0/speed", "-1");
  write("sys/class/net/eth0/device/numa_node", "-1");
  driver("sys/class/net/eth0/device", "e1000e");
  write("sys/class/net/docker0/operstate", "up");
  const NetworkDevices found = find_network_devices(root());
  ASSERT_EQ(found.cards.size(), 3U);
  EXPECT_EQ(describe(found.cards[0]), "docker0, speed not known, up, virtual");
  EXPECT_EQ(describe(found.cards[1]), "eth0, speed not known, down, e1000e");
  EXPECT_EQ(describe(found.cards[2]), "eth1, 200 Gbit/s, up, mlx5_core, NUMA node 1");
  EXPECT_TRUE(found.ports.empty());
}

TEST_F(MadeUpRoot, RdmaPorts) {
  const fs::path device = "sys/class/infiniband/mlx5_0";
  write(device / "ports/1/state", "4: ACTIVE");
  write(device / "ports/1/rate", "400 Gb/sec (4X NDR)");
  write(device / "ports/1/link_layer", "InfiniBand");
  write(device / "ports/2/state", "1: DOWN");
  write(device / "ports/2/link_layer", "Ethernet");
  write(device / "ports/nonsense/state", "4: ACTIVE");
  const NetworkDevices found = find_network_devices(root());
  ASSERT_EQ(found.ports.size(), 2U);
  EXPECT_EQ(describe(found.ports[0]), "mlx5_0 port 1, InfiniBand, 400 Gb/sec (4X NDR), ACTIVE");
  EXPECT_EQ(describe(found.ports[1]), "mlx5_0 port 2, RoCE, rate not known, DOWN");
}

TEST_F(MadeUpRoot, GpuDirectNeedsAModuleOrTheOpenDriver) {
  EXPECT_FALSE(find_network_devices(root()).gpu_direct.possible());
  write("proc/sys/kernel/osrelease", "5.11.0-generic");
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
  EXPECT_FALSE(find_network_devices(root()).gpu_direct.possible());
  write("proc/sys/kernel/osrelease", "6.8.0-generic");
  EXPECT_TRUE(find_network_devices(root()).gpu_direct.possible());
  write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580");
  const GpuDirect closed = find_network_devices(root()).gpu_direct;
  EXPECT_FALSE(closed.possible());
  EXPECT_NE(describe(closed).find("closed driver"), std::string::npos);
  write("sys/module/nvidia_peermem/refcnt", "0");
  EXPECT_TRUE(find_network_devices(root()).gpu_direct.possible());
  EXPECT_NE(describe(find_network_devices(root()).gpu_direct).find("nvidia_peermem is loaded"),
            std::string::npos);
}

// The double of NVML. A device is its number plus one.
constexpr const char* kBus[] = {"00000000:1A:00.0", "00000000:1B:00.0", "00000000:B1:00.0",
                                "00000000:B2:00.0"};
constexpr const char* kSwitch = "00000000:C0:00.0";

std::size_t number(NvmlApi::Device device) {
  return reinterpret_cast<std::uintptr_t>(device) - 1;
}

int give_text(char* to, unsigned length, const char* text) {
  std::snprintf(to, length, "%s", text);
  return 0;
}

/// Two links each; GPU 3's second is down.
int give_link_state(NvmlApi::Device device, unsigned link, int* active) {
  constexpr int kNotSupported = 3;
  *active = number(device) == 3 && link == 1 ? 0 : 1;
  return link < 2 ? 0 : kNotSupported;
}

int give_remote(NvmlApi::Device device, unsigned /*link*/, NvmlApi::PciInfo* info) {
  const std::size_t gpu = number(device);
  return give_text(info->bus_id, sizeof info->bus_id, gpu < 2 ? kBus[1 - gpu] : kSwitch);
}

NvmlApi nvml_double() {
  NvmlApi api;
  api.init = [] { return 0; };
  api.shutdown = [] { return 0; };
  api.error_string = [](int) { return "Uninitialized"; };
  api.driver_version = [](char* to, unsigned length) { return give_text(to, length, "999.1"); };
  api.device_count = [](unsigned* count) {
    *count = 4;
    return 0;
  };
  api.device_by_index = [](unsigned index, NvmlApi::Device* device) {
    *device = reinterpret_cast<NvmlApi::Device>(std::uintptr_t{index} + 1);
    return 0;
  };
  api.name = [](NvmlApi::Device, char* to, unsigned length) {
    return give_text(to, length, "Made-up GPU");
  };
  api.pci_info = [](NvmlApi::Device device, NvmlApi::PciInfo* info) {
    return give_text(info->bus_id, sizeof info->bus_id, kBus[number(device)]);
  };
  api.memory_info = [](NvmlApi::Device, NvmlApi::Memory* memory) {
    *memory = {80ULL << 30, 79ULL << 30, 1ULL << 30};
    return 0;
  };
  api.link_state = give_link_state;
  api.link_remote = give_remote;
  api.common_ancestor = [](NvmlApi::Device one, NvmlApi::Device other, int* level) {
    *level = number(one) / 2 == number(other) / 2 ? 20 : 50;
    return 0;
  };
  api.p2p_status = [](NvmlApi::Device, NvmlApi::Device, int, int* status) {
    *status = 0;
    return 0;
  };
  return api;
}

TEST_F(MadeUpRoot, GpusAndWhatJoinsThem) {
  write("sys/bus/pci/devices/0000:b1:00.0/numa_node", "1");
  const GpuTopology found = ask_nvml(nvml_double(), root());
  EXPECT_EQ(found.problem, "");
  EXPECT_EQ(found.driver, "999.1");
  ASSERT_EQ(found.cards.size(), 4U);
  EXPECT_EQ(found.cards[0].memory_bytes, 80ULL << 30);
  EXPECT_FALSE(found.cards[0].numa_node);
  EXPECT_EQ(found.cards[2].numa_node, 1);
  EXPECT_EQ(found.cards[3].links, 2);
  EXPECT_EQ(found.cards[3].active_links, 1);
  const std::vector<std::vector<std::string>> expected{{"X", "NV2", "SYS", "SYS"},
                                                       {"NV2", "X", "SYS", "SYS"},
                                                       {"SYS", "SYS", "X", "NV1"},
                                                       {"SYS", "SYS", "NV1", "X"}};
  EXPECT_EQ(found.between, expected);
  EXPECT_EQ(describe(found).size(), 4U + 1U + 4U + 1U);
  EXPECT_EQ(found.peer_access[0], (std::vector<std::string>{"yes", "yes", "yes", "yes"}));
  EXPECT_EQ(describe(found).back(), "peer access: all to all");
  EXPECT_NE(describe(found)[2].find("GPU2 Made-up GPU, 00000000:B1:00.0, 80.0 GiB (79.0 free), 2 "
                                    "of 2 NVLinks active, NUMA node 1"),
            std::string::npos)
      << describe(found)[2];
}

TEST_F(MadeUpRoot, PciPathsWithoutNvlink) {
  NvmlApi api = nvml_double();
  api.link_state = [](NvmlApi::Device, unsigned, int*) { return 3; };
  EXPECT_EQ(ask_nvml(api, root()).between[0], (std::vector<std::string>{"X", "PXB", "SYS", "SYS"}));
  api.common_ancestor = nullptr;
  EXPECT_EQ(ask_nvml(api, root()).between[0], (std::vector<std::string>{"X", "?", "?", "?"}));
}

TEST_F(MadeUpRoot, WhoHasNoPeerAccess) {
  NvmlApi api = nvml_double();
  api.device_count = [](unsigned* count) {
    *count = 2;
    return 0;
  };
  api.p2p_status = [](NvmlApi::Device one, NvmlApi::Device, int what, int* status) {
    *status = number(one) == 1 && what == 1 ? 3 : 0;
    return 0;
  };
  GpuTopology found = ask_nvml(api, root());
  EXPECT_EQ(describe(found).back(), "no peer access: GPU1 to GPU0 (not across these host bridges)");
  DoctorReport report;
  report.gpus = found;
  std::string all;
  for (const std::string& word : plain_words(report)) all += word + "\n";
  EXPECT_NE(all.find("GPU1 cannot reach the memory of GPU0"), std::string::npos) << all;
  api.p2p_status = nullptr;
  found = ask_nvml(api, root());
  EXPECT_EQ(found.peer_access[0], (std::vector<std::string>{"yes", "?"}));
}

TEST_F(MadeUpRoot, ProblemsAreOneLine) {
  NvmlApi api = nvml_double();
  api.init = [] { return 9; };
  EXPECT_EQ(describe(ask_nvml(api, root())),
            std::vector<std::string>{"NVML does not start: Uninitialized"});
  api = nvml_double();
  api.device_count = nullptr;
  EXPECT_NE(ask_nvml(api, root()).problem.find("lacks functions"), std::string::npos);
  api = nvml_double();
  api.device_count = [](unsigned* count) {
    *count = 0;
    return 0;
  };
  EXPECT_NE(ask_nvml(api, root()).problem.find("no GPU"), std::string::npos);
}

TEST_F(MadeUpRoot, WordsAboutLinks) {
  DoctorReport report;
  report.gpus = ask_nvml(nvml_double(), root());
  report.network.ports = {{"mlx5_0", 1, "InfiniBand", "ACTIVE", "", {}},
                          {"mlx5_1", 1, "InfiniBand", "DOWN", "", {}}};
  std::string all;
  for (const std::string& word : plain_words(report)) all += word + "\n";
  for (const char* part : {"GPU3: only 1 of 2 NVLinks", "across NUMA nodes",
                           "mlx5_1 port 1 is DOWN", "load nvidia_peermem"}) {
    EXPECT_NE(all.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(all.find("mlx5_0"), std::string::npos);
  const std::string text = doctor_text(report);
  for (const char* part : {"GPU links", "RDMA", "NV2", "GPUDirect RDMA"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_NE(doctor_json(report).find("\"nvlinks\": 2"), std::string::npos);
}

TEST(DoctorVariables, NamesOfNcclAndOthers) {
  EXPECT_EQ(explain_variable("NCCL_SOCKET_RCVBUF", "1").warning, "");
  EXPECT_NE(explain_variable("NCCL_SOCKET_RCVBUF", "1").meaning.find("NCCL 2.28"),
            std::string::npos);
  const VariableNote wrong = explain_variable("NCCL_SOCKET_RCVBUFF", "1");
  EXPECT_NE(wrong.meaning.find("unknown"), std::string::npos);
  EXPECT_NE(wrong.warning.find("NCCL_SOCKET_RCVBUF?"), std::string::npos);
  EXPECT_EQ(explain_variable("NCCL_NVLS_ENABLE", "1").warning, "");
  EXPECT_NE(explain_variable("NCCL_NVLS_ENABLE", "0").warning, "");
  for (const char* name : {"NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"}) {
    EXPECT_NE(explain_variable(name, "4").warning.find("for tests only"), std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace paceline
