// Memory of devices, on a fake CUDA.

#include "muster/device_memory.h"

#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/streams.h"

namespace muster {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

const bool g_has_devices = [] {
  setenv("MUSTER_CUDA_LIBRARY", "dataplane/testing/libhost_devices.so",
         /*overwrite=*/1);
  return true;
}();

template <typename Call>
Status CatchStatus(const Call& call) {
  try {
    call();
  } catch (const DistError& error) {
    return error.status();
  }
  return OkStatus();
}

TEST(DeviceMemoryTest, WhatIsWrittenIsRead) {
  ASSERT_EQ(CudaDeviceCount(), 2);
  std::vector<int> values(10'000);
  std::iota(values.begin(), values.end(), 3);
  DeviceMemory memory(1, values.size() * sizeof(int));
  EXPECT_EQ(memory.device(), 1);
  EXPECT_EQ(memory.bytes(), 40'000U);
  memory.Write(values.data(), memory.bytes());
  std::vector<int> read(values.size());
  memory.Read(read.data(), memory.bytes());
  EXPECT_EQ(read, values);

  const int part[] = {7, 8};
  memory.Write(part, sizeof(part), 4);
  read.resize(4);
  memory.Read(read.data(), 16);
  EXPECT_THAT(read, ElementsAre(3, 7, 8, 6));

  memory.Clear();
  SynchronizeCurrentStream(1);
  memory.Read(read.data(), 16, 39'984);
  EXPECT_THAT(read, Each(0));
}

TEST(DeviceMemoryTest, ItMovesAndMayBeNone) {
  DeviceMemory memory;
  EXPECT_EQ(memory.data(), nullptr);
  memory = DeviceMemory(0, 16);
  std::byte* const data = memory.data();
  const DeviceMemory moved(std::move(memory));
  EXPECT_EQ(moved.data(), data);
  EXPECT_NE(data, nullptr);
  DeviceMemory none(0, 0);
  EXPECT_EQ(none.data(), nullptr);
  none.Clear();
  none.Write(nullptr, 0);
}

TEST(DeviceMemoryTest, SomebodyElsesIsNotFreed) {
  DeviceMemory memory(0, 8);
  memory.Clear();
  {
    DeviceMemory half = DeviceMemory::Of(0, memory.data() + 4, 4);
    DeviceMemory moved = std::move(half);
    const int32_t number = 7;
    moved.Write(&number, sizeof(number));
    EXPECT_THROW(moved.Write(&number, sizeof(number), 1), DistError);
  }
  int32_t numbers[2] = {1, 1};
  memory.Read(numbers, sizeof(numbers));
  EXPECT_THAT(numbers, ElementsAre(0, 7));
  EXPECT_THROW(DeviceMemory::Of(9, memory.data(), 4), DistError);
}

TEST(DeviceMemoryTest, ErrorsNameTheDeviceAndTheSizes) {
  EXPECT_EQ(CatchStatus([] { DeviceMemory(2, 16); }),
            InvalidArgumentError("argument device: there is no cuda:2, "
                                 "this process has 2"));
  EXPECT_TRUE(
      IsInvalidArgument(CatchStatus([] { SynchronizeCurrentStream(-1); })));
  DeviceMemory memory(0, 16);
  char byte = 0;
  EXPECT_EQ(CatchStatus([&] { memory.Write(&byte, 1, 16); }),
            InvalidArgumentError("1 bytes at offset 16 of 16 bytes on cuda:0"));
  EXPECT_TRUE(IsInvalidArgument(
      CatchStatus([&] { memory.Read(&byte, 1, ~size_t{0}); })));
}

}  // namespace
}  // namespace muster
