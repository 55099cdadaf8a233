// Objects in a group of CUDA tensors without CUDA.

#include "client/groups/device_copies.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/factory.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;

// A backend that claims to take CUDA tensors.
class OnCuda : public dataplane::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCuda};
    return kDevices;
  }
};

TEST(DeviceCopiesTest, WithoutADeviceItIsSaidWhatIsMissing) {
  setenv("MUSTER_CUDA_LIBRARY", "nowhere/libcudart.so", /*overwrite=*/1);
  ASSERT_TRUE(dataplane::RegisterBackend(
                  "mine", {DeviceType::kCuda},
                  [](const dataplane::BackendOptions& options)
                      -> StatusOr<std::unique_ptr<dataplane::Backend>> {
                    auto gloo = dataplane::CreateBackend("gloo", options);
                    if (!gloo.ok()) return gloo.status();
                    return std::make_unique<OnCuda>(*std::move(gloo));
                  })
                  .ok());
  testing::LocalGroups world(1, std::chrono::seconds(60), "mine");
  EXPECT_THAT(
      world.OnEachRank([](const auto& group, int) {
        std::vector<std::string> list;
        AllGatherObject(list, std::string("x"), {.group = group});
      }),
      ElementsAre(StartsWith(
          "backend \"mine\" of group \"local\" takes no CPU tensors, and "
          "there is no CUDA device to bring objects to: no CUDA runtime: "
          "environment variable MUSTER_CUDA_LIBRARY: ")));
}

}  // namespace
}  // namespace muster::internal
