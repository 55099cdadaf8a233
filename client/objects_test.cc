// Collectives of objects among ranks that are threads.

#include "muster/objects.h"

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "client/testing/local_groups.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/errors.h"
#include "muster/object_messages.h"
#include "muster/v1/membership.pb.h"

namespace muster {
namespace {

// A type without serialization functions; it has an ObjectCodec.
struct Hex {
  int value = 0;
};

}  // namespace

template <>
struct ObjectCodec<Hex> {
  static bool ToBytes(const Hex& object, std::string& bytes) {
    std::ostringstream out;
    out << std::hex << object.value;
    bytes = out.str();
    return true;
  }
  static bool FromBytes(const std::string& bytes, Hex& object) {
    std::istringstream in(bytes);
    return static_cast<bool>(in >> std::hex >> object.value);
  }
};

namespace {

using muster::testing::LocalGroups;
using ::testing::Combine;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Values;

using Group = std::shared_ptr<ProcessGroup>;
using Texts = std::vector<std::string>;

// Returns bytes of every value, of a different size on each rank; some are
// empty.
std::string Text(int rank, int number = 0) {
  const size_t sizes[] = {3, 0, 100'000, 1, 3'000'000, 40'000, 7, 256};
  std::string text(sizes[static_cast<size_t>(rank + number) % 8], '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank));
  }
  return text;
}

v1::Seat Message(int rank) {
  v1::Seat seat;
  seat.set_rank(rank);
  seat.set_host("trainer-" + std::to_string(rank));
  return seat;
}

// Refuses to be serialized or parsed.
struct Stubborn {
  bool SerializeToString(std::string* out) const {
    *out = "x";
    return !mute;
  }
  bool ParseFromString(const std::string&) { return false; }
  bool mute = false;
};

// Serializes to nothing, and parses only that.
struct Picky {
  bool SerializeToString(std::string* out) const {
    out->clear();
    return true;
  }
  bool ParseFromString(const std::string& bytes) { return bytes.empty(); }
};

// Groups of CUDA tensors use a fake CUDA and NCCL.
const bool g_has_devices = [] {
  for (const char* const name :
       {"MUSTER_CUDA_LIBRARY", "MUSTER_NCCL_LIBRARY"}) {
    setenv(name, "dataplane/testing/libhost_devices.so", /*overwrite=*/1);
  }
  setenv("MUSTER_HOST_DEVICES", "3", /*overwrite=*/1);
  return true;
}();

// The number of ranks, and their backend.
class ObjectsTest
    : public ::testing::TestWithParam<std::tuple<int, std::string>> {
 protected:
  int size() const { return std::get<0>(GetParam()); }
  int last() const { return LocalGroups::GlobalRank(size() - 1); }
  LocalGroups World() const {
    return LocalGroups(size(), std::chrono::seconds(60),
                       std::get<1>(GetParam()));
  }
};

TEST_P(ObjectsTest, EveryVerbDoesWhatItsNameSays) {
  LocalGroups world = World();
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    Texts list = {"", "", ""};
    if (rank == size() - 1) list = {Text(0), Text(1), Text(2)};
    BroadcastObjectList(list, last(), {.group = group});
    EXPECT_EQ(list, (Texts{Text(0), Text(1), Text(2)}));

    Texts expected;
    Texts for_all;
    for (int r = 0; r < size(); ++r) {
      expected.push_back(Text(r));
      for_all.push_back(Text(r, 5));
    }
    list = {"what was there"};
    AllGatherObject(list, Text(rank), {.group = group});
    EXPECT_EQ(list, expected);

    list.clear();
    GatherObject(Text(rank), rank == size() - 1 ? &list : nullptr, last(),
                 {.group = group});
    EXPECT_EQ(list, rank == size() - 1 ? expected : Texts());

    list = {"", "stays"};
    ScatterObjectList(list, rank == size() - 1 ? for_all : Texts(), last(),
                      {.group = group});
    EXPECT_EQ(list, (Texts{Text(rank, 5), "stays"}));
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST_P(ObjectsTest, TypesWithACodecOfTheirOwnGo) {
  LocalGroups world = World();
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<Hex> list;
    AllGatherObject(list, Hex{rank + 10}, {.group = group});
    ASSERT_EQ(list.size(), static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) EXPECT_EQ(list[r].value, r + 10);
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST_P(ObjectsTest, MessagesGoAsTheyAre) {
  LocalGroups world = World();
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    std::vector<v1::Seat> list;
    AllGatherObject(list, Message(rank), {.group = group});
    ASSERT_EQ(list.size(), static_cast<size_t>(size()));
    for (int r = 0; r < size(); ++r) EXPECT_EQ(list[r].rank(), r);

    list.assign(2, v1::Seat());
    if (rank == 0) list = {Message(7), Message(8)};
    BroadcastObjectList(list, 0, {.group = group});
    EXPECT_EQ(list[1].host(), "trainer-8");

    std::vector<v1::Seat> gathered;
    GatherObject(Message(rank), rank == 0 ? &gathered : nullptr, 0,
                 {.group = group});
    EXPECT_EQ(gathered.size(), rank == 0 ? static_cast<size_t>(size()) : 0);

    list.assign(1, v1::Seat());
    ScatterObjectList(list, gathered, 0, {.group = group});
    EXPECT_EQ(list[0].rank(), rank);
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST_P(ObjectsTest, WhatOneSendsAnotherReceives) {
  LocalGroups world = World();
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    if (size() == 1) return;
    Texts list(3);
    if (rank == 0) {
      SendObjectList<std::string>({Text(2), "", Text(4)}, 10, {.group = group});
    } else if (rank == 1) {
      EXPECT_EQ(RecvObjectList(list, 0, {.group = group}), 0);
      EXPECT_EQ(list, (Texts{Text(2), "", Text(4)}));
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, ObjectsTest,
                         Combine(Values(1, 2, 3, 4, 7), Values("gloo")));
INSTANTIATE_TEST_SUITE_P(OnDevices, ObjectsTest,
                         Combine(Values(1, 3), Values("cuda:gloo", "nccl")));

class ObjectsP2PTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Gloo, ObjectsP2PTest, Values("gloo", "cuda:gloo"));

TEST_P(ObjectsP2PTest, SendsMeetReceivesByRankAndTag) {
  LocalGroups world(3, std::chrono::seconds(60), GetParam());
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    if (rank == 0) {
      SendObject(Message(5), 20, {.tag = 3, .group = group});
      SendObjectList<std::string>({Text(2), "", Text(4)}, 20, {.group = group});
      SendObjectList<std::string>({}, 20, {.group = group});
    } else if (rank == 2) {
      Texts list(3);
      EXPECT_EQ(RecvObjectList(list, std::nullopt, {.group = group}), 0);
      EXPECT_EQ(list, (Texts{Text(2), "", Text(4)}));
      list.clear();
      EXPECT_EQ(RecvObjectList(list, 0, {.group = group}), 0);
      v1::Seat message;
      EXPECT_EQ(RecvObject(message, 0, {.tag = 3, .group = group}), 0);
      EXPECT_EQ(message.rank(), 5);
    }
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

TEST_P(ObjectsP2PTest, AListOfAnotherLengthIsReceivedAndRefused) {
  LocalGroups world(2, std::chrono::seconds(60), GetParam());
  const auto thrown = world.OnEachRank([&](const Group& group, int rank) {
    if (rank == 0) {
      SendObjectList<std::string>({Text(4), "b"}, 10, {.group = group});
      return SendObject<std::string>("next", 10, {.group = group});
    }
    Texts list(3);
    try {
      RecvObjectList(list, 0, {.group = group});
      ADD_FAILURE() << "no error";
    } catch (const DistError& error) {
      EXPECT_STREQ(error.what(),
                   "recv_object_list on group \"local\": rank 0 sends 2 "
                   "objects, the list has 3");
      EXPECT_TRUE(IsInvalidArgument(error.status()));
    }
    RecvObject(list[0], 0, {.group = group});
    EXPECT_EQ(list[0], "next");
  });
  EXPECT_THAT(thrown, Each(IsEmpty()));
}

// Runs `call` on three ranks, and then a valid call, which shows that the group
// goes on. Returns each rank's error.
template <typename Call>
Texts Thrown(const Call& call) {
  LocalGroups world(3, std::chrono::seconds(20));
  Texts thrown = world.OnEachRank(call);
  EXPECT_THAT(world.OnEachRank([](const Group& group, int rank) {
    Texts list;
    AllGatherObject(list, std::to_string(rank), {.group = group});
    EXPECT_THAT(list, ElementsAre("0", "1", "2"));
  }),
              Each(IsEmpty()));
  return thrown;
}

TEST(ObjectErrorsTest, ListsOfDifferentLengthsAreNamedOnEveryRank) {
  EXPECT_THAT(Thrown([](const Group& group, int rank) {
                Texts list(rank == 2 ? 3 : 2);
                BroadcastObjectList(list, 10, {.group = group});
              }),
              Each("broadcast_object_list on group \"local\": rank 20 runs "
                   "broadcast_object_list of 3 objects of rank 10, rank 0 "
                   "broadcast_object_list of 2 objects of rank 10"));
}

TEST(ObjectErrorsTest, RanksThatRunDifferentVerbsAreNamedOnEveryRank) {
  EXPECT_THAT(Thrown([](const Group& group, int rank) {
                Texts list;
                if (rank != 1) {
                  return AllGatherObject<std::string>(list, "a",
                                                      {.group = group});
                }
                GatherObject<std::string>("a", nullptr, 20, {.group = group});
              }),
              Each(EndsWith("rank 10 runs gather_object to rank 20, rank 0 "
                            "all_gather_object")));
}

TEST(ObjectErrorsTest, BadArgumentsOfOneRankHoldUpNobody) {
  Texts thrown = Thrown([](const Group& group, int rank) {
    GatherObject<std::string>("a", nullptr, 0, {.group = group});
  });
  EXPECT_EQ(thrown[0],
            "gather_object on group \"local\": Argument ``object_gather_list`` "
            "must be specified on destination rank.");
  EXPECT_EQ(thrown[1],
            "gather_object on group \"local\": the arguments of rank 0 are "
            "bad, its own error says how");
  EXPECT_EQ(thrown[2], thrown[1]);

  thrown = Thrown([](const Group& group, int rank) {
    Texts list;
    GatherObject<std::string>("a", &list, 0, {.group = group});
  });
  EXPECT_THAT(thrown[1], HasSubstr("must NOT be specified on non-destination"));
  EXPECT_THAT(thrown[0], HasSubstr("the arguments of rank 10 are bad"));

  thrown = Thrown([](const Group& group, int rank) {
    Texts list(rank == 2 ? 0 : 1);
    ScatterObjectList(list, {"a", "b"}, 0, {.group = group});
  });
  EXPECT_THAT(thrown[0], EndsWith("scatter_object_input_list has 2 objects, "
                                  "must have one for each of the group's 3 "
                                  "ranks"));
  EXPECT_THAT(thrown[2], EndsWith("Expected argument "
                                  "scatter_object_output_list to be a list of "
                                  "size at least 1."));

  thrown = Thrown([](const Group& group, int rank) {
    Texts list(1);
    BroadcastObjectList(list, rank == 1 ? 5 : 0, {.group = group});
  });
  EXPECT_THAT(thrown[1],
              EndsWith("Global rank 5 is not part of group \"local\""));
  EXPECT_THAT(thrown[2], HasSubstr("the arguments of rank 10 are bad"));

  thrown = Thrown([](const Group& group, int rank) {
    std::vector<Stubborn> list;
    AllGatherObject(list, Stubborn{.mute = rank == 2}, {.group = group});
  });
  EXPECT_THAT(thrown[2], EndsWith("object 0 cannot be serialized"));
  EXPECT_THAT(thrown[1], HasSubstr("the arguments of rank 20 are bad"));
}

TEST(ObjectErrorsTest, AnObjectOverTheLeastLimitIsRefusedEverywhere) {
  EXPECT_THAT(Thrown([](const Group& group, int rank) {
                Texts list;
                AllGatherObject(
                    list, std::string(rank == 1 ? 11 : 10, 'x'),
                    {.group = group, .object_bytes_max = rank == 2 ? 10 : 99});
              }),
              Each("all_gather_object on group \"local\": rank 10 gives too "
                   "much: an object of 11 bytes is larger than "
                   "object_bytes_max (10)"));
  const Texts thrown = Thrown([](const Group& group, int rank) {
    if (rank != 0) return;
    SendObject<std::string>("four", 10,
                            {.group = group, .object_bytes_max = 3});
  });
  EXPECT_EQ(thrown[0],
            "send_object_list on group \"local\": an object of 4 bytes is "
            "larger than object_bytes_max (3)");
}

TEST(ObjectErrorsTest, BytesThatCannotBeParsedAreTheReceiversAffair) {
  Texts thrown = Thrown([](const Group& group, int rank) {
    std::vector<Stubborn> list(1);
    BroadcastObjectList(list, 10, {.group = group});
  });
  const std::string rest =
      ", of 1 bytes, cannot be parsed: do sender and receiver use one type?";
  EXPECT_EQ(thrown[1], "");
  EXPECT_EQ(
      thrown[0],
      "broadcast_object_list on group \"local\": object 0 of rank 10" + rest);
  EXPECT_EQ(thrown[2], thrown[0]);
  thrown = Thrown([](const Group& group, int rank) {
    if (rank != 1) {
      Texts texts;
      return AllGatherObject<std::string>(texts, "x", {.group = group});
    }
    std::vector<Picky> list;
    AllGatherObject(list, Picky(), {.group = group});
  });
  EXPECT_EQ(thrown[1],
            "all_gather_object on group \"local\": object 0 of rank 0" + rest);
  thrown = Thrown([](const Group& group, int rank) {
    if (rank == 0) {
      SendObjectList<std::string>({"", "x"}, 20, {.group = group});
    } else if (rank == 2) {
      std::vector<Picky> list(2);
      RecvObjectList(list, std::nullopt, {.group = group});
    }
  });
  EXPECT_EQ(thrown[2],
            "recv_object_list on group \"local\": object 1 of rank 0" + rest);
}

// Returns the error of rank 1, which receives `count` objects of at most 10
// bytes from numbers that rank 0 sends.
std::string ThrownByNumbers(std::vector<int64_t> letterhead,
                            std::vector<int64_t> numbers, size_t count,
                            StatusCode code) {
  LocalGroups world(2, std::chrono::seconds(20));
  return world.OnEachRank([&](const Group& group, int rank) {
    if (rank == 0) {
      group->Send(letterhead, 10);
      if (numbers.empty()) return;
      const auto bytes = static_cast<int64_t>(8 * numbers.size());
      return group->Send(Tensor(reinterpret_cast<char*>(numbers.data()),
                                DataType::kUint8, {bytes}),
                         10);
    }
    Texts list(count);
    try {
      RecvObjectList(list, std::nullopt,
                     {.group = group, .object_bytes_max = 10});
    } catch (const DistError& error) {
      EXPECT_EQ(error.status().code(), code) << error.what();
      EXPECT_EQ(error.culprits().size(), 1U);
      EXPECT_EQ(error.culprits().at(0).rank, 0);
      throw;
    }
  })[1];
}

TEST(ObjectErrorsTest, NothingThatAPeerSendsIsTrusted) {
  constexpr int64_t kMagic = internal::kObjectsMagic;
  constexpr auto kInvalid = StatusCode::kInvalidArgument;
  constexpr auto kLoss = StatusCode::kDataLoss;
  const struct {
    std::vector<int64_t> letterhead;
    std::vector<int64_t> numbers;
    size_t count;
    StatusCode code;
    std::string text;
  } cases[] = {
      {{7, 1, 8},
       {},
       1,
       kInvalid,
       "sends something else than objects: it begins with 7"},
      {{kMagic, 1, -1}, {}, 1, kLoss, "announces 1 objects in -1 bytes"},
      {{kMagic, -1, 8}, {}, 1, kLoss, "announces -1 objects in 8 bytes"},
      {{kMagic, 1, 3}, {}, 1, kLoss, "announces 1 objects in 3 bytes"},
      {{kMagic, 2000, 40}, {}, 1, kLoss, "announces 2000 objects in 40 bytes"},
      {{kMagic, 1, 24},
       {16, 0, 0},
       1,
       kInvalid,
       "announces 1 objects in 24 bytes, taken are 1 of at most "
       "object_bytes_max (10) bytes each"},
      {{kMagic, 2, 32},
       {16, 0, 0, 0},
       2,
       kInvalid,
       "sends bad objects: object 0: an object of 16 bytes is larger than "
       "object_bytes_max (10)"},
      {{kMagic, 1, 16},
       {9, 0},
       1,
       kLoss,
       "sends bad objects: object 0 of 1 is said to have 9 bytes, 8 are left "
       "of those that came"},
      {{kMagic, 1, 8},
       {-1},
       1,
       kLoss,
       "sends bad objects: object 0 of 1 is said to have -1 bytes, 0 are left "
       "of those that came"},
      {{kMagic, 1, 16},
       {5, 0},
       1,
       kLoss,
       "sends bad objects: 3 bytes came after the last of 1 objects"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(ThrownByNumbers(one.letterhead, one.numbers, one.count, one.code),
              "recv_object_list on group \"local\": rank 0 " + one.text);
  }
}

// Memory is not allocated for it either.
TEST(ObjectErrorsTest, WhatIsAnnouncedAndDoesNotComeIsATimeout) {
  std::vector<int64_t> letterhead = {internal::kObjectsMagic, 1,
                                     int64_t{1} << 60};
  LocalGroups world(2, std::chrono::seconds(20));
  const Texts thrown = world.OnEachRank([&](const Group& group, int rank) {
    if (rank == 0) return group->Send(letterhead, 10);
    Texts list(1);
    RecvObjectList(list, std::nullopt,
                   {.group = group, .timeout = std::chrono::milliseconds(50)});
  });
  EXPECT_THAT(thrown[1], HasSubstr("timed out"));
}

TEST(ObjectErrorsTest, ASenderOfTooMuchGoesOnAndSoDoesTheNextList) {
  LocalGroups world(2, std::chrono::seconds(20));
  // Several pieces, which no transport buffers for a receiver.
  const std::string much(40 << 20, 'x');
  const Texts thrown = world.OnEachRank([&](const Group& group, int rank) {
    if (rank == 0) {
      SendObjectList<std::string>({much}, 10, {.group = group});
      SendObjectList<std::string>({much}, 10, {.group = group});
      SendObjectList<std::string>({"next"}, 10, {.group = group});
      return;
    }
    Texts list(1);
    try {
      RecvObjectList(list, std::nullopt,
                     {.group = group, .object_bytes_max = 1000});
    } catch (const DistError& error) {
      EXPECT_THAT(error.what(), HasSubstr("announces 1 objects in 41943048 "
                                          "bytes, taken are 1 of at most "
                                          "object_bytes_max (1000) bytes"));
    }
    EXPECT_THAT(list, ElementsAre(""));
    RecvObjectList(list, std::nullopt, {.group = group});
    EXPECT_EQ(list[0], much);
    RecvObjectList(list, std::nullopt, {.group = group});
    EXPECT_THAT(list, ElementsAre("next"));
  });
  EXPECT_THAT(thrown, ElementsAre("", ""));
}

TEST(ObjectErrorsTest, WhoIsNotInTheGroupDoesNothing) {
  const Group group = LocalGroups::NonMember();
  Texts list = {"what was there"};
  BroadcastObjectList(list, 0, {.group = group});
  AllGatherObject<std::string>(list, "a", {.group = group});
  GatherObject<std::string>("a", &list, 0, {.group = group});
  ScatterObjectList(list, {"a", "b"}, 0, {.group = group});
  SendObjectList(list, 0, {.group = group});
  EXPECT_EQ(RecvObjectList(list, 0, {.group = group}), -1);
  EXPECT_THAT(list, ElementsAre("what was there"));
}

TEST(ObjectErrorsTest, AMemberThatLeavesEndsThem) {
  LocalGroups world(2, std::chrono::seconds(20));
  world.Leave(1);
  const Texts thrown = world.OnEachRank([](const Group& group, int rank) {
    Texts list;
    AllGatherObject<std::string>(list, "a", {.group = group});
  });
  EXPECT_THAT(thrown[0], HasSubstr("rank 1 left the group"));
}

}  // namespace
}  // namespace muster
