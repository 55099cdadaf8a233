#include "dataplane/failed_call.h"

#include "dataplane/culprit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {
namespace {

TEST(FailedCallTest, IsInThePayloadBesideTheText) {
  for (const auto& [kind, label, is_point_to_point] :
       {std::tuple(CollectiveKind::kAllReduce, "all_reduce #7", false),
        std::tuple(CollectiveKind::kRecv, "recv #7", true)}) {
    Collective collective;
    collective.kind = kind;
    collective.sequence = 7;
    Status failure = UnavailableError("rank 2 is gone");
    SetCulpritRank(failure, 2);
    EXPECT_EQ(FindFailedCall(failure), std::nullopt);
    const FailedCall call = FailedCall::Of(collective);
    const Status labelled = Labelled(call, "a: b", failure);
    EXPECT_EQ(labelled.message(),
              std::string(label) + " on group \"a: b\": rank 2 is gone");
    EXPECT_TRUE(IsUnavailable(labelled));
    EXPECT_EQ(CulpritRank(labelled), 2);
    EXPECT_EQ(FindFailedCall(labelled), call);
    EXPECT_EQ(call.label, label);
    EXPECT_EQ(call.is_point_to_point, is_point_to_point);
  }
}

TEST(FailedCallTest, AnEmptyPayloadSaysNothing) {
  Status failure = UnavailableError("all_reduce #1: it is gone");
  failure.SetPayload(kFailedCallUrl, "");
  EXPECT_EQ(FindFailedCall(failure), std::nullopt);
}

}  // namespace
}  // namespace muster::dataplane
