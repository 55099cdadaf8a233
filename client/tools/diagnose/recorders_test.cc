#include "client/tools/diagnose/recorders.h"

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;

// Collective `sequence` of group "world", from `begin` to `end` (0: running).
std::string Entry(const std::string& kind, int sequence, int64_t begin,
                  int64_t end) {
  return absl::StrCat(
      "{\"pg_id\": 0, \"process_group\": [\"world\", \"default\"], "
      "\"collective_seq_id\": ",
      sequence, ", \"p2p_seq_id\": 0, \"profiling_name\": \"gloo:", kind,
      "\", \"input_sizes\": [[8]], \"input_dtypes\": [\"Float\"], \"state\": "
      "\"completed\", \"time_discovered_started_ns\": ",
      begin, ", \"time_discovered_completed_ns\": ", end, "}");
}

std::string Recorder(const std::vector<std::string>& entries) {
  std::string json = "{\"version\": \"2.10\", \"entries\": [";
  for (size_t i = 0; i < entries.size(); ++i) {
    absl::StrAppend(&json, i == 0 ? "" : ",", entries[i]);
  }
  return json + "]}";
}

TEST(RecordersTest, MergedHasAllRanksAndWhoIsMissing) {
  Recorders recorders;
  recorders.by_rank[0] = Recorder({Entry("all_reduce", 1, 10, 20)});
  recorders.by_rank[1] = "nonsense";
  recorders.missing[2] = "no answer";
  const Json json = Json::parse(MergedJson("job7", recorders));
  EXPECT_EQ(json["job"], "job7");
  EXPECT_EQ(json["ranks"].size(), 1u);
  EXPECT_EQ(json["ranks"]["0"]["entries"][0]["collective_seq_id"], 1);
  EXPECT_EQ(json["missing"]["1"], "what it sent is no flight recorder");
  EXPECT_EQ(json["missing"]["2"], "no answer");
}

TEST(RecordersTest, WhatIsNestedWithoutEndIsNone) {
  Recorders recorders;
  recorders.by_rank[0] =
      absl::StrCat("{\"entries\": [], \"x\": ", std::string(400'000, '['),
                   std::string(400'000, ']'), "}");
  const Json json = Json::parse(MergedJson("job7", recorders));
  EXPECT_EQ(json["missing"]["0"], "what it sent is no flight recorder");
}

std::vector<Json> FindEvents(const Json& trace, int rank, const char* phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["pid"] == rank && event["ph"] == phase) events.push_back(event);
  }
  return events;
}

// The clock of rank 1 is 5 ms ahead; broadcasts do not show that.
TEST(RecordersTest, TheTraceHasOneClock) {
  constexpr int64_t kMs = 1'000'000;
  Recorders recorders;
  recorders.by_rank[0] = Recorder({Entry("broadcast", 1, 1 * kMs, 2 * kMs),
                                   Entry("all_reduce", 2, 10 * kMs, 20 * kMs),
                                   Entry("all_reduce", 3, 30 * kMs, 40 * kMs),
                                   Entry("barrier", 4, 50 * kMs, 60 * kMs)});
  recorders.by_rank[1] = Recorder({Entry("broadcast", 1, 100 * kMs, 200 * kMs),
                                   Entry("all_reduce", 2, 16 * kMs, 25 * kMs),
                                   Entry("all_reduce", 3, 35 * kMs, 46 * kMs),
                                   Entry("barrier", 4, 55 * kMs, 65 * kMs),
                                   Entry("all_reduce", 5, 70 * kMs, 0)});
  const Json trace = Json::parse(TraceJson("job7", recorders));
  const std::vector<Json> first = FindEvents(trace, 0, "X");
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[1]["name"], "gloo:all_reduce");
  // Time since the first call began.
  EXPECT_EQ(first[1]["ts"], 9'000.0);
  EXPECT_EQ(first[1]["dur"], 10'000.0);
  EXPECT_EQ(first[1]["args"]["collective_seq_id"], 2);
  const std::vector<Json> second = FindEvents(trace, 1, "X");
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(second[0]["ts"], 10'000.0);
  EXPECT_EQ(second[2]["ts"], 49'000.0);
  const std::vector<Json> running = FindEvents(trace, 1, "B");
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0]["ts"], 64'000.0);
  const std::vector<Json> names = FindEvents(trace, 1, "M");
  // The broadcast would overlap with the running call.
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0]["args"]["name"], "rank 1");
  EXPECT_EQ(names[1]["args"]["name"], "world");
}

TEST(RecordersTest, TheTraceIsInTheOrderOfTime) {
  Recorders recorders;
  recorders.by_rank[0] = Recorder(
      {Entry("all_reduce", 1, 50, 60), Entry("all_reduce", 2, 10, 20)});
  recorders.by_rank[1] = Recorder(
      {Entry("all_reduce", 1, 45, 60), Entry("all_reduce", 2, 15, 20)});
  const Json trace = Json::parse(TraceJson("job7", recorders));
  std::vector<double> times;
  bool names = true;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") {
      EXPECT_TRUE(names) << "names are not before all else";
      continue;
    }
    names = false;
    times.push_back(event["ts"]);
  }
  EXPECT_THAT(times, ElementsAre(0, 0.005, 0.035, 0.04));
  EXPECT_EQ(trace["otherData"]["begin_unix_ns"], "10");
}

TEST(RecordersTest, WhatRunsAtATimeIsOnTracksOfItsOwn) {
  const auto peer = [](int sequence, int64_t begin, int64_t end) {
    std::string entry = Entry("send", sequence, begin, end);
    return absl::StrCat("{\"is_p2p\": true, ", entry.substr(1));
  };
  Recorders recorders;
  recorders.by_rank[0] =
      Recorder({Entry("all_reduce", 1, 10, 40), peer(1, 20, 50),
                peer(2, 30, 35), peer(3, 60, 0), peer(4, 70, 80)});
  const Json trace = Json::parse(TraceJson("job7", recorders));
  // Events on one track that overlap without nesting are invalid.
  std::map<int, double> busy_until;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "M") continue;
    const int track = event["tid"];
    EXPECT_GE(event["ts"].get<double>(), busy_until[track]);
    busy_until[track] =
        event["ph"] == "B"
            ? std::numeric_limits<double>::infinity()
            : event["ts"].get<double>() + event["dur"].get<double>();
  }
  EXPECT_EQ(busy_until.size(), 3u);
  const std::vector<Json> names = FindEvents(trace, 0, "M");
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[2]["args"]["name"], "world: sends and receives");
}

TEST(RecordersTest, ClocksAreAlignedByWayOfOtherRanks) {
  const auto in = [](const std::string& group, int64_t end) {
    return absl::StrReplaceAll(Entry("all_reduce", 1, end - 10, end),
                               {{"world", group}});
  };
  Recorders recorders;
  recorders.by_rank[0] = Recorder({in("first", 1000)});
  recorders.by_rank[1] = Recorder({in("first", 3000), in("second", 3500)});
  recorders.by_rank[2] = Recorder({in("second", 9500)});
  recorders.by_rank[3] = Recorder({in("third", 1000)});
  const Json trace = Json::parse(TraceJson("job7", recorders));
  EXPECT_EQ(FindEvents(trace, 0, "X")[0]["ts"], 0.0);
  EXPECT_EQ(FindEvents(trace, 1, "X")[0]["ts"], 0.0);
  EXPECT_EQ(FindEvents(trace, 2, "X")[0]["ts"], 0.5);
  EXPECT_EQ(trace["otherData"]["clock of rank 3"],
            "not aligned: no collective in common");
}

// Ends of a collective at different times do not mean different clocks.
TEST(RecordersTest, RanksOfOneHostHaveOneClock) {
  const auto at = [](int64_t end) {
    return Recorder({Entry("all_reduce", 1, end - 10, end)});
  };
  Recorders recorders;
  recorders.by_rank = {{0, at(1000)}, {1, at(1400)}, {2, at(8000)},
                       {3, at(8200)}, {4, at(1600)}, {5, at(5'001'000)}};
  recorders.hosts = {{0, "a"}, {1, "a"}, {2, "b"},
                     {3, "b"}, {4, "c"}, {5, "c"}};
  const Json trace = Json::parse(TraceJson("job7", recorders));
  const auto begin = [&](int rank) -> double {
    return FindEvents(trace, rank, "X")[0]["ts"];
  };
  EXPECT_EQ(begin(1) - begin(0), 0.4);
  EXPECT_NEAR(begin(3) - begin(2), 0.2, 1e-9);
  // Different hosts with the same name.
  EXPECT_EQ(begin(4), begin(5));
}

TEST(RecordersTest, TimesThatAreNoneDoNoHarm) {
  Recorders recorders;
  for (const int64_t time : {std::numeric_limits<int64_t>::min(),
                             std::numeric_limits<int64_t>::max()}) {
    recorders.by_rank[static_cast<int>(time & 1)] = Recorder(
        {Entry("all_reduce", 1, 10, time), Entry("all_reduce", 2, time, time)});
  }
  const Json trace = Json::parse(TraceJson("job7", recorders));
  EXPECT_EQ(FindEvents(trace, 0, "B").size(), 1u);
  EXPECT_EQ(FindEvents(trace, 1, "B").size(), 1u);
}

TEST(RecordersTest, OddEntriesAreLeftOut) {
  Recorders recorders;
  recorders.by_rank[0] =
      "{\"entries\": [3, {}, {\"time_discovered_started_ns\": null}, "
      "{\"time_discovered_started_ns\": 7, \"process_group\": 3, "
      "\"profiling_name\": []}]}";
  const Json trace = Json::parse(TraceJson("j", recorders));
  const std::vector<Json> events = FindEvents(trace, 0, "B");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "");
}

v1::MemberInfo LostRank(int rank) {
  v1::MemberInfo member;
  member.set_rank(rank);
  member.set_host("here");
  member.set_state(v1::MEMBER_STATE_LOST);
  member.set_cause("connection closed");
  return member;
}

TEST(RecordersTest, OfOneThatIsGoneTheFileIsNamedIfThereIsOne) {
  const std::string prefix = ::testing::TempDir() + "recorder";
  std::ofstream(absl::StrCat(prefix, 1)) << "{}";
  EXPECT_EQ(WhyNoRecorder(LostRank(1), "no answer", prefix, "here"),
            absl::StrCat("is gone: it was lost: connection closed; its "
                         "recorder is in ",
                         prefix, "1"));
  EXPECT_EQ(WhyNoRecorder(LostRank(2), "no answer", prefix, "here"),
            absl::StrCat("is gone: it was lost: connection closed; it has not "
                         "written ",
                         prefix, "2, as one that is killed does not"));
}

TEST(RecordersTest, WhatIsOnAnotherHostIsNotKnown) {
  EXPECT_EQ(
      WhyNoRecorder(LostRank(1), "no answer", "/tmp/recorder", "elsewhere"),
      "is gone: it was lost: connection closed; if it has written one, "
      "it is /tmp/recorder1 on here");
}

TEST(RecordersTest, WhatWouldHaveWrittenOneIsNamed) {
  EXPECT_EQ(WhyNoRecorder(LostRank(1), "no answer", "", "here"),
            "is gone: it was lost: connection closed; it has left no file, for "
            "which TORCH_FR_DUMP_TEMP_FILE is to be set");
}

TEST(RecordersTest, OneThatIsThereAndDoesNotAnswerIsNotCalledGone) {
  v1::MemberInfo member = LostRank(1);
  member.set_state(v1::MEMBER_STATE_ALIVE);
  EXPECT_EQ(WhyNoRecorder(member, "no answer", "", "here"), "no answer");
}

TEST(RecordersTest, OfManyTheFirstAreTold) {
  std::map<int, std::string> missing;
  EXPECT_EQ(MissingText(missing, 3), "");
  missing[2] = "gone\033";
  EXPECT_EQ(MissingText(missing, 3),
            "musterctl: 1 of 3 ranks did not answer\n  rank 2: gone\\x1b\n");
  for (int rank = 3; rank < 12; ++rank) missing[rank] = "gone";
  EXPECT_THAT(MissingText(missing, 12),
              EndsWith("  rank 9: gone\n  and 2 more\n"));
}

TEST(RecordersTest, TheFilesAreWhereTheOthersHaveThem) {
  EXPECT_EQ(DumpPrefixIn(R"({"PATH": "/bin",
                             "TORCH_FR_DUMP_TEMP_FILE": "/x/r"})"),
            "/x/r");
  EXPECT_EQ(DumpPrefixIn(R"({"TORCH_FR_DUMP_TEMP_FILE": 3})"), "");
  EXPECT_EQ(DumpPrefixIn("{}"), "");
  EXPECT_EQ(DumpPrefixIn("no JSON"), "");
}

}  // namespace
}  // namespace muster::tools
