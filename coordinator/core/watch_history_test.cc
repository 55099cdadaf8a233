#include "coordinator/core/watch_history.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WatchHistoryTest : public testing::Test {
 protected:
  void Put(const std::string& key, int64_t revision,
           const std::string& value = "") {
    history_.Add({ChangeKind::kPut, key,
                  std::make_shared<const std::string>(value), revision});
  }

  static std::vector<int64_t> Revisions(const WatchReply& reply) {
    std::vector<int64_t> revisions;
    for (const auto& change : reply.changes) {
      revisions.push_back(change->revision);
    }
    return revisions;
  }

  Limits limits_;
  Journal journal_{/*on=*/false};
  WatchHistory history_{&limits_, &journal_};
  const WatchSelector all_{"", true};
};

TEST_F(WatchHistoryTest, GivesTheMatchingChangesAfterARevision) {
  Put("a", 1);
  Put("ab", 2);
  Put("b", 4);
  Put("a", 5);
  EXPECT_THAT(Revisions(history_.Collect({"a", false}, 0, 6)),
              ElementsAre(1, 5));
  EXPECT_THAT(Revisions(history_.Collect({"a", true}, 1, 6)),
              ElementsAre(2, 5));
  EXPECT_THAT(Revisions(history_.Collect(all_, 4, 6)), ElementsAre(5));
  EXPECT_EQ(history_.Collect(all_, 4, 6).revision, 6);
  EXPECT_THAT(Revisions(history_.Collect(all_, 5, 6)), IsEmpty());
}

TEST_F(WatchHistoryTest, ForgetsWholeRevisionsOldestFirst) {
  limits_.watch_history_changes = 3;
  Put("a", 1);
  Put("b", 1);
  Put("c", 2);
  Put("d", 3);
  EXPECT_EQ(history_.CheckComplete(0, 3),
            OutOfRangeError("watch: revision 0 is no longer in the "
                            "history, the oldest to go on from is 1"));
  EXPECT_EQ(history_.CheckComplete(1, 3), OkStatus());
  EXPECT_THAT(Revisions(history_.Collect(all_, 1, 3)), ElementsAre(2, 3));
}

TEST_F(WatchHistoryTest, KeepsTheNewestRevisionWhateverItsSize) {
  limits_.watch_history_changes = 2;
  Put("z", 1);
  for (const char* key : {"a", "b", "c", "d"}) Put(key, 2);
  EXPECT_EQ(history_.CheckComplete(1, 2), OkStatus());
  EXPECT_THAT(Revisions(history_.Collect(all_, 1, 2)), ElementsAre(2, 2, 2, 2));
  Put("e", 3);
  EXPECT_EQ(history_.CheckComplete(1, 3).code(), StatusCode::kOutOfRange);
}

TEST_F(WatchHistoryTest, ForgetsWhatHasTooManyBytes) {
  limits_.watch_history_bytes = 10;
  Put("a", 1, "12345678");
  Put("b", 2, "1");
  EXPECT_EQ(history_.CheckComplete(1, 2), OkStatus());
  EXPECT_EQ(history_.CheckComplete(0, 2).code(), StatusCode::kOutOfRange);
}

TEST_F(WatchHistoryTest, ARevisionThatIsToComeIsRefused) {
  Put("a", 1);
  EXPECT_EQ(history_.CheckComplete(2, 1),
            OutOfRangeError(
                "watch: revision 2 is ahead of the store, which is at 1"));
}

TEST_F(WatchHistoryTest, ALargeReplyEndsWithARevision) {
  const std::string value(1 << 19, 'x');
  Put("a", 1, value);
  Put("b", 2, value);
  Put("c", 2, value);
  Put("d", 3, value);
  const WatchReply first = history_.Collect(all_, 0, 3);
  EXPECT_THAT(Revisions(first), ElementsAre(1, 2, 2));
  EXPECT_EQ(first.revision, 2);
  const WatchReply second = history_.Collect(all_, first.revision, 3);
  EXPECT_THAT(Revisions(second), ElementsAre(3));
  EXPECT_EQ(second.revision, 3);
}

// For every key and every prefix, in order.
TEST_F(WatchHistoryTest, AnIndexFindsWhatALookAtAllChangesDoes) {
  const std::vector<std::string> keys = {"", "a", "ab", "abc", "b", "ba", "c"};
  for (int64_t revision = 1; revision <= 40; ++revision) {
    Put(keys[static_cast<size_t>(revision * 5 % 7)], revision);
    Put(keys[static_cast<size_t>(revision * 3 % 7)], revision);
  }
  const WatchIndex index(history_, 10, 40);
  for (const std::string& key : keys) {
    for (const bool prefix : {false, true}) {
      const WatchReply found = index.Collect({key, prefix});
      EXPECT_EQ(found.changes, history_.Collect({key, prefix}, 10, 40).changes);
      EXPECT_EQ(found.revision, 40);
    }
  }
  EXPECT_THAT(Revisions(index.Collect({"none", false})), IsEmpty());
}

TEST_F(WatchHistoryTest, AFullReplyOfAnIndexEndsWhereOneOfAllChangesDoes) {
  limits_.watch_history_changes = 10000;
  for (int64_t revision = 1; revision <= 5000; ++revision) {
    Put(revision % 3 == 0 ? "a" : "b", revision);
  }
  const WatchIndex index(history_, 0, 5000);
  for (const char* key : {"a", "b", ""}) {
    const WatchReply found = index.Collect({key, true});
    const WatchReply expected = history_.Collect({key, true}, 0, 5000);
    EXPECT_EQ(found.changes, expected.changes);
    EXPECT_EQ(found.revision, expected.revision);
    EXPECT_LT(found.revision, 5000);
  }
}

}  // namespace
}  // namespace muster::coordinator::core
