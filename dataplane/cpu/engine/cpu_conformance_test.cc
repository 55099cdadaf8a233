#include <cstdint>
#include <vector>

#include "dataplane/communicator.h"
#include "dataplane/testing/backend_conformance.h"
#include "dataplane/testing/local_world.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::dataplane::testing {
namespace {

using ::testing::Combine;
using ::testing::Values;
using ::testing::ValuesIn;

INSTANTIATE_TEST_SUITE_P(Gloo, ReductionConformance,
                         Combine(Values("gloo"), ValuesIn(kWorldSizes),
                                 ValuesIn(kDataTypes)));

INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
                         Combine(Values("gloo"), ValuesIn(kWorldSizes)));

INSTANTIATE_TEST_SUITE_P(Gloo, FailureConformance,
                         Combine(Values("gloo"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Gloo, PointToPointConformance,
                         Combine(Values("gloo"), Values(2, 3, 4, 8)));

INSTANTIATE_TEST_SUITE_P(Gloo, DisagreementConformance,
                         Combine(Values("gloo"), Values(2, 3, 5)));

INSTANTIATE_TEST_SUITE_P(Gloo, ProgramConformance,
                         Combine(Values("gloo"), Values(1, 2, 3, 4, 5)));

// Only one rank calls: the refusal needs no communication.
TEST(GlooTest, ReductionsOfFloat8AreRefusedAtOnce) {
  LocalWorld world({.backend = "gloo", .world_size = 2});
  uint8_t element = 0;
  for (const DataType type : kFloat8Types) {
    EXPECT_EQ(world.at(0)
                  .Start({.kind = CollectiveKind::kAllReduce,
                          .tensors = {Tensor(&element, type, {1})}})
                  ->Wait()
                  .code(),
              StatusCode::kUnimplemented);
    const auto sent =
        world.at(0).Start({.kind = CollectiveKind::kSend,
                           .inputs = {Tensor(&element, type, {1})},
                           .peer = 1});
    uint8_t got = 1;
    EXPECT_EQ(world.at(1)
                  .Start({.kind = CollectiveKind::kRecv,
                          .outputs = {Tensor(&got, type, {1})},
                          .peer = 0})
                  ->Wait(),
              OkStatus());
    EXPECT_EQ(sent->Wait(), OkStatus());
    EXPECT_EQ(got, 0);
  }
}

// The sender's system still has much of it when the sender leaves.
TEST(GlooTest, CompleteSendsArriveAfterTheSenderHasLeft) {
  LocalWorld world({.backend = "gloo", .world_size = 2});
  constexpr int kMessages = 64;
  std::vector<float> values(8192);
  for (int i = 0; i < kMessages; ++i) {
    values.assign(values.size(), static_cast<float>(i));
    ASSERT_EQ(world.at(0)
                  .Start({.kind = CollectiveKind::kSend,
                          .inputs = {Tensor(values)},
                          .peer = 1})
                  ->Wait(),
              OkStatus());
  }
  world.Destroy(0);
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(world.at(1)
                  .Start({.kind = CollectiveKind::kRecv,
                          .outputs = {Tensor(values)},
                          .peer = 0})
                  ->Wait(),
              OkStatus());
    ASSERT_EQ(values, std::vector<float>(values.size(), static_cast<float>(i)));
  }
}

}  // namespace
}  // namespace muster::dataplane::testing
