// Groups of ranks with devices: of the host's CUDA and NCCL.

#include <cstdlib>
#include <vector>

#include "client/muster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::Each;

const bool g_has_devices = [] {
  for (const char* const name :
       {"MUSTER_CUDA_LIBRARY", "MUSTER_NCCL_LIBRARY"}) {
    setenv(name, "dataplane/testing/libhost_devices.so", /*overwrite=*/1);
  }
  setenv("MUSTER_HOST_DEVICES", "3", /*overwrite=*/1);
  return true;
}();

TEST(DefaultBackendTest, WithDevicesItTakesTensorsOfBothKinds) {
  EXPECT_TRUE(IsNcclAvailable());
  InitProcessGroup({.init_method = "tcp://127.0.0.1:0?rank=0&world_size=1"});
  EXPECT_EQ(GetBackend(), "cpu:gloo,cuda:nccl");

  const ReductionOptions tripled = {.op = ReduceOp::kPremulSum, .factor = 3};
  std::vector<float> values(8, 2);
  AllReduce(Tensor(values), tripled);
  EXPECT_THAT(values, Each(6));

  DeviceMemory memory(1, values.size() * sizeof(float));
  memory.Write(values.data(), memory.bytes());
  AllReduce(
      Tensor(memory.data(), DataType::kFloat32, {8}, {DeviceType::kCuda, 1}),
      tripled);
  memory.Read(values.data(), memory.bytes());
  EXPECT_THAT(values, Each(18));
  DestroyProcessGroup();
}

}  // namespace
}  // namespace muster
