#include "client/tools/recorders.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::tools {
namespace {

using Json = nlohmann::json;

// Collective `sequence` of group "world", from `begin` to `end` (0: it runs).
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

std::vector<Json> EventsOf(const Json& trace, int rank, const char* phase) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["pid"] == rank && event["ph"] == phase) events.push_back(event);
  }
  return events;
}

// The clock of rank 1 is 5 ms ahead; broadcasts say nothing of clocks.
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
  const std::vector<Json> first = EventsOf(trace, 0, "X");
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[1]["name"], "gloo:all_reduce");
  EXPECT_EQ(first[1]["ts"], 10'000.0);
  EXPECT_EQ(first[1]["dur"], 10'000.0);
  EXPECT_EQ(first[1]["args"]["collective_seq_id"], 2);
  const std::vector<Json> second = EventsOf(trace, 1, "X");
  ASSERT_EQ(second.size(), 4u);
  EXPECT_EQ(second[1]["ts"], 11'000.0);
  EXPECT_EQ(second[3]["ts"], 50'000.0);
  const std::vector<Json> running = EventsOf(trace, 1, "B");
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0]["ts"], 65'000.0);
  const std::vector<Json> names = EventsOf(trace, 1, "M");
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0]["args"]["name"], "rank 1");
  EXPECT_EQ(names[1]["args"]["name"], "world");
}

TEST(RecordersTest, OddEntriesAreLeftOut) {
  Recorders recorders;
  recorders.by_rank[0] =
      "{\"entries\": [3, {}, {\"time_discovered_started_ns\": null}, "
      "{\"time_discovered_started_ns\": 7, \"process_group\": 3, "
      "\"profiling_name\": []}]}";
  const Json trace = Json::parse(TraceJson("j", recorders));
  const std::vector<Json> events = EventsOf(trace, 0, "B");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "");
}

}  // namespace
}  // namespace muster::tools
