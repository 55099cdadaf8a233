// Memory that runs out. The sanitizers end the process instead.

#include <cstdint>

#include "client/parallel/dtensor/tensor_memory.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

TEST(AllocationTest, MemoryThatThereIsNotIsAnError) {
  try {
    AllocateTensor(DataType::kUint8, {int64_t{1} << 60});
    FAIL();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace muster::internal
