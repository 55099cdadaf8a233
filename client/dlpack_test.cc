// Tensors of other libraries in collectives. dataplane/dlpack_test covers
// imports.

#include "muster/dlpack.h"

#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DlpackTest, ATensorGoesOutAndComesBackIntoACollective) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([](const std::shared_ptr<ProcessGroup>& group,
                                  int rank) {
    auto values = std::make_shared<std::vector<float>>(3, rank + 1.0F);
    const std::weak_ptr<std::vector<float>> alive = values;
    dlpack::DLManagedTensor* const managed = ToDLPack(*values, values);
    values = nullptr;
    {
      const dlpack::Imported imported = FromDLPack(managed);
      group->AllReduce(imported.tensor());
      EXPECT_THAT(*alive.lock(), ElementsAre(3, 3, 3));
    }
    EXPECT_TRUE(alive.expired());

    values = std::make_shared<std::vector<float>>(3, rank + 1.0F);
    {
      const dlpack::Imported imported =
          FromDLPack(ToDLPackVersioned(*values, values));
      group->AllReduce(imported.tensor());
    }
    EXPECT_THAT(*values, ElementsAre(3, 3, 3));
    EXPECT_EQ(values.use_count(), 1);
  }),
              Each(IsEmpty()));
}

TEST(DlpackTest, ErrorsAreExceptions) {
  std::vector<float> values(3);
  dlpack::DLManagedTensor* const managed = ToDLPack(values);
  managed->dl_tensor.dtype.lanes = 2;
  EXPECT_THROW(FromDLPack(managed), DistError);
  managed->deleter(managed);
  EXPECT_THROW(ToDLPack(Tensor(values.data(), {-1})), DistError);
  EXPECT_THROW(ToDLPackVersioned(Tensor(values.data(), {-1})), DistError);
  dlpack::DLManagedTensorVersioned* const versioned = ToDLPackVersioned(values);
  versioned->flags = dlpack::kReadOnly;
  EXPECT_THROW(FromDLPack(versioned), DistError);
  FromDLPack(versioned, {.allow_read_only = true});
}

}  // namespace
}  // namespace muster
