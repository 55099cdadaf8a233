// Tensors of other libraries through C. What is accepted is tested in
// dataplane/dlpack_test.

#include "muster/dlpack.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/muster.h"

namespace muster::c {
namespace {

using ::testing::ElementsAre;

// The types are those of DLPack's header, of which this has a copy.
muster::dlpack::DLManagedTensor* Look(struct ::DLManagedTensor* managed) {
  return reinterpret_cast<muster::dlpack::DLManagedTensor*>(managed);
}

void CountRelease(void* owner) { ++*static_cast<int*>(owner); }

TEST(DlpackTest, ATensorGoesOutAndComesBackAndIsReleasedOnce) {
  std::vector<float> values = {1, 2, 3};
  muster_tensor tensor = {};
  tensor.data = values.data();
  tensor.dtype = MUSTER_FLOAT32;
  tensor.count = 3;
  int released = 0;
  struct ::DLManagedTensor* managed = nullptr;
  ASSERT_EQ(muster_to_dlpack(&tensor, &CountRelease, &released, &managed),
            MUSTER_OK);
  EXPECT_EQ(Look(managed)->dl_tensor.ndim, 1);
  EXPECT_EQ(Look(managed)->dl_tensor.data, values.data());
  muster_dlpack* imported = nullptr;
  ASSERT_EQ(muster_from_dlpack(managed, &imported), MUSTER_OK);
  muster_tensor view = {};
  ASSERT_EQ(muster_dlpack_tensor(imported, &view), MUSTER_OK);
  EXPECT_EQ(view.data, values.data());
  EXPECT_EQ(view.dtype, MUSTER_FLOAT32);
  EXPECT_EQ(view.count, 3);
  EXPECT_EQ(released, 0);
  muster_dlpack_release(imported);
  EXPECT_EQ(released, 1);
}

TEST(DlpackTest, AReadOnlyTensorMustBeAllowed) {
  int64_t value = 7;
  muster_tensor tensor = {};
  tensor.data = &value;
  tensor.dtype = MUSTER_INT64;
  tensor.count = 1;
  int released = 0;
  struct ::DLManagedTensorVersioned* managed = nullptr;
  ASSERT_EQ(
      muster_to_dlpack_versioned(&tensor, &CountRelease, &released, &managed),
      MUSTER_OK);
  reinterpret_cast<muster::dlpack::DLManagedTensorVersioned*>(managed)->flags =
      muster::dlpack::kReadOnly;
  muster_dlpack* imported = nullptr;
  EXPECT_EQ(muster_from_dlpack_versioned(managed, 0, &imported),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_EQ(imported, nullptr);
  // The caller still owns it.
  EXPECT_EQ(released, 0);
  ASSERT_EQ(muster_from_dlpack_versioned(managed, 1, &imported), MUSTER_OK);
  muster_dlpack_release(imported);
  EXPECT_EQ(released, 1);
}

TEST(DlpackTest, AFailedExportReleasesNothing) {
  muster_tensor tensor = {};
  tensor.dtype = MUSTER_FLOAT32;
  tensor.count = -1;
  int released = 0;
  struct ::DLManagedTensor* managed = nullptr;
  EXPECT_EQ(muster_to_dlpack(&tensor, &CountRelease, &released, &managed),
            MUSTER_INVALID_ARGUMENT);
  EXPECT_EQ(managed, nullptr);
  EXPECT_EQ(released, 0);
}

}  // namespace
}  // namespace muster::c
