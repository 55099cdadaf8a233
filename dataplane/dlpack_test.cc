#include "muster/dataplane/dlpack.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane::dlpack {
namespace {

using ::testing::ElementsAre;

// A tensor of another library. Counts the calls of its deleter.
struct Foreign {
  Foreign() {
    managed.dl_tensor.data = values.data();
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {kDLFloat, 32, 1};
    managed.dl_tensor.shape = shape.data();
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deletions;
    };
  }

  std::string Error() {
    const auto imported = Import(&managed);
    EXPECT_FALSE(imported.ok());
    return std::string(imported.status().message());
  }

  std::vector<float> values = std::vector<float>(12, 1);
  std::vector<int64_t> shape = {2, 3};
  std::vector<int64_t> strides = {3, 1};
  DLManagedTensor managed = {};
  int deletions = 0;
};

TEST(DlpackTest, AnImportedTensorIsAViewAndGivenBackOnce) {
  Foreign foreign;
  foreign.managed.dl_tensor.byte_offset = 8;
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  {
    auto imported = Import(&foreign.managed);
    ASSERT_TRUE(imported.ok()) << imported.status();
    Imported first = *std::move(imported);
    Imported moved;
    moved = std::move(first);
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_EQ(first.tensor().data(), nullptr);
    // NOLINTNEXTLINE(bugprone-use-after-move)
    EXPECT_EQ(imported->tensor().data(), nullptr);
    EXPECT_EQ(moved.tensor().Describe(), "float32[2,3]");
    EXPECT_EQ(moved.tensor().data(), &foreign.values[2]);
    EXPECT_EQ(foreign.deletions, 0);
  }
  EXPECT_EQ(foreign.deletions, 1);
  foreign.managed.deleter = nullptr;
  EXPECT_TRUE(Import(&foreign.managed).ok());
}

TEST(DlpackTest, OnlyDimensionsOfSeveralElementsNeedTheirStride) {
  Foreign foreign;
  foreign.managed.dl_tensor.strides = foreign.strides.data();
  foreign.shape = {1, 3};
  foreign.strides = {77, 1};
  EXPECT_TRUE(Import(&foreign.managed).ok());
  foreign.shape = {0, 3};
  foreign.strides = {5, 9};
  foreign.managed.dl_tensor.data = nullptr;
  EXPECT_TRUE(Import(&foreign.managed).ok());
  // A scalar.
  Foreign scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = nullptr;
  EXPECT_EQ(Import(&scalar.managed)->tensor().element_count(), 1);
}

TEST(DlpackTest, WhatCannotBeUsedStaysTheCallers) {
  Foreign foreign;
  DLTensor& tensor = foreign.managed.dl_tensor;
  tensor.strides = foreign.strides.data();
  foreign.strides = {1, 2};
  EXPECT_EQ(foreign.Error(),
            "argument managed: tensors must be contiguous: dimension 1 of "
            "[2,3] has stride 2, must be 1");
  foreign.strides = {4, 1};
  EXPECT_EQ(foreign.Error(),
            "argument managed: tensors must be contiguous: dimension 0 of "
            "[2,3] has stride 4, must be 3");
  tensor.strides = nullptr;
  tensor.byte_offset = 2;
  EXPECT_EQ(foreign.Error(),
            "argument managed: data pointer of float32[2,3] is not aligned to "
            "4 bytes");
  tensor.byte_offset = 0;
  tensor.dtype.lanes = 4;
  EXPECT_EQ(foreign.Error(),
            "argument managed: elements of 4 lanes, must be 1 (float32)");
  tensor.dtype = {kDLUInt, 128, 1};
  EXPECT_EQ(foreign.Error(),
            "argument managed: no tensor here has elements of uint128");
  tensor.dtype = {kDLFloat, 32, 1};
  tensor.device.device_type = 10;
  EXPECT_EQ(foreign.Error(),
            "argument managed: device type 10, must be 1 (CPU), 2 (CUDA) or 3 "
            "(CUDA's host memory)");
  tensor.device.device_type = kDLCPU;
  foreign.shape = {2, -3};
  EXPECT_EQ(foreign.Error(),
            "argument managed: negative dimension in float32[2,-3]");
  foreign.shape = {2, 3};
  tensor.data = nullptr;
  EXPECT_EQ(foreign.Error(),
            "argument managed: null data pointer of float32[2,3]");
  tensor.shape = nullptr;
  EXPECT_EQ(foreign.Error(), "argument managed: shape is null, ndim is 2");
  tensor.ndim = -1;
  EXPECT_EQ(foreign.Error(), "argument managed: ndim is negative: -1");
  EXPECT_EQ(
      ImportManaged(static_cast<DLManagedTensor*>(nullptr)).status().message(),
      "argument managed: null");
  EXPECT_EQ(foreign.deletions, 0);
}

TEST(DlpackTest, DevicesGoBothWays) {
  Foreign foreign;
  foreign.managed.dl_tensor.device = {kDLCUDA, 3};
  EXPECT_EQ(Import(&foreign.managed)->tensor().Describe(),
            "float32[2,3] on cuda:3");
  foreign.managed.dl_tensor.device = {kDLCUDAHost, 3};
  EXPECT_EQ(Import(&foreign.managed)->tensor().Describe(), "float32[2,3]");
  float value = 0;
  DLManagedTensor* const exported =
      *Export(Tensor(&value, {1}, {DeviceType::kCuda, 5}));
  EXPECT_EQ(exported->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ(exported->dl_tensor.device.device_id, 5);
  exported->deleter(exported);
}

TEST(DlpackTest, EveryTypeComesBackAsItWent) {
  alignas(16) char memory[64];
  for (int i = 0; i < static_cast<int>(DataType::kOpaque); ++i) {
    const auto type = static_cast<DataType>(i);
    const Tensor tensor(memory, type, {1, 4});
    DLManagedTensor* const exported = *Export(tensor);
    EXPECT_EQ(exported->dl_tensor.dtype.bits, 8 * DataTypeBytes(type));
    auto imported = Import(exported);
    ASSERT_TRUE(imported.ok()) << imported.status();
    EXPECT_EQ(imported->tensor().Describe(), tensor.Describe());
    EXPECT_EQ(imported->tensor().data(), memory);
  }
}

TEST(DlpackTest, OpaqueElementsAndPairsHaveNoTypeThere) {
  char memory[24] = {};
  EXPECT_EQ(Export(Tensor::Opaque(memory, 12, {2})).status().message(),
            "argument tensor: DLPack has no type for the elements of opaque[2] "
            "of 12 bytes");
  std::vector<ValueIndex<int64_t, int64_t>> pairs(1);
  EXPECT_EQ(Export(Tensor(pairs)).status().message(),
            "argument tensor: DLPack has no type for the elements of "
            "int64_int64[1]");
}

TEST(DlpackTest, AnExportedTensorKeepsItsOwner) {
  auto owner = std::make_shared<std::vector<float>>(6);
  const std::weak_ptr<std::vector<float>> alive = owner;
  const Tensor tensor(owner->data(), {2, 3});
  DLManagedTensor* const exported = *Export(tensor, std::move(owner));
  EXPECT_THAT(std::span(exported->dl_tensor.shape, 2), ElementsAre(2, 3));
  EXPECT_EQ(exported->dl_tensor.strides, nullptr);
  EXPECT_FALSE(alive.expired());
  exported->deleter(exported);
  EXPECT_TRUE(alive.expired());
  EXPECT_EQ(
      Export(Tensor(static_cast<float*>(nullptr), {3})).status().message(),
      "argument tensor: null data pointer of float32[3]");
}

// As in DLPack's header.
struct TheirDevice {
  int device_type;
  int32_t device_id;
};
struct TheirTensor {
  void* data;
  TheirDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct TheirManagedTensor {
  TheirTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(TheirManagedTensor*);
};

TEST(DlpackTest, TheStructuresOfItsHeaderAreTakenToo) {
  std::vector<int16_t> values(5);
  int64_t shape = 5;
  TheirManagedTensor theirs = {};
  theirs.dl_tensor.data = values.data();
  theirs.dl_tensor.device = {kDLCPU, 0};
  theirs.dl_tensor.ndim = 1;
  theirs.dl_tensor.dtype = {kDLInt, 16, 1};
  theirs.dl_tensor.shape = &shape;
  EXPECT_EQ(Import(&theirs)->tensor().Describe(), "int16[5]");
}

// For DLPack 1.x, with the structures of its header.
struct TheirVersionedTensor {
  DLPackVersion version = {1, 1};
  void* manager_ctx = nullptr;
  void (*deleter)(TheirVersionedTensor*) = [](TheirVersionedTensor* self) {
    ++*static_cast<int*>(self->manager_ctx);
  };
  uint64_t flags = 0;
  TheirTensor dl_tensor = {};
};

class VersionedTest : public ::testing::Test {
 protected:
  VersionedTest() {
    theirs_.manager_ctx = &deletions_;
    theirs_.dl_tensor.data = values_.data();
    theirs_.dl_tensor.device = {kDLCPU, 0};
    theirs_.dl_tensor.ndim = 1;
    theirs_.dl_tensor.dtype = {kDLInt, 16, 1};
    theirs_.dl_tensor.shape = &shape_;
  }

  std::vector<int16_t> values_ = std::vector<int16_t>(5);
  int64_t shape_ = 5;
  int deletions_ = 0;
  TheirVersionedTensor theirs_;
};

TEST_F(VersionedTest, IsTakenAndGivenBackOnce) {
  {
    auto imported = Import(&theirs_);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const Imported moved = *std::move(imported);
    EXPECT_EQ(moved.tensor().Describe(), "int16[5]");
    EXPECT_EQ(moved.tensor().data(), values_.data());
    EXPECT_EQ(deletions_, 0);
  }
  EXPECT_EQ(deletions_, 1);
  theirs_.deleter = nullptr;
  EXPECT_TRUE(Import(&theirs_).ok());
}

TEST_F(VersionedTest, AnotherMajorVersionIsNotLookedInto) {
  theirs_.version = {2, 3};
  theirs_.dl_tensor.ndim = -1;
  EXPECT_EQ(Import(&theirs_).status().message(),
            "argument managed: DLPack 2.3, must be 1.x");
  theirs_.version = {1, 9};
  EXPECT_EQ(Import(&theirs_).status().message(),
            "argument managed: ndim is negative: -1");
  EXPECT_EQ(ImportManaged(static_cast<DLManagedTensorVersioned*>(nullptr))
                .status()
                .message(),
            "argument managed: null");
  EXPECT_EQ(deletions_, 0);
}

TEST_F(VersionedTest, WhatMustNotBeWrittenIsTakenWhereThatIsSaid) {
  // Also sets the flag for a copy.
  theirs_.flags = kReadOnly | 2;
  EXPECT_EQ(Import(&theirs_).status().message(),
            "argument managed: the tensor is read-only, and collectives may "
            "write to theirs: set allow_read_only for one that is only read");
  EXPECT_EQ(deletions_, 0);
  EXPECT_TRUE(Import(&theirs_, {.allow_read_only = true}).ok());
  EXPECT_EQ(deletions_, 1);
  theirs_.flags = 2;
  EXPECT_TRUE(Import(&theirs_).ok());
}

TEST_F(VersionedTest, EveryTypeGoesOutWithItsVersionAndStrides) {
  alignas(16) char memory[128];
  for (int i = 0; i < static_cast<int>(DataType::kOpaque); ++i) {
    const Tensor tensor(memory, static_cast<DataType>(i), {2, 1, 4});
    auto owner = std::make_shared<int>(1);
    const std::weak_ptr<int> alive = owner;
    DLManagedTensorVersioned* const exported =
        *ExportVersioned(tensor, std::move(owner));
    EXPECT_EQ(exported->version.major, 1U);
    EXPECT_EQ(exported->version.minor, 0U);
    EXPECT_EQ(exported->flags, 0U);
    EXPECT_THAT(std::span(exported->dl_tensor.strides, 3),
                ElementsAre(4, 4, 1));
    {
      const auto imported = Import(exported);
      ASSERT_TRUE(imported.ok()) << imported.status();
      EXPECT_EQ(imported->tensor().Describe(), tensor.Describe());
      EXPECT_FALSE(alive.expired());
    }
    EXPECT_TRUE(alive.expired());
  }
  DLManagedTensorVersioned* const scalar =
      *ExportVersioned(Tensor(memory, DataType::kInt8, {}));
  EXPECT_EQ(scalar->dl_tensor.ndim, 0);
  scalar->deleter(scalar);
  EXPECT_FALSE(ExportVersioned(Tensor(memory, DataType::kInt8, {-1})).ok());
}

}  // namespace
}  // namespace muster::dataplane::dlpack
