#include "coordinator/storage/record_codec.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

// Decodes the encoded record. Also compares a second encoding, so that no
// written field is lost.
template <typename T>
T RoundTrip(const T& record) {
  const std::string key = EncodeKey("job-1", record);
  const std::optional<std::string> value = EncodeValue(record);
  EXPECT_TRUE(value.has_value());
  StatusOr<DecodedRecord> decoded = DecodeRecord(key, *value);
  EXPECT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->job, "job-1");
  EXPECT_EQ(EncodeKey("job-1", decoded->record), key);
  EXPECT_EQ(EncodeValue(decoded->record), value);
  return std::get<T>(decoded->record);
}

core::Value Bytes(const std::string& bytes) {
  return std::make_shared<const std::string>(bytes);
}

TEST(RecordCodecTest, KeysOfTheStoreAreBytes) {
  const std::string key("\0\xff/", 3);
  const auto entry =
      RoundTrip(core::EntryRecord{key, Bytes(std::string("\0v", 2)), 7});
  EXPECT_EQ(entry.key, key);
  EXPECT_EQ(*entry.value, std::string("\0v", 2));
  EXPECT_EQ(entry.revision, 7);
  EXPECT_EQ(RoundTrip(core::EntryRecord{"", Bytes(""), 1}).key, "");
  EXPECT_EQ(RoundTrip(core::StoreRecord{41}).revision, 41);
  EXPECT_FALSE(RoundTrip(core::StoreRecord{41}).history_after.has_value());
  EXPECT_EQ(RoundTrip(core::StoreRecord{41, 0}).history_after, 0);
  EXPECT_EQ(RoundTrip(core::JobRecord{core::JobEpoch(9)}).epoch,
            core::JobEpoch(9));
}

TEST(RecordCodecTest, LifetimesAndItemsComeBack) {
  core::EntryRecord record{"k", Bytes("v"), 7};
  EXPECT_TRUE(RoundTrip(record).lifetime.unlimited());
  record.lifetime.ttl = std::chrono::milliseconds(1500);
  record.lifetime.owner = core::MemberId("trainer-3");
  const core::EntryRecord back = RoundTrip(record);
  EXPECT_EQ(back.lifetime.ttl, record.lifetime.ttl);
  EXPECT_EQ(back.lifetime.owner, record.lifetime.owner);

  const core::ItemRecord item =
      RoundTrip(core::ItemRecord{"q\xff", 259, Bytes("i")});
  EXPECT_EQ(item.key, "q\xff");
  EXPECT_EQ(item.number, 259);
  EXPECT_EQ(*item.value, "i");
  EXPECT_FALSE(EncodeValue(core::ItemRecord{"q", 1, nullptr}).has_value());
  // Keys are in the order of the queue.
  EXPECT_LT(EncodeKey("job", core::ItemRecord{"q", 255, nullptr}),
            EncodeKey("job", core::ItemRecord{"q", 256, nullptr}));
}

TEST(RecordCodecTest, ChangesOfTheHistoryComeBackInTheirOrder) {
  const std::string key("\0\xff/", 3);
  const auto put = RoundTrip(
      core::ChangeRecord{258, key, core::ChangeKind::kPut, Bytes("")});
  EXPECT_EQ(put.revision, 258);
  EXPECT_EQ(put.key, key);
  EXPECT_EQ(put.kind, core::ChangeKind::kPut);
  EXPECT_EQ(*put.value, "");
  EXPECT_EQ(RoundTrip(core::ChangeRecord{1, ""}).value, nullptr);
  const auto orphaned =
      RoundTrip(core::ChangeRecord{2, "k", core::ChangeKind::kOrphaned});
  EXPECT_EQ(orphaned.kind, core::ChangeKind::kOrphaned);
  EXPECT_EQ(orphaned.value, nullptr);
  core::ChangeRecord erased{3, "k"};
  erased.erased = true;
  EXPECT_FALSE(EncodeValue(erased).has_value());
  EXPECT_LT(EncodeKey("job", core::ChangeRecord{255, "z"}),
            EncodeKey("job", core::ChangeRecord{256, "a"}));
}

TEST(RecordCodecTest, AMemberComesBackWhole) {
  core::MemberRecord record;
  record.id = core::MemberId("trainer-3");
  record.incarnation = core::Incarnation(~uint64_t{0});
  record.registration = {"host-3", 4711, "host-3:9000"};
  record.state = core::MemberState::kFailed;
  record.cause = "out of memory";
  record.rank = core::Rank(0);
  record.generation = core::Generation(4);
  record.retired = {core::Incarnation(1), core::Incarnation(2)};
  const core::MemberRecord back = RoundTrip(record);
  EXPECT_EQ(back.id, record.id);
  EXPECT_EQ(back.incarnation, record.incarnation);
  EXPECT_EQ(back.registration.host, "host-3");
  EXPECT_EQ(back.registration.pid, 4711);
  EXPECT_EQ(back.registration.debug_address, "host-3:9000");
  EXPECT_EQ(back.state, core::MemberState::kFailed);
  EXPECT_EQ(back.cause, "out of memory");
  EXPECT_EQ(back.rank, core::Rank(0));
  EXPECT_EQ(back.generation, core::Generation(4));
  EXPECT_THAT(back.retired,
              ElementsAre(core::Incarnation(1), core::Incarnation(2)));
  record.rank.reset();
  EXPECT_FALSE(RoundTrip(record).rank.has_value());
}

core::ReplyRecord MakeReply(core::Payload payload) {
  core::ReplyRecord record;
  record.member = core::MemberId("a");
  record.sequence = core::SequenceNumber(300);
  record.acknowledged_through = core::SequenceNumber(298);
  record.open = {core::SequenceNumber(3), core::SequenceNumber(17)};
  record.method = "Add";
  record.payload = std::move(payload);
  return record;
}

TEST(RecordCodecTest, RepliesComeBackWithTheirPayload) {
  const auto revision = RoundTrip(MakeReply(core::RevisionReply{5}));
  EXPECT_EQ(revision.member, core::MemberId("a"));
  EXPECT_EQ(revision.sequence, core::SequenceNumber(300));
  EXPECT_EQ(revision.method, "Add");
  EXPECT_EQ(revision.acknowledged_through, core::SequenceNumber(298));
  EXPECT_THAT(revision.open,
              ElementsAre(core::SequenceNumber(3), core::SequenceNumber(17)));
  EXPECT_EQ(std::get<core::RevisionReply>(revision.payload).revision, 5);
  const auto number = std::get<core::NumberReply>(
      RoundTrip(MakeReply(core::NumberReply{-3, 6})).payload);
  EXPECT_EQ(number.number, -3);
  EXPECT_EQ(number.revision, 6);
  EXPECT_TRUE(std::get<core::FlagReply>(
                  RoundTrip(MakeReply(core::FlagReply{true, 1})).payload)
                  .flag);
  const auto set = std::get<core::CompareSetReply>(
      RoundTrip(MakeReply(core::CompareSetReply{Bytes("v"), true, 2})).payload);
  EXPECT_EQ(*set.value, "v");
  EXPECT_TRUE(set.stored);
  const auto popped = std::get<core::ValueReply>(
      RoundTrip(MakeReply(core::ValueReply{Bytes(""), 9})).payload);
  EXPECT_EQ(*popped.value, "");
  EXPECT_EQ(popped.revision, 9);
  auto formation = std::make_shared<core::Formation>();
  formation->generation = core::Generation(12);
  EXPECT_EQ(std::get<core::FormationReply>(
                RoundTrip(MakeReply(core::FormationReply(formation))).payload)
                ->generation,
            core::Generation(12));
}

TEST(RecordCodecTest, AFailedReplyKeepsItsCodeAndText) {
  core::ReplyRecord record = MakeReply(std::monostate());
  record.status = OutOfRangeError("add: overflows");
  EXPECT_EQ(RoundTrip(record).status, record.status);
}

TEST(RecordCodecTest, AGenerationComesBackWithItsWorldAndItsEnd) {
  auto formation = std::make_shared<core::Formation>();
  formation->generation = core::Generation(2);
  formation->world = {
      {core::MemberId("a"), core::Incarnation(1), "host-a", 10,
       std::string("\0at", 3)},
      {core::MemberId("b"), core::Incarnation(2), "host-b", 20, ""}};
  core::Event end;
  end.kind = core::EventKind::kFailed;
  end.member = core::MemberId("b");
  end.rank = core::Rank(1);
  end.cause = "boom";
  end.last_progress = "in all_reduce";
  end.generation = core::Generation(2);
  end.generation_over = true;
  end.verdict = DeadlineExceededError("");
  end.verdict.SetPayload("culprits", "rank 3");
  const auto back = RoundTrip(
      core::GenerationRecord{formation, true, end, "member \"a\": finished"});
  ASSERT_EQ(back.formation->world.size(), 2u);
  EXPECT_EQ(back.formation->world[0].address, std::string("\0at", 3));
  EXPECT_EQ(back.formation->world[1].pid, 20);
  EXPECT_TRUE(back.running);
  EXPECT_EQ(back.end->kind, core::EventKind::kFailed);
  EXPECT_EQ(back.end->rank, core::Rank(1));
  EXPECT_EQ(back.end->last_progress, "in all_reduce");
  EXPECT_EQ(back.end->verdict, end.verdict);
  EXPECT_EQ(back.closed, "member \"a\": finished");
  const auto none = RoundTrip(core::GenerationRecord());
  EXPECT_EQ(none.formation, nullptr);
  EXPECT_EQ(none.closed, "");
  EXPECT_FALSE(none.end.has_value());
}

TEST(RecordCodecTest, AGroupComesBackWithWhoHasRegistered) {
  core::GroupRecord group;
  group.name = std::string("tp\0x", 4);
  group.ranks = {core::Rank(0), core::Rank(3)};
  group.description = "tensor parallel";
  group.founder = core::Rank(3);
  const auto back = RoundTrip(group);
  EXPECT_EQ(back.name, group.name);
  EXPECT_EQ(back.ranks, group.ranks);
  EXPECT_EQ(back.description, "tensor parallel");
  EXPECT_EQ(back.founder, core::Rank(3));
  core::GroupRankRecord rank;
  rank.group = group.name;
  rank.rank = core::Rank(70000);
  EXPECT_EQ(RoundTrip(rank).group, group.name);
  EXPECT_EQ(RoundTrip(rank).rank, core::Rank(70000));
}

TEST(RecordCodecTest, TheVerdictAboutAGroupComesBack) {
  auto verdict = std::make_shared<core::GroupFailure>();
  verdict->generation = core::Generation(7);
  verdict->error.text = "timed out";
  verdict->error.verdict = DeadlineExceededError("");
  verdict->error.verdict.SetPayload("url", "bytes");
  core::GroupFailureRecord record;
  record.group = "tp";
  record.instance = "/2";
  record.verdict = verdict;
  EXPECT_EQ(RoundTrip(record).instance, "/2");
  core::GroupFailure back = *RoundTrip(record).verdict;
  EXPECT_EQ(back.generation, verdict->generation);
  EXPECT_EQ(back.group, "tp");
  EXPECT_EQ(back.instance, "/2");
  EXPECT_EQ(back.error.text, "timed out");
  EXPECT_EQ(back.error.verdict, verdict->error.verdict);
  EXPECT_EQ(back.error.culprits, nullptr);
  auto culprits = std::make_shared<core::BarrierResult>();
  culprits->missing.emplace_back().rank = core::Rank(3);
  culprits->others = {4, 1};
  verdict->error.culprits = culprits;
  back = *RoundTrip(record).verdict;
  EXPECT_EQ(back.error.culprits->missing[0].rank, core::Rank(3));
  EXPECT_EQ(back.error.culprits->others, culprits->others);
}

TEST(RecordCodecTest, AnAnswerAboutGroupsComesBack) {
  core::ReplyRecord record;
  record.member = core::MemberId("a");
  record.sequence = core::SequenceNumber(3);
  record.payload = core::GroupsReply{{1, 300}};
  EXPECT_THAT(std::get<core::GroupsReply>(RoundTrip(record).payload).registered,
              ::testing::ElementsAre(1, 300));
}

TEST(RecordCodecTest, ASeriesComesBack) {
  core::SeriesRecord record;
  record.group = "world";
  record.barrier = std::string("ep\0och", 6);
  record.participants = {core::Rank(0), core::Rank(3)};
  record.founder = core::Rank(3);
  record.newest = 3;
  record.dropped_results = true;
  record.taken = {{core::Rank(0), 3}, {core::Rank(3), 2}};
  const core::SeriesRecord back = RoundTrip(record);
  EXPECT_EQ(back.group, "world");
  EXPECT_EQ(back.barrier, std::string("ep\0och", 6));
  EXPECT_THAT(back.participants, ElementsAre(core::Rank(0), core::Rank(3)));
  EXPECT_EQ(back.newest, 3);
  EXPECT_TRUE(back.dropped_results);
  EXPECT_THAT(back.taken,
              ElementsAre(Pair(core::Rank(0), 3), Pair(core::Rank(3), 2)));
}

TEST(RecordCodecTest, ADecisionComesBack) {
  auto result = std::make_shared<core::BarrierResult>();
  result->group = "world";
  result->barrier = "epoch";
  result->instance = 300;
  result->outcome = core::BarrierOutcome::kTimedOut;
  result->expected = 2;
  result->arrived = 1;
  core::MissingRank missing;
  missing.rank = core::Rank(1);
  missing.host = "host-b";
  missing.cause_text = "no heartbeat";
  result->missing = {missing};
  result->others = {3, 4, 5, 600};
  core::DecisionRecord record;
  record.group = "world";
  record.barrier = "epoch";
  record.instance = 300;
  record.status = DeadlineExceededError("late");
  record.result = result;
  const core::DecisionRecord back = RoundTrip(record);
  EXPECT_EQ(back.group, "world");
  EXPECT_EQ(back.barrier, "epoch");
  EXPECT_EQ(back.instance, 300);
  EXPECT_EQ(back.status, DeadlineExceededError("late"));
  EXPECT_EQ(back.result->instance, 300);
  EXPECT_EQ(back.result->missing[0].host, "host-b");
  EXPECT_EQ(back.result->others, result->others);
}

TEST(RecordCodecTest, WhatARankHasTakenComesBack) {
  core::TakenRecord record;
  record.group = "world";
  record.barrier = "epoch";
  record.rank = core::Rank(70000);
  record.instance = 7;
  const core::TakenRecord back = RoundTrip(record);
  EXPECT_EQ(back.group, "world");
  EXPECT_EQ(back.barrier, "epoch");
  EXPECT_EQ(back.rank, core::Rank(70000));
  EXPECT_EQ(back.instance, 7);
}

TEST(RecordCodecTest, ErasedRecordsHaveNoValue) {
  EXPECT_FALSE(EncodeValue(core::EntryRecord{"a", nullptr, 0}).has_value());
  core::MemberRecord member;
  member.erased = true;
  EXPECT_FALSE(EncodeValue(member).has_value());
}

// Different names give different keys.
TEST(RecordCodecTest, KeysAreDifferentWhereTheNamesAre) {
  core::SeriesRecord one;
  one.group = "a";
  one.barrier = "bc";
  core::SeriesRecord other;
  other.group = "ab";
  other.barrier = "c";
  EXPECT_NE(EncodeKey("job", one), EncodeKey("job", other));
  EXPECT_THAT(EncodeKey("job", one), StartsWith(JobPrefix("job")));
  EXPECT_NE(EncodeKey("job", core::EntryRecord{"k", nullptr, 0}),
            EncodeKey("jo", core::EntryRecord{"bk", nullptr, 0}));
}

TEST(RecordCodecTest, WhatIsNotARecordIsDataLoss) {
  const std::string key = EncodeKey("job", core::StoreRecord{});
  core::ReplyRecord reply = MakeReply(std::monostate());
  const std::string reply_key = EncodeKey("job", reply);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", ""},
      {"job", ""},
      {std::string("job\0", 4), ""},
      {std::string("\0k", 2), ""},
      {std::string("job\0?", 5), ""},
      {key, "\xff\xff"},
      {reply_key.substr(0, reply_key.size() - 1), ""},
      {std::string("job\0r\xff\xff\xff\xff", 9), ""},
      {std::string("job\0c1234567", 12), ""},
      {EncodeKey("job", core::ChangeRecord{1, "k"}), "\x08\x04"},
  };
  for (const auto& [bad_key, value] : bad) {
    const auto decoded = DecodeRecord(bad_key, value);
    EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(decoded.status().message(), HasSubstr("corrupt"));
  }
}

}  // namespace
}  // namespace muster::coordinator
