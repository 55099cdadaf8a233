#include "worker/launcher/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace muster::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two nodes, each a socket with 4 cores of 2 threads and 2 last-level caches:
// CPUs 0-3 and 8-11 are node 0, and core K is CPUs K and K + 8.
Topology TwoNodes() {
  Topology topology;
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int core = cpu % 8;
    topology.cpus.push_back({.cpu = cpu,
                             .node = core / 4,
                             .socket = core / 4,
                             .core = core,
                             .complex = core / 2 * 2});
  }
  return topology;
}

std::vector<std::vector<int>> Bind(const std::string& binding, int nproc,
                                   const Topology& topology) {
  auto bound = BindRanks(binding, nproc, topology);
  EXPECT_TRUE(bound.ok()) << bound.status();
  return bound.ok() ? *bound : std::vector<std::vector<int>>();
}

TEST(NumaTest, NodeSpreadsTheRanksNeighboursTogether) {
  const std::vector<int> node0 = {0, 1, 2, 3, 8, 9, 10, 11};
  const std::vector<int> node1 = {4, 5, 6, 7, 12, 13, 14, 15};
  EXPECT_THAT(Bind("node", 4, TwoNodes()),
              ElementsAre(node0, node0, node1, node1));
  EXPECT_THAT(Bind("node", 1, TwoNodes()), ElementsAre(node0));
  EXPECT_THAT(Bind("socket", 2, TwoNodes()), ElementsAre(node0, node1));
}

TEST(NumaTest, ASocketMayHaveSeveralNodes) {
  Topology topology = TwoNodes();
  for (Cpu& cpu : topology.cpus) cpu.socket = 0;
  EXPECT_EQ(Bind("socket", 2, topology)[1].size(), 16u);
}

TEST(NumaTest, ExclusiveGivesWholeCoresToOneRank) {
  EXPECT_THAT(
      Bind("exclusive", 4, TwoNodes()),
      ElementsAre(ElementsAre(0, 8, 1, 9), ElementsAre(2, 10, 3, 11),
                  ElementsAre(4, 12, 5, 13), ElementsAre(6, 14, 7, 15)));
  const auto bound = BindRanks("exclusive", 9, TwoNodes());
  EXPECT_EQ(bound.status().message(),
            "--numa-binding=exclusive: NUMA node 0 has 4 cores that may be "
            "used, for 5 ranks");
}

TEST(NumaTest, CoreComplexesAreTakenInTurn) {
  EXPECT_THAT(
      Bind("core-complex", 6, TwoNodes()),
      ElementsAre(ElementsAre(0, 1, 8, 9), ElementsAre(2, 3, 10, 11),
                  ElementsAre(0, 1, 8, 9), ElementsAre(4, 5, 12, 13),
                  ElementsAre(6, 7, 14, 15), ElementsAre(4, 5, 12, 13)));
}

TEST(NumaTest, ARankIsOnTheNodeOfItsGpu) {
  Topology topology = TwoNodes();
  topology.gpu_nodes = {1, 0};
  const auto bound = Bind("node", 2, topology);
  EXPECT_EQ(bound[0][0], 4);
  EXPECT_EQ(bound[1][0], 0);
  // Unknown nodes, or fewer GPUs than ranks: as without GPUs.
  topology.gpu_nodes = {-1, -1};
  EXPECT_EQ(Bind("node", 2, topology)[1][0], 4);
  topology.gpu_nodes = {1};
  EXPECT_EQ(Bind("node", 2, topology)[0][0], 0);
}

class TopologyTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  const std::string root_ =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(TopologyTest, IsWhatTheKernelShows) {
  Write("sys/devices/system/node/node0/cpulist", "0-1,4");
  Write("sys/devices/system/node/node1/cpulist", "2-3");
  const std::string cpu = "sys/devices/system/cpu/cpu3/";
  Write(cpu + "topology/physical_package_id", "1");
  Write(cpu + "topology/thread_siblings_list", "2-3");
  Write(cpu + "cache/index0/level", "1");
  Write(cpu + "cache/index0/shared_cpu_list", "3");
  Write(cpu + "cache/index3/level", "3");
  Write(cpu + "cache/index3/shared_cpu_list", "2-3");
  Write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "");
  Write("sys/bus/pci/devices/0000:3b:00.0/numa_node", "1");
  Write("proc/driver/nvidia/gpus/0000:af:00.0/information", "");
  const Topology topology = ReadTopology(root_, {1, 3, 4}, {});
  ASSERT_EQ(topology.cpus.size(), 3u);
  EXPECT_EQ(topology.cpus[0].cpu, 1);
  EXPECT_EQ(topology.cpus[0].core, 1);
  EXPECT_EQ(topology.cpus[0].complex, 1);
  EXPECT_EQ(topology.cpus[1].cpu, 3);
  EXPECT_EQ(topology.cpus[1].node, 1);
  EXPECT_EQ(topology.cpus[1].socket, 1);
  EXPECT_EQ(topology.cpus[1].core, 2);
  EXPECT_EQ(topology.cpus[1].complex, 2);
  EXPECT_EQ(topology.cpus[2].node, 0);
  EXPECT_THAT(topology.gpu_nodes, ElementsAre(1, -1));
}

TEST_F(TopologyTest, GpusAreThoseThatCudaShowsInItsOrder) {
  const std::vector<std::string> buses = {"0000:3b:00.0", "0000:86:00.0",
                                          "0000:af:00.0"};
  for (size_t i = 0; i < buses.size(); ++i) {
    Write("proc/driver/nvidia/gpus/" + buses[i] + "/information",
          "Model: \t\t some GPU\nGPU UUID: \t GPU-" + std::to_string(i) +
              "f00-abc");
    Write("sys/bus/pci/devices/" + buses[i] + "/numa_node", std::to_string(i));
  }
  const auto nodes = [&](const std::string& visible) {
    return GpuNodes(root_, {{"CUDA_VISIBLE_DEVICES", visible}});
  };
  EXPECT_THAT(GpuNodes(root_, {}), ElementsAre(0, 1, 2));
  EXPECT_THAT(nodes("2,0"), ElementsAre(2, 0));
  EXPECT_THAT(nodes("1, 2"), ElementsAre(1, 2));
  EXPECT_THAT(nodes("GPU-2f00-abc,GPU-1"), ElementsAre(2, 1));
  EXPECT_THAT(nodes("1,-1,2"), ElementsAre(1));
  EXPECT_THAT(nodes("1,3,2"), ElementsAre(1));
  EXPECT_THAT(nodes("GPU-4"), IsEmpty());
  EXPECT_THAT(nodes("MIG-1f00,MIG-2f00"), ElementsAre(-1, -1));
  EXPECT_THAT(nodes(""), IsEmpty());
  EXPECT_THAT(
      ReadTopology(root_, {0}, {{"CUDA_VISIBLE_DEVICES", "2"}}).gpu_nodes,
      ElementsAre(2));
}

TEST_F(TopologyTest, AKernelThatShowsNothingHasOneNode) {
  const Topology topology = ReadTopology(root_, {0, 1}, {});
  EXPECT_THAT(topology.gpu_nodes, IsEmpty());
  EXPECT_THAT(Bind("node", 2, topology),
              ElementsAre(ElementsAre(0, 1), ElementsAre(0, 1)));
}

TEST(NumaTest, ThisHostCanBeRead) {
  const Topology topology = ReadTopology("", AllowedCpus(), {});
  ASSERT_FALSE(topology.cpus.empty());
  for (const std::string binding : {"node", "socket", "core-complex"}) {
    for (const std::vector<int>& cpus : Bind(binding, 3, topology)) {
      EXPECT_FALSE(cpus.empty()) << binding;
    }
  }
}

}  // namespace
}  // namespace muster::worker
