// Group ranks as arguments, and global ones. The group's ranks 0, 1 and 2 are
// the global ranks 0, 10 and 20.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/distributed.h"
#include "muster/errors.h"
#include "muster/objects.h"

namespace muster {
namespace {

using muster::testing::LocalGroups;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Group = std::shared_ptr<ProcessGroup>;
using Ints = std::vector<int32_t>;
using Texts = std::vector<std::string>;

constexpr int kSize = 3;

TEST(GroupRanksTest, AGroupSaysHowItsLastCollectiveWent) {
  LocalGroups world(kSize);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    Ints values = {rank};
    AllReduce(values, {.group = group});
    EXPECT_EQ(group->last_run().backend, "gloo");
    EXPECT_EQ(group->last_run().algorithm, "doubling");
    Barrier({.group = group});
    EXPECT_EQ(group->last_run().algorithm, "dissemination");
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

// In shared memory the child would silently act in its parent's place.
TEST(GroupRanksTest, AForkedProcessHasNoPartInItsParentsGroup) {
  LocalGroups world(1);
  Ints values = {1};
  Barrier({.group = world.at(0)});
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      AllReduce(values, {.group = world.at(0)});
    } catch (const DistError& error) {
      const bool is_told =
          std::string(error.what()).ends_with("that forked this one off");
      status = is_told ? 33 : 1;
    }
    _exit(status);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(WEXITSTATUS(ended), 33);
  AllReduce(values, {.group = world.at(0)});
}

TEST(GroupRanksTest, AFactorIsForThePremultipliedSumAlone) {
  LocalGroups world(1);
  std::vector<float> values = {1};
  const Tensor tensor(values);
  const auto refused = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const DistError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(
      refused([&] { AllReduce(tensor, {.factor = 2, .group = world.at(0)}); }),
      "argument factor: 2 is for premul_sum alone, but the reduction is "
      "sum");
  EXPECT_EQ(values[0], 1);
  AllReduce(tensor,
            {.op = ReduceOp::kPremulSum, .factor = 2, .group = world.at(0)});
  EXPECT_EQ(values[0], 2);
}

// Bad arguments of every collective that are found before the data plane.
std::vector<std::function<void()>> MakeBadCalls(ProcessGroup& group,
                                                const Tensor& none) {
  static constexpr std::chrono::milliseconds kNever(-1);
  return {
      [&] { group.AllReduce(none, {.factor = 2}); },
      [&] { group.AllReduce(none, {.timeout = kNever}); },
      [&] { group.AllReduce(none, {.timeout = kNever, .async_op = true}); },
      [&] { group.Broadcast(none, {}); },
      [&] { group.Broadcast(none, 0, {.group_src = 0}); },
      [&] { group.Broadcast(none, {}, {.group_src = 2}); },
      [&] { group.Reduce(none, 0, {.factor = 2}); },
      [&] { group.Reduce(none, 1); },
      [&] { group.AllGather({}, none, {.timeout = kNever}); },
      [&] { group.AllGatherIntoTensor(none, none, {.timeout = kNever}); },
      [&] { group.AllGatherV(none, none, {}, {.timeout = kNever}); },
      [&] { group.Gather(none, {}, 0, {.group_dst = 0}); },
      [&] { group.Scatter(none, {}, 0, {.group_src = 0}); },
      [&] { group.ReduceScatter(none, {}, {.factor = 2}); },
      [&] { group.ReduceScatterTensor(none, none, {.factor = 2}); },
      [&] { group.ReduceScatterV(none, none, {}, {.factor = 2}); },
      [&] { group.AllToAll({}, {}, {.timeout = kNever}); },
      [&] { group.AllToAllSingle(none, none, {.timeout = kNever}); },
      [&] { group.Barrier({.timeout = kNever}); },
      [&] { group.Barrier({.device_ids = {0}}); },
  };
}

// The data plane refuses the calls of rank 1, and counts them.
TEST(GroupRanksTest, EveryRefusedCallUsesUpANumber) {
  LocalGroups world(2);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    const Tensor none;
    for (const auto& call : MakeBadCalls(*group, none)) {
      if (rank == 0) {
        EXPECT_THROW(call(), DistError);
      } else {
        Ints integers = {1};
        EXPECT_THROW(group->AllReduce(integers, {.op = ReduceOp::kPremulSum}),
                     DistError);
      }
      Ints values = {rank + 1};
      group->AllReduce(values);
      EXPECT_THAT(values, ElementsAre(3));
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(GroupRanksTest, RootsMayBeRanksInTheGroup) {
  LocalGroups world(kSize);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    Ints values = {rank};
    Broadcast(values, {}, {.group = group, .group_src = 2});
    EXPECT_THAT(values, ElementsAre(2));
    // The same rank, as a global rank.
    Broadcast(values, 10, {.group = group});
    values = {rank + 1};
    Reduce(values, {}, {.group = group, .group_dst = 1});
    EXPECT_THAT(values, ElementsAre(rank == 1 ? 6 : rank + 1));

    Ints mine = {rank};
    std::vector<Ints> lists(rank == 1 ? kSize : 0, Ints(1));
    Gather(mine, {lists.begin(), lists.end()}, {},
           {.group = group, .group_dst = 1});
    if (rank == 1) {
      EXPECT_THAT(lists, ElementsAre(Ints{0}, Ints{1}, Ints{2}));
    }
    if (rank == 1) lists = {{5}, {6}, {7}};
    Scatter(mine, {lists.begin(), lists.end()}, {},
            {.group = group, .group_src = 1});
    EXPECT_THAT(mine, ElementsAre(5 + rank));

    // Rank 0 if none is given.
    lists.assign(rank == 0 ? kSize : 0, Ints(1));
    Gather(mine, {lists.begin(), lists.end()}, {}, {.group = group});
    if (rank == 0) {
      EXPECT_THAT(lists, ElementsAre(Ints{5}, Ints{6}, Ints{7}));
    }
    Scatter(mine, {lists.begin(), lists.end()}, {}, {.group = group});
    EXPECT_THAT(mine, ElementsAre(5 + rank));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(GroupRanksTest, PeersMayBeRanksInTheGroup) {
  LocalGroups world(kSize);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    const int next = (rank + 1) % kSize;
    const int previous = (rank + 2) % kSize;
    Ints mine = {rank};
    Ints theirs = {-1};
    Work sent = Isend(mine, {}, {.group = group, .group_dst = next});
    // The result is the global rank.
    EXPECT_EQ(Recv(theirs, {}, {.group = group, .group_src = previous}),
              LocalGroups::GlobalRank(previous));
    sent.Wait();
    EXPECT_THAT(theirs, ElementsAre(previous));

    std::vector<Work> works = BatchIsendIrecv(
        {{.tensor = mine, .group = group, .group_peer = previous},
         {.op = P2POp::Kind::kIrecv,
          .tensor = theirs,
          .group = group,
          .group_peer = next}});
    for (Work& work : works) work.Wait();
    EXPECT_THAT(theirs, ElementsAre(next));

    Work receiving = Irecv(theirs, {}, {.group = group, .group_src = previous});
    Send(mine, {}, {.group = group, .group_dst = next});
    receiving.Wait();
    EXPECT_EQ(receiving.SourceRank(), LocalGroups::GlobalRank(previous));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST(GroupRanksTest, ObjectsToo) {
  LocalGroups world(kSize);
  const auto thrown = world.OnEachRank([](const Group& group, int rank) {
    Texts list = {rank == 2 ? "from 2" : ""};
    BroadcastObjectList(list, {}, {.group = group, .group_src = 2});
    EXPECT_THAT(list, ElementsAre("from 2"));

    list.clear();
    GatherObject(std::to_string(rank), rank == 1 ? &list : nullptr, {},
                 {.group = group, .group_dst = 1});
    if (rank == 1) {
      EXPECT_THAT(list, ElementsAre("0", "1", "2"));
    }

    Texts part = {""};
    ScatterObjectList(part, rank == 2 ? Texts{"a", "b", "c"} : Texts(), {},
                      {.group = group, .group_src = 2});
    EXPECT_EQ(part[0], std::string(1, static_cast<char>('a' + rank)));

    std::string object;
    if (rank == 0) {
      SendObject<std::string>("one", {}, {.group = group, .group_dst = 1});
      SendObjectList<std::string>({"two"}, {},
                                  {.group = group, .group_dst = 1});
    } else if (rank == 1) {
      EXPECT_EQ(RecvObject(object, {}, {.group = group, .group_src = 0}), 0);
      EXPECT_EQ(object, "one");
      EXPECT_EQ(RecvObjectList(part, {}, {.group = group, .group_src = 0}), 0);
      EXPECT_THAT(part, ElementsAre("two"));
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

// Each error comes before anything is sent: the group goes on.
TEST(GroupRanksTest, ExactlyOneOfBoth) {
  LocalGroups world(kSize);
  Ints value = {1};
  const auto error = [&](const auto& run) {
    return world.OnEachRank([&](const Group& group, int) { run(group); });
  };
  EXPECT_THAT(error([&](const Group& group) {
                Broadcast(value, 10, {.group = group, .group_src = 1});
              }),
              Each("Can't specify both group_rank and global_rank: src is 10 "
                   "and group_src is 1"));
  EXPECT_THAT(error([&](const Group& group) {
                Gather(value, {}, 10, {.group = group, .group_dst = 1});
              }),
              Each(HasSubstr("dst is 10 and group_dst is 1")));
  EXPECT_THAT(
      error(
          [&](const Group& group) { Broadcast(value, {}, {.group = group}); }),
      Each("Must specify global_rank or group_rank: neither src nor group_src "
           "is given"));
  EXPECT_THAT(
      error([&](const Group& group) { Send(value, {}, {.group = group}); }),
      Each(HasSubstr("neither dst nor group_dst is given")));
  EXPECT_THAT(error([&](const Group& group) {
                BatchIsendIrecv({{.tensor = value,
                                  .group = group,
                                  .group_peer = (group->rank() + 1) % kSize},
                                 {.tensor = value, .group = group}});
              }),
              Each(HasSubstr("neither peer nor group_peer is given")));
  EXPECT_THAT(error([&](const Group& group) {
                Reduce(value, {}, {.group = group, .group_dst = 3});
              }),
              Each("Group rank 3 is not part of group \"local\""));
  // -1 does not mean any rank.
  EXPECT_THAT(error([&](const Group& group) {
                Recv(value, {}, {.group = group, .group_src = -1});
              }),
              Each("Group rank -1 is not part of group \"local\""));
  // All ranks throw, as with other bad arguments of objects.
  EXPECT_THAT(error([&](const Group& group) {
                Texts list = {""};
                BroadcastObjectList(list, 0, {.group = group, .group_src = 0});
              }),
              Each(AllOf(HasSubstr("broadcast_object_list on group"),
                         HasSubstr("src is 0 and group_src is 0"))));
  EXPECT_THAT(error([&](const Group& group) {
                Ints mine = {1};
                AllReduce(mine, {.group = group});
                EXPECT_THAT(mine, ElementsAre(kSize));
              }),
              Each(IsEmpty()));
}

TEST(GroupRanksTest, TheLauncherTellsTheRankOnTheHost) {
  unsetenv("LOCAL_RANK");
  unsetenv("TORCHELASTIC_RUN_ID");
  EXPECT_FALSE(IsTorchElasticLaunched());
  EXPECT_EQ(GetNodeLocalRank(4), 4);
  EXPECT_THROW(GetNodeLocalRank(), DistError);
  setenv("LOCAL_RANK", "2", 1);
  setenv("TORCHELASTIC_RUN_ID", "run", 1);
  EXPECT_TRUE(IsTorchElasticLaunched());
  EXPECT_EQ(GetNodeLocalRank(4), 2);
  setenv("LOCAL_RANK", "two", 1);
  EXPECT_THROW(GetNodeLocalRank(4), DistError);
}

TEST(GroupRanksTest, WhoIsNoMemberDoesNothing) {
  const Group group = LocalGroups::NonMember();
  Ints value = {1};
  Broadcast(value, {}, {.group = group, .group_src = 5});
  EXPECT_EQ(Recv(value, {}, {.group = group, .group_src = 5}), -1);
  EXPECT_THAT(value, ElementsAre(1));
}

}  // namespace
}  // namespace muster
