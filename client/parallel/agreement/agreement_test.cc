#include "client/parallel/agreement/agreement.h"

#include <functional>
#include <string>
#include <vector>

#include "client/parallel/dtensor/local_mesh.h"
#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster::internal {
namespace {

using muster::testing::LocalGroups;
using muster::testing::LocalMesh;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Add = std::function<void(int rank, Agreement&)>;

// Returns the text that all ranks get, and checks its code and its culprit. The
// groups go on.
std::string GetError(const std::vector<int64_t>& shape, const Add& add,
                     int culprit,
                     StatusCode code = StatusCode::kInvalidArgument) {
  LocalMesh world(shape);
  const auto texts = world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    Agreement mine("Call");
    add(rank, mine);
    try {
      mine.Check(mesh.GetAllGroups());
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), code);
      EXPECT_THAT(error.culprit_ranks(), ElementsAre(culprit));
      Agreement("Another").Check(mesh.GetAllGroups());
      throw;
    }
  });
  EXPECT_THAT(texts, Each(texts[0]));
  return texts[0];
}

void CheckEqual(const std::vector<std::shared_ptr<ProcessGroup>>& groups) {
  Agreement mine("Call");
  mine.Add("argument names", std::string(100000, 'n'));
  mine.AddNumber("option rate", 0.1);
  mine.AddAtLeast("option period", 3, 3);
  mine.Check(groups);
}

TEST(AgreementTest, EqualArgumentsPass) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{1}, {2}, {5}, {2, 2}, {2, 1, 3}}) {
    LocalMesh world(shape);
    EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int) {
      CheckEqual(mesh.GetAllGroups());
    }),
                Each(""));
  }
}

TEST(AgreementTest, EqualArgumentsTakeOneCollective) {
  LocalGroups world(2);
  const auto texts = world.OnEachRank([&](const auto& group, int rank) {
    CheckEqual({group});
    if (rank == 1) return world.Leave(1);
    // The error names the collective by its number.
    group->Barrier();
  });
  EXPECT_THAT(texts[0], HasSubstr("barrier #2 "));
}

TEST(AgreementTest, NamesTheFirstArgumentThatDiffersAndBothValues) {
  EXPECT_EQ(GetError(
                {3},
                [](int rank, Agreement& mine) {
                  mine.Add("option a", "1");
                  mine.Add("option b", rank == 2 ? "x:\n" : "y");
                  mine.Add("option c", rank == 2 ? "3" : "4");
                },
                2),
            "Call: option b: rank 2 has x:\n, rank 0 has y");
  EXPECT_EQ(GetError(
                {4},
                [](int rank, Agreement& mine) {
                  mine.AddNumber("option rate",
                                 rank < 2 ? 0.7 : 0.70000000000000007);
                },
                2),
            "Call: option rate: rank 2 has 0.7000000000000001, rank 0 has 0.7");
}

TEST(AgreementTest, NamesWhatOneRankHasAndAnotherHasNot) {
  EXPECT_EQ(GetError(
                {2},
                [](int rank, Agreement& mine) {
                  mine.Add("tensor 0", "int8[1]");
                  if (rank == 0) mine.Add("tensor 1", "int8[2]");
                },
                1),
            "Call: rank 1 has nothing more, rank 0 has tensor 1 int8[2]");
  EXPECT_EQ(GetError(
                {2},
                [](int rank, Agreement& mine) {
                  if (rank == 1) mine.Add("tensor 0", "int8[2]");
                  mine.Add("option a", "1");
                },
                1),
            "Call: rank 1 has tensor 0 int8[2], rank 0 has option a 1");
}

TEST(AgreementTest, AFaultOfOneRankIsTheErrorOfAll) {
  const auto add = [](int rank, Agreement& mine) {
    mine.Add("argument a", std::to_string(rank));
    if (rank == 0) return;
    mine.AddFault(UnimplementedError("argument a is not on the CPU"));
    mine.AddAtLeast("option period", 0, 1);
  };
  EXPECT_EQ(GetError({3}, add, 1, StatusCode::kUnimplemented),
            "Call: rank 1: argument a is not on the CPU");
  EXPECT_EQ(
      GetError(
          {1},
          [](int, Agreement& mine) { mine.AddAtLeast("option period", 0, 1); },
          0),
      "Call: rank 0: option period must be at least 1 but was 0");
}

TEST(AgreementTest, NamesTheCallsIfTheyDiffer) {
  LocalGroups world(2);
  EXPECT_THAT(world.OnEachRank([&](const auto& group, int rank) {
    Agreement(rank == 0 ? "DataParallel" : "DiLoCo").Check({group});
  }),
              Each("rank 10 calls DiLoCo, rank 0 calls DataParallel"));
}

TEST(AgreementTest, ADifferenceIsNamedAfterFaults) {
  EXPECT_EQ(GetError(
                {4},
                [](int rank, Agreement& mine) {
                  mine.Add("option a", rank == 1 ? "1" : "2");
                  if (rank == 3) mine.AddFault(OutOfRangeError("bad"));
                },
                3, StatusCode::kOutOfRange),
            "Call: rank 3: bad");
}

TEST(AgreementTest, AMeshInAnyOrderHasOneError) {
  LocalMesh world({2, 2}, {3, 1, 0, 2});
  EXPECT_THAT(world.OnEachRank([&](const DeviceMesh& mesh, int rank) {
    Agreement mine("Call");
    mine.Add("option a", std::to_string(rank));
    mine.Check(mesh.GetAllGroups());
  }),
              Each("Call: option a: rank 1 has 1, rank 0 has 0"));
}

TEST(AgreementTest, AMeshHasOneErrorOnAllRanks) {
  for (int bad = 1; bad < 8; ++bad) {
    const auto differ = [&](int rank, Agreement& mine) {
      mine.Add("option a", rank == bad ? "1" : "2");
    };
    EXPECT_EQ(
        GetError({2, 2, 2}, differ, bad),
        "Call: option a: rank " + std::to_string(bad) + " has 1, rank 0 has 2");
    const auto fault = [&](int rank, Agreement& mine) {
      if (rank >= bad) mine.AddFault(OutOfRangeError("bad"));
    };
    const std::string text =
        GetError({2, 2, 2}, fault, bad, StatusCode::kOutOfRange);
    EXPECT_EQ(text, "Call: rank " + std::to_string(bad) + ": bad");
  }
}

}  // namespace
}  // namespace muster::internal
