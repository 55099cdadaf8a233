#include "muster/device_mesh.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// A fake default group for meshes; only records the groups.
class Ranks {
 public:
  explicit Ranks(int size) : size_(size) {}

  MeshWorld World(int rank) {
    return {.rank = rank,
            .size = size_,
            .group = world_,
            .make_groups =
                [this, rank](const MeshGroups& groups) {
                  made.push_back(groups);
                  for (const std::vector<int>& ranks : groups.ranks) {
                    for (const int member : ranks) {
                      if (member == rank) return MakeGroup(ranks);
                    }
                  }
                  return none_;
                },
            .ranks_of =
                [this](const std::shared_ptr<ProcessGroup>& group) {
                  return group == none_ ? std::vector<int>() : GetRanks(group);
                }};
  }

  std::vector<int> GetRanks(const std::shared_ptr<ProcessGroup>& group) {
    if (group == world_) return {-1};
    return ranks_.at(group);
  }

  std::shared_ptr<ProcessGroup> MakeGroup(const std::vector<int>& ranks) {
    auto group = std::make_shared<ProcessGroup>(nullptr);
    ranks_[group] = ranks;
    return group;
  }

  const std::shared_ptr<ProcessGroup>& world() const { return world_; }
  const std::shared_ptr<ProcessGroup>& none() const { return none_; }

  // The recorded calls.
  std::vector<MeshGroups> made;

 private:
  const int size_;
  const std::shared_ptr<ProcessGroup> world_ =
      std::make_shared<ProcessGroup>(nullptr);
  const std::shared_ptr<ProcessGroup> none_ =
      std::make_shared<ProcessGroup>(nullptr);
  std::map<std::shared_ptr<ProcessGroup>, std::vector<int>> ranks_;
};

std::string CatchError(const std::function<void()>& function) {
  try {
    function();
  } catch (const DistError& error) {
    EXPECT_EQ(error.status().code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

const DeviceMeshOptions kTwo = {.dim_names = {"dp", "tp"}};
const DeviceMeshOptions kThree = {.dim_names = {"pp", "dp", "tp"}};

TEST(DeviceMeshTest, EachDimensionHasTheGroupsOfItsLines) {
  Ranks ranks(8);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(5), "cpu", {2, 4}, kTwo);
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.size(1), 4);
  EXPECT_THAT(mesh.shape(), ElementsAre(2, 4));
  EXPECT_EQ(mesh.device_type(), "cpu");
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(mesh.GetCoordinate().value(), ElementsAre(1, 1));
  EXPECT_THAT(ranks.GetRanks(mesh.GetGroup("dp")), ElementsAre(1, 5));
  EXPECT_THAT(ranks.GetRanks(mesh.GetGroup(1)), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.GetAllGroups(),
              ElementsAre(mesh.GetGroup(0), mesh.GetGroup("tp")));
  EXPECT_EQ(mesh.GetRank(), 5);
  EXPECT_EQ(mesh.GetLocalRank("dp"), 1);
  EXPECT_EQ(mesh.GetLocalRank(1), 1);
  ASSERT_EQ(ranks.made.size(), 2U);
  EXPECT_THAT(ranks.made[0].ranks,
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5),
                          ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_EQ(ranks.made[0].description, "mesh_dp");
  EXPECT_EQ(ranks.made[0].backend, "");
  EXPECT_EQ(mesh.ToString(), "DeviceMesh((dp=2, tp=4), cpu)");
}

TEST(DeviceMeshTest, TheGroupOfAllRanksIsTheDefaultGroup) {
  Ranks ranks(4);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(2), "cpu", {4});
  EXPECT_EQ(mesh.GetGroup(), ranks.world());
  EXPECT_EQ(mesh.GetLocalRank(), 2);
  EXPECT_THAT(ranks.made, IsEmpty());
  // Not if a backend is given, and not for a part of the ranks.
  DeviceMesh::Init(ranks.World(2), "cpu", {4},
                   {.backend_override = {{"0", "mpi"}}});
  EXPECT_EQ(ranks.made.at(0).backend, "mpi");
  const DeviceMesh part = DeviceMesh::Init(ranks.World(2), "cpu", {3});
  EXPECT_THAT(ranks.GetRanks(part.GetGroup()), ElementsAre(0, 1, 2));
}

TEST(DeviceMeshTest, AnArrayGivesThePlaces) {
  Ranks ranks(8);
  const DeviceMesh mesh =
      DeviceMesh::FromArray(ranks.World(3), "cpu", {2, 2}, {7, 3, 5, 1}, kTwo);
  EXPECT_THAT(mesh.GetCoordinate().value(), ElementsAre(0, 1));
  EXPECT_THAT(ranks.GetRanks(mesh.GetGroup("dp")), ElementsAre(3, 1));
  EXPECT_THAT(ranks.GetRanks(mesh.GetGroup("tp")), ElementsAre(7, 3));
  // The group numbers its ranks in ascending order.
  EXPECT_EQ(mesh.GetLocalRank("tp"), 0);
  EXPECT_THAT(mesh["dp"].ranks(), ElementsAre(3, 1));
}

TEST(DeviceMeshTest, ARankThatIsNotInTheMeshTakesPartInMakingIt) {
  Ranks ranks(8);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(6), "cpu", {2, 2}, kTwo);
  EXPECT_EQ(ranks.made.size(), 2U);
  EXPECT_EQ(mesh.GetGroup("dp"), ranks.none());
  EXPECT_EQ(mesh.GetLocalRank("dp"), -1);
  EXPECT_EQ(mesh.GetCoordinate(), std::nullopt);
  EXPECT_THAT(mesh.ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THROW(mesh["dp"].ranks(), DistError);
}

TEST(DeviceMeshTest, ASliceSharesTheGroups) {
  Ranks ranks(24);
  const DeviceMesh mesh =
      DeviceMesh::Init(ranks.World(17), "cpu", {2, 3, 4}, kThree);
  const size_t made = ranks.made.size();
  const DeviceMesh outer = mesh.Slice({"pp", "tp"});
  EXPECT_THAT(outer.dim_names(), ElementsAre("pp", "tp"));
  EXPECT_THAT(outer.shape(), ElementsAre(2, 4));
  // Rank 17 is at (1, 1, 1).
  EXPECT_THAT(outer.ranks(), ElementsAre(4, 5, 6, 7, 16, 17, 18, 19));
  EXPECT_THAT(outer.GetCoordinate().value(), ElementsAre(1, 1));
  EXPECT_EQ(outer.GetGroup("tp"), mesh.GetGroup("tp"));
  const DeviceMesh tp = outer["tp"];
  EXPECT_EQ(tp, mesh["tp"]);
  EXPECT_EQ(tp.GetGroup(), mesh.GetGroup("tp"));
  EXPECT_EQ(tp.GetLocalRank(), 1);
  EXPECT_EQ(mesh.Slice({"pp", "dp", "tp"}), mesh);
  EXPECT_FALSE(outer == mesh);
  EXPECT_EQ(ranks.made.size(), made);
}

TEST(DeviceMeshTest, SlicesThatCannotBe) {
  Ranks ranks(8);
  const DeviceMesh mesh =
      DeviceMesh::Init(ranks.World(0), "cpu", {2, 2, 2}, kThree);
  EXPECT_EQ(CatchError([&] { mesh["cp"]; }),
            "Invalid mesh_dim_names [\"cp\"] specified. Valid mesh_dim_names "
            "are [\"pp\", \"dp\", \"tp\"]");
  EXPECT_EQ(CatchError([&] {
              mesh.Slice({"tp", "dp"});
            }),
            "Invalid mesh_dim_names [\"tp\", \"dp\"] specified. Mesh dim "
            "indices should be in ascending order.");
  EXPECT_EQ(CatchError([&] {
              mesh.Slice({"dp", "dp"});
            }),
            "Slicing overlapping dim_names [\"dp\", \"dp\"] is not allowed.");
  EXPECT_THAT(CatchError([&] { mesh.Slice({}); }), StartsWith("Slicing"));
  const DeviceMesh unnamed = DeviceMesh::Init(ranks.World(0), "cpu", {2, 2});
  EXPECT_EQ(CatchError([&] { unnamed["dp"]; }),
            "Cannot slice a DeviceMesh without mesh_dim_names!");
  const DeviceMesh flat = DeviceMesh::Init(ranks.World(0), "cpu", {1, 4}, kTwo);
  EXPECT_THAT(CatchError([&] {
                flat.Slice({"tp", "dp"});
              }),
              HasSubstr("ascending order"));
}

TEST(DeviceMeshTest, FlattenMakesOneDimensionThatTheRootKnows) {
  Ranks ranks(16);
  const DeviceMesh mesh =
      DeviceMesh::Init(ranks.World(13), "cpu", {2, 2, 4}, kThree);
  const DeviceMesh flat = mesh.Slice({"pp", "dp"}).Flatten();
  EXPECT_THAT(flat.dim_names(), ElementsAre("pp_dp"));
  EXPECT_THAT(ranks.GetRanks(flat.GetGroup()), ElementsAre(1, 5, 9, 13));
  EXPECT_EQ(flat.GetLocalRank(), 3);
  EXPECT_THAT(flat.GetCoordinate().value(), ElementsAre(3));
  EXPECT_EQ(ranks.made.back().description, "mesh_pp_dp");
  const size_t made = ranks.made.size();
  EXPECT_EQ(mesh.Slice({"pp", "dp"}).Flatten("pp_dp"), flat);
  EXPECT_EQ(mesh["pp_dp"], flat);
  EXPECT_THAT(mesh.Slice({"pp_dp", "tp"}).ranks(), mesh.ranks());
  EXPECT_EQ(mesh.GetGroup("pp_dp"), flat.GetGroup());
  EXPECT_EQ(mesh.GetLocalRank("pp_dp"), 3);
  EXPECT_EQ(mesh["tp"].Flatten("tp"), mesh["tp"]);
  EXPECT_EQ(ranks.made.size(), made);
  // Non-adjacent dimensions.
  const DeviceMesh ends = mesh.Slice({"pp", "tp"}).Flatten("ends");
  EXPECT_THAT(ranks.GetRanks(ends.GetGroup()),
              ElementsAre(4, 5, 6, 7, 12, 13, 14, 15));
  EXPECT_EQ(ends.GetLocalRank(), 5);
  // All dimensions.
  EXPECT_EQ(mesh.Flatten("all").GetGroup(), ranks.world());
}

TEST(DeviceMeshTest, FlatteningsThatCannotBe) {
  Ranks ranks(8);
  const DeviceMesh mesh =
      DeviceMesh::Init(ranks.World(0), "cpu", {2, 2, 2}, kThree);
  EXPECT_EQ(CatchError([&] {
              mesh.Slice({"pp", "dp"}).Flatten("tp");
            }),
            "tp already exists for submesh of the DeviceMesh((pp=2, dp=2), "
            "cpu). The mesh_dim_names of submesh and flattened mesh are "
            "[\"pp\", \"dp\", \"tp\"]. Please specify another valid "
            "mesh_dim_name");
  mesh.Slice({"pp", "dp"}).Flatten("x");
  EXPECT_EQ(CatchError([&] {
              mesh.Slice({"dp", "tp"}).Flatten("x");
            }),
            "Flatten mesh with mesh_dim_name x has been created before, Please "
            "specify another valid mesh_dim_name.");
  EXPECT_EQ(CatchError([&] {
              mesh.Slice({"x", "dp"});
            }),
            "Slicing overlapping dim_names [\"x\", \"dp\"] is not allowed.");
  EXPECT_THAT(CatchError([&] {
                mesh.Slice({"tp", "x"});
              }),
              HasSubstr("ascending order"));
  const DeviceMesh unnamed = DeviceMesh::Init(ranks.World(0), "cpu", {2, 2});
  EXPECT_EQ(CatchError([&] { unnamed.Flatten("x"); }),
            "Cannot flatten a DeviceMesh without mesh_dim_names!");
}

TEST(DeviceMeshTest, UnflattenSplitsADimension) {
  Ranks ranks(12);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(7), "cpu", {2, 6}, kTwo);
  const DeviceMesh more = mesh.Unflatten(
      "tp", {2, 3},
      {.dim_names = {"cp", "ep"}, .backend_override = {{"ep", "mpi"}}});
  EXPECT_THAT(more.dim_names(), ElementsAre("dp", "cp", "ep"));
  EXPECT_THAT(more.shape(), ElementsAre(2, 2, 3));
  EXPECT_THAT(more.ranks(), mesh.ranks());
  EXPECT_EQ(more.GetGroup("dp"), mesh.GetGroup("dp"));
  EXPECT_THAT(ranks.GetRanks(more.GetGroup("cp")), ElementsAre(7, 10));
  EXPECT_THAT(ranks.GetRanks(more.GetGroup("ep")), ElementsAre(6, 7, 8));
  EXPECT_EQ(ranks.made.back().backend, "mpi");
  EXPECT_THAT(more.Slice({"dp", "ep"}).ranks(), ElementsAre(0, 1, 2, 6, 7, 8));
}

TEST(DeviceMeshTest, UnflatteningsThatCannotBe) {
  Ranks ranks(8);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(0), "cpu", {2, 4}, kTwo);
  const size_t made = ranks.made.size();
  EXPECT_EQ(CatchError([&] { mesh.Unflatten(2, {1}, {.dim_names = {"x"}}); }),
            "dim 2 specified in `_unflatten` is out of range 2");
  EXPECT_EQ(CatchError([&] { mesh.Unflatten("x", {1}, {.dim_names = {"y"}}); }),
            "dim x specified in `_unflatten` is not in [\"dp\", \"tp\"]");
  EXPECT_THAT(CatchError([&] {
                mesh.Unflatten(1, {2, 2}, {.dim_names = {"x"}});
              }),
              StartsWith("mesh_dim_names must have same length as mesh_sizes "
                         "in _unflatten!"));
  EXPECT_THAT(CatchError([&] {
                mesh.Unflatten(1, {2, 3}, {.dim_names = {"x", "y"}});
              }),
              HasSubstr("their product must equal it"));
  EXPECT_THAT(CatchError([&] {
                mesh.Unflatten(1, {2, 2}, {.dim_names = {"dp", "y"}});
              }),
              HasSubstr("Each mesh_dim_name must be unique."));
  EXPECT_EQ(ranks.made.size(), made);
}

TEST(DeviceMeshTest, ConcatenateJoinsSlicesOfOneMesh) {
  Ranks ranks(8);
  const DeviceMesh mesh =
      DeviceMesh::Init(ranks.World(3), "cpu", {2, 2, 2}, kThree);
  const DeviceMesh both = DeviceMesh::Concatenate({mesh["pp"], mesh["tp"]});
  EXPECT_EQ(both, mesh.Slice({"pp", "tp"}));
  EXPECT_EQ(both.GetGroup("tp"), mesh.GetGroup("tp"));
  const DeviceMesh turned = DeviceMesh::Concatenate({mesh["tp"], mesh["pp"]});
  EXPECT_THAT(turned.ranks(), ElementsAre(2, 6, 3, 7));
  EXPECT_THAT(turned.GetCoordinate().value(), ElementsAre(1, 0));
  EXPECT_THAT(
      CatchError([&] {
        DeviceMesh::Concatenate({mesh["pp"], mesh["pp"]});
      }),
      StartsWith("Cannot concatenate overlapping meshes: [DeviceMesh((pp=2"));
  const DeviceMesh other =
      DeviceMesh::Init(ranks.World(3), "cpu", {2, 2, 2}, kThree);
  EXPECT_THAT(
      CatchError([&] {
        DeviceMesh::Concatenate({mesh["pp"], other["tp"]});
      }),
      StartsWith("Cannot concatenate DeviceMeshes derived from different"));
}

TEST(DeviceMeshTest, GroupsThatAreThereMakeAMesh) {
  Ranks ranks(8);
  const MeshGroup row{ranks.MakeGroup({4, 5, 6, 7}), {4, 5, 6, 7}};
  const DeviceMesh line =
      DeviceMesh::FromGroup(ranks.World(5), row, "cpu", std::nullopt, {"tp"});
  EXPECT_THAT(line.ranks(), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(line.GetGroup(), row.group);
  EXPECT_EQ(line.GetLocalRank(), 1);
  // The group has its ranks.
  EXPECT_THAT(DeviceMesh::FromGroup(ranks.World(5), {.group = row.group}, "cpu")
                  .ranks(),
              ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(CatchError([&] {
              DeviceMesh::FromGroup(ranks.World(5), row, "cpu",
                                    std::vector<int>{4, 5});
            }),
            "Invalid mesh [4, 5] for ProcessGroup with ranks [4, 5, 6, 7]");
  EXPECT_EQ(
      CatchError([&] {
        DeviceMesh::FromGroup(ranks.World(5), {row.group, {4, 5, 6}}, "cpu");
      }),
      "MeshGroup::ranks are [4, 5, 6], but the ProcessGroup has ranks "
      "[4, 5, 6, 7]");
  EXPECT_EQ(CatchError([&] {
              DeviceMesh::FromGroup(ranks.World(5), {nullptr, {4, 5}}, "cpu");
            }),
            "null was given for the ProcessGroup with ranks [4, 5]");
  const MeshGroup column{ranks.MakeGroup({1, 5}), {1, 5}};
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const DeviceMesh mesh = DeviceMesh::FromGroups(
      ranks.World(5), {column, row}, "cpu", {2, 4}, all, {"dp", "tp"});
  EXPECT_EQ(mesh.GetGroup("dp"), column.group);
  EXPECT_THAT(ranks.made, IsEmpty());
  const auto make = [&](const std::vector<MeshGroup>& groups,
                        const std::vector<int>& places,
                        const std::vector<std::string>& names) {
    return CatchError([&] {
      DeviceMesh::FromGroups(ranks.World(5), groups, "cpu", {2, 4}, places,
                             names);
    });
  };
  EXPECT_EQ(make({}, all, {"dp", "tp"}),
            "Expect at least one ProcessGroup to be specified");
  EXPECT_EQ(make({column, row}, {}, {"dp", "tp"}),
            "Must pass mesh if passing multiple ProcessGroups");
  EXPECT_EQ(make({column, row}, all, {}),
            "Must pass mesh_dim_names if passing multiple ProcessGroups");
  EXPECT_THAT(
      make({row}, all, {"dp", "tp"}),
      StartsWith("Expect mesh with ndim equal to number of "
                 "ProcessGroups but got mesh [0, 1, 2, 3, 4, 5, 6, 7]"));
  EXPECT_EQ(make({row, column}, all, {"dp", "tp"}),
            "Invalid mesh [1, 5] for ProcessGroup with ranks [4, 5, 6, 7]");
}

TEST(DeviceMeshTest, BadArguments) {
  Ranks ranks(8);
  const auto init = [&](const std::string& type,
                        const std::vector<int64_t>& shape,
                        const DeviceMeshOptions& options) {
    return CatchError(
        [&] { DeviceMesh::Init(ranks.World(0), type, shape, options); });
  };
  EXPECT_EQ(init("cpu", {2, 4}, {.dim_names = {"dp", "dp"}}),
            "Each mesh_dim_name must be unique. Found repeated mesh_dim_name "
            "in mesh_dim_names [\"dp\", \"dp\"]");
  EXPECT_EQ(init("cpu", {8}, kTwo),
            "mesh_shape and mesh_dim_names should have same length! Found "
            "len(mesh_dim_names): 2 and len(mesh_shape): 1");
  MeshWorld nothing = ranks.World(0);
  nothing.make_groups = nullptr;
  EXPECT_EQ(CatchError([&] { DeviceMesh::Init(nothing, "cpu", {8}, {}); }),
            "DeviceMesh: MeshWorld::make_groups is missing");
  EXPECT_EQ(init("tpu", {8}, {}),
            "unknown device type \"tpu\", there are cpu, cuda");
  EXPECT_THAT(init("cuda:0", {8}, {}),
              StartsWith("Device type with index is not supported but got "
                         "\"cuda:0\""));
  EXPECT_EQ(init("cpu", {3, 3}, kTwo),
            "Mesh should not be bigger than default world size 8, but found 9 "
            "ranks!");
  EXPECT_THAT(init("cpu", {0}, {}), HasSubstr("positive sizes"));
  EXPECT_THAT(init("cpu", {}, {}), HasSubstr("mesh_shape ()"));
  EXPECT_THAT(init("cpu", {int64_t{1} << 62, 4}, {}), HasSubstr("too large"));
  EXPECT_THAT(init("cpu", {2}, {.dim_names = {""}}), HasSubstr("empty name"));
  EXPECT_EQ(init("cpu", {8}, {.backend_override = {{"x", "gloo"}}}),
            "Found invalid keys in backend_override: got \"x\", expected an "
            "index in [0, 1) or one of []");
  EXPECT_EQ(init("cpu", {8},
                 {.dim_names = {"dp"},
                  .backend_override = {{"0", "gloo"}, {"dp", "mpi"}}}),
            "Found redundant dim index 0 and name \"dp\" in backend_override");
  const auto array = [&](const std::vector<int>& places) {
    return CatchError(
        [&] { DeviceMesh::FromArray(ranks.World(0), "cpu", {2}, places); });
  };
  EXPECT_EQ(array({0, 0}), "mesh has rank 0 twice");
  EXPECT_EQ(array({0, 8}), "mesh has rank 8, which is not in [0, 8)");
  EXPECT_EQ(array({0}), "mesh has 1 ranks, but its mesh_shape has 2");
  EXPECT_THAT(ranks.made, IsEmpty());
}

TEST(DeviceMeshTest, ADimensionMustBeNamedWhenThereAreSeveral) {
  Ranks ranks(8);
  const DeviceMesh mesh = DeviceMesh::Init(ranks.World(0), "cpu", {2, 4}, kTwo);
  const std::string expected =
      "Found the DeviceMesh have 2 dimensions. Optional kwarg `mesh_dim` needs "
      "to be specified when device_mesh.ndim > 1.";
  EXPECT_EQ(CatchError([&] { mesh.GetGroup(); }), expected);
  EXPECT_EQ(CatchError([&] { mesh.GetLocalRank(); }), expected);
  EXPECT_EQ(CatchError([&] { mesh.GetGroup(2); }),
            "mesh_dim 2 must be in [0, 2)");
  EXPECT_EQ(CatchError([&] { mesh.GetGroup("cp"); }),
            "Mesh dimension 'cp' does not exist. Available mesh dimensions "
            "are: mesh_dim_names=[\"dp\", \"tp\"]");
  const DeviceMesh unnamed = DeviceMesh::Init(ranks.World(0), "cpu", {2, 4});
  EXPECT_EQ(CatchError([&] { unnamed.GetGroup("dp"); }),
            "No `mesh_dim_names` found.");
}

}  // namespace
}  // namespace muster
