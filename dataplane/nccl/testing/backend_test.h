// The fixture of the nccl backend's tests: the backends of all ranks of a group
// in one process, on fake NCCL and CUDA libraries.

#ifndef MUSTER_DATAPLANE_NCCL_TESTING_BACKEND_TEST_H_
#define MUSTER_DATAPLANE_NCCL_TESTING_BACKEND_TEST_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dataplane/cuda/testing/host_cuda.h"
#include "dataplane/nccl/nccl_backend.h"
#include "dataplane/nccl/testing/host_nccl.h"
#include "dataplane/testing/in_memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/backend.h"
#include "muster/dataplane/nccl_options.h"

namespace muster::dataplane::nccl::testing {

class BackendTest : public ::testing::Test {
 protected:
  ~BackendTest() override {
    backends_.clear();
    for (const cuda::Stream stream : streams_) {
      EXPECT_EQ(platform_.cuda.StreamDestroy(stream), cuda::kSuccess);
    }
    for (float* const data : memory_) platform_.cuda.Free(data);
    EXPECT_THAT(TakeMisuses(), ::testing::IsEmpty());
    EXPECT_THAT(cuda::testing::TakeMisuses(), ::testing::IsEmpty());
    EXPECT_EQ(CountLeaks().comms, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().streams - streams_before_,
              allowed_streams_);
    EXPECT_EQ(cuda::testing::CountLeaks().events, 0U);
    EXPECT_EQ(cuda::testing::CountLeaks().memory - memory_before_,
              allowed_leaks_);
  }

  // Makes the backends of all ranks, each on device 0.
  void Make(int size, int device = -1, const NcclOptions& options = {}) {
    for (int rank = 0; rank < size; ++rank) {
      backends_.push_back(*CreateNcclBackend(
          platform_, {.rank = rank,
                      .world_size = size,
                      .group_name = "world",
                      .store = store_,
                      .device = device,
                      .nccl = std::make_shared<NcclOptions>(options)}));
    }
  }

  // Allocates `count` numbers on the device, each `value`.
  Tensor OnDevice(int64_t count, float value, int device = 0) {
    void* data = nullptr;
    EXPECT_EQ(platform_.cuda.Malloc(&data, static_cast<size_t>(count) * 4),
              cuda::kSuccess);
    memory_.push_back(static_cast<float*>(data));
    std::fill(memory_.back(), memory_.back() + count, value);
    return Tensor(data, dataplane::DataType::kFloat32, {count},
                  {DeviceType::kCuda, device});
  }

  cuda::Stream MakeStream() {
    cuda::Stream stream = nullptr;
    EXPECT_EQ(platform_.cuda.StreamCreateWithPriority(&stream, 0, 0),
              cuda::kSuccess);
    streams_.push_back(stream);
    return stream;
  }

  static std::vector<float> GetValues(const Tensor& tensor) {
    const float* const data = static_cast<const float*>(tensor.data());
    return {data, data + tensor.element_count()};
  }

  std::shared_ptr<Work> AllReduce(int rank, const Tensor& tensor,
                                  Instant deadline = Instant::max()) {
    Collective collective = {.kind = CollectiveKind::kAllReduce,
                             .tensors = {tensor}};
    collective.deadline = deadline;
    return backends_[static_cast<size_t>(rank)]->Start(collective);
  }

  static Status Wait(const std::shared_ptr<Work>& work) {
    return work->Wait(Clock::now() + std::chrono::minutes(1));
  }

  Platform platform_ = {.cuda = cuda::testing::HostCudaApi(),
                        .nccl = HostNcclApi(),
                        .nccl_version = 22809};
  std::shared_ptr<dataplane::testing::InMemoryStore> store_ =
      std::make_shared<dataplane::testing::InMemoryStore>();
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<float*> memory_;
  std::vector<cuda::Stream> streams_;
  // Memory blocks and streams that existed before the test, and that it may
  // leak.
  const size_t memory_before_ = cuda::testing::CountLeaks().memory;
  size_t allowed_leaks_ = 0;
  const size_t streams_before_ = cuda::testing::CountLeaks().streams;
  size_t allowed_streams_ = 0;
};

}  // namespace muster::dataplane::nccl::testing

#endif  // MUSTER_DATAPLANE_NCCL_TESTING_BACKEND_TEST_H_
