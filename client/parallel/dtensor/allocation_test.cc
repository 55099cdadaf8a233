// Memory that runs out. The sanitizers end the process instead.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "client/parallel/dtensor/local_mesh.h"
#include "client/parallel/dtensor/tensor_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dtensor.h"
#include "muster/errors.h"

namespace {

// So many more tensors get memory on the calling thread.
thread_local int tensors_left = std::numeric_limits<int>::max();

}  // namespace

// Tensors alone are allocated so.
void* operator new(size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t&) noexcept {
  if (tensors_left == 0) return nullptr;
  --tensors_left;
  const auto step = static_cast<size_t>(alignment);
  return std::aligned_alloc(step, (bytes + step - 1) / step * step);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}

namespace muster {
namespace {

using muster::testing::LocalMesh;
using ::testing::Each;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(AllocationTest, MemoryThatThereIsNotIsAnError) {
  try {
    internal::AllocateTensor(DataType::kUint8, {int64_t{1} << 60});
    FAIL();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
  }
}

// Rank 3 of a mesh of 2 x 2 gets memory for 0, 1, ... tensors of what `body`
// does. Until it has enough, all ranks get its error, and the mesh goes on.
void ExpectErrorOfAllRanks(
    const std::function<void(const DeviceMesh&, int)>& body,
    const std::string& function, int needed) {
  LocalMesh world({2, 2});
  for (int tensors = 0; tensors <= needed; ++tensors) {
    EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
      std::string text;
      if (rank == 3) tensors_left = tensors;
      try {
        body(mesh, rank);
      } catch (const DistError& error) {
        EXPECT_EQ(error.status().code(), StatusCode::kResourceExhausted);
        text = error.status().message();
      }
      if (tensors < needed) {
        EXPECT_THAT(text, StartsWith(function + ": rank 3: no memory for "));
      } else {
        EXPECT_EQ(text, "");
      }
    }),
                Each(IsEmpty()));
  }
}

TEST(AllocationTest, ARankWithoutMemoryIsAnErrorOfAllBeforeAnythingMoves) {
  std::vector<std::vector<float>> parts(4, std::vector<float>(4, 1));
  ExpectErrorOfAllRanks(
      [&](const DeviceMesh& mesh, int rank) {
        std::vector<float>& part = parts[static_cast<size_t>(rank)];
        const DTensor cut = DTensor::FromLocal(Tensor(part.data(), {2, 2}),
                                               mesh, {Shard(0), Shard(1)});
        const DTensor full = cut.FullTensor();
        const auto* const all =
            static_cast<const float*>(full.ToLocal().data());
        EXPECT_EQ(std::accumulate(all, all + 16, 0.0F), 16);
      },
      // Columns are gathered in a buffer.
      "DTensor::Redistribute", 3);
}

TEST(AllocationTest, ARankWithoutMemoryIsAnErrorOfAllInDistribute) {
  std::vector<float> whole(16, 1);
  ExpectErrorOfAllRanks(
      [&](const DeviceMesh& mesh, int rank) {
        const Tensor full = rank == 0 ? Tensor(whole.data(), {4, 4}) : Tensor();
        const DTensor tensor =
            DTensor::Distribute(full, mesh, {Shard(0), Replicate()});
        EXPECT_EQ(static_cast<const float*>(tensor.ToLocal().data())[7], 1);
      },
      "DTensor::Distribute", 1);
}

}  // namespace
}  // namespace muster
