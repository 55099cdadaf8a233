#include "dataplane/observe/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace muster::dataplane {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

json Dump(const FlightRecorder& recorder) {
  return json::parse(recorder.ToJson());
}

// A recorder with one group, and how collectives are added to it.
struct Recorded {
  explicit Recorded(size_t capacity)
      : recorder(std::make_shared<FlightRecorder>(capacity)),
        group(recorder->AddGroup({.name = "tp", .backend = "shm"})) {}

  // The collective begins `begin_ms` after the clock's zero and lasts half a
  // millisecond.
  int64_t Add(Collective& collective, uint64_t begin_ms) {
    collective.sequence = begin_ms;
    collective.started = Instant(milliseconds(begin_ms));
    return recorder->Add(*group, collective);
  }
  void End(int64_t record, uint64_t begin_ms, const Status& status) {
    recorder->Complete(*group, record, status,
                       Instant(milliseconds(begin_ms)) + microseconds(500));
  }
  void Run(Collective& collective, uint64_t begin_ms) {
    End(Add(collective, begin_ms), begin_ms, OkStatus());
  }

  const std::shared_ptr<FlightRecorder> recorder;
  const std::shared_ptr<FlightRecorder::GroupRecord> group;
};

// Collectives of no, one, two, three and eight tensors, with zero to five
// dimensions.
std::vector<Collective> AllSorts() {
  static float floats[64];
  const Tensor line(floats, {4});
  const Tensor scalar(floats, std::initializer_list<int64_t>{});
  const Tensor five(floats, DataType::kBfloat16, {2, 1, 2, 1, 4});
  const auto timeout = seconds(30);
  return {
      {.timeout = timeout},
      {.kind = CollectiveKind::kAllReduce, .tensors = {line}},
      {.kind = CollectiveKind::kBroadcast, .tensors = {five}},
      {.kind = CollectiveKind::kReduce, .tensors = {scalar}},
      {.kind = CollectiveKind::kAllGatherIntoTensor,
       .inputs = {line},
       .outputs = {five}},
      {.kind = CollectiveKind::kAllGather,
       .inputs = {scalar},
       .outputs = {scalar, scalar},
       .timeout = timeout},
      {.kind = CollectiveKind::kAllToAll,
       .inputs = {five, five, five, five},
       .outputs = {five, five, five, five}},
      {.kind = CollectiveKind::kAllReduce,
       .tensors = {line, scalar, five, line, scalar, five, line, scalar}},
      {.kind = CollectiveKind::kSend, .inputs = {line}},
      {.kind = CollectiveKind::kRecv, .outputs = {five}},
  };
}

// The sizes and types of tensors, as a dump has them.
std::string DescribeTensors(const Collective& collective) {
  const auto sizes =
      [](std::initializer_list<const Collective::Tensors*> lists) {
        json all = json::array();
        for (const Collective::Tensors* const list : lists) {
          for (const Tensor& tensor : *list) all.push_back(tensor.shape());
        }
        return all.dump();
      };
  return sizes({&collective.tensors, &collective.inputs}) + " " +
         sizes({&collective.tensors, &collective.outputs});
}

// With all entries, and with only the last ones, which are overwritten.
TEST(FlightRecorderTest, AnEntryHasItsOwnTensorsWhateverWasThereBefore) {
  for (const size_t capacity : {100, 10, 7, 1}) {
    Recorded recorded(capacity);
    std::vector<Collective> all = AllSorts();
    uint64_t begin_ms = 100;
    for (int round = 0; round < 3; ++round) {
      for (Collective& collective : all) recorded.Run(collective, ++begin_ms);
    }
    const json entries = Dump(*recorded.recorder)["entries"];
    ASSERT_EQ(entries.size(), std::min(capacity, 30UL));
    for (size_t i = 0; i < entries.size(); ++i) {
      const json& entry = entries[entries.size() - 1 - i];
      const Collective& collective = all[(29 - i) % all.size()];
      EXPECT_EQ(
          entry["input_sizes"].dump() + " " + entry["output_sizes"].dump(),
          DescribeTensors(collective));
      EXPECT_EQ(entry["profiling_name"],
                "shm:" + CollectiveKindName(collective.kind));
      EXPECT_EQ(entry["timeout_ms"], collective.timeout.count());
      EXPECT_EQ(entry["record_id"], 29 - i);
      EXPECT_EQ(entry["duration_ms"], 0.5);
    }
  }
}

TEST(FlightRecorderTest, OneBehindOthersStartsWhenTheyAreComplete) {
  Recorded recorded(5);
  const auto states = [&] {
    std::string states;
    const json dump = Dump(*recorded.recorder);
    for (const json& entry : dump["entries"]) {
      states += entry["state"].get<std::string>() + " ";
    }
    return states;
  };
  std::vector<Collective> all = AllSorts();
  const int64_t first = recorded.Add(all[1], 101);
  const int64_t second = recorded.Add(all[2], 102);
  const int64_t third = recorded.Add(all[3], 103);
  recorded.Run(all[8], 105);
  EXPECT_EQ(states(), "started scheduled scheduled completed ");
  recorded.End(first, 120, OkStatus());
  EXPECT_EQ(states(), "completed started scheduled completed ");
  // A failure does not start the next one.
  recorded.End(second, 121, UnavailableError("gone"));
  EXPECT_EQ(states(), "completed started scheduled completed ");
  // A complete one does.
  recorded.Run(all[4], 122);
  EXPECT_EQ(states(), "completed started started completed completed ");
  // The last running one is overwritten, and then ends.
  for (const int i : {0, 1, 2, 3, 4}) recorded.Run(all[i], 130 + i);
  const std::string before = recorded.recorder->ToJson();
  recorded.End(third, 140, OkStatus());
  EXPECT_EQ(recorded.recorder->ToJson(), before);
}

TEST(FlightRecorderTest, AnEntryHasAllFields) {
  Recorded recorded(10);
  std::vector<Collective> all = AllSorts();
  for (const uint64_t begin_ms : {101, 102}) recorded.Run(all[4], begin_ms);
  json entries = Dump(*recorded.recorder)["entries"];
  const int64_t origin = entries[0]["time_created_ns"];
  json& entry = entries[1];
  for (const char* const name :
       {"time_created_ns", "time_discovered_started_ns",
        "time_discovered_completed_ns"}) {
    entry[name] = entry[name].get<int64_t>() - origin;
  }
  entry.erase("thread_id");
  entry.erase("thread_name");
  EXPECT_EQ(entry, json::parse(R"({
    "record_id": 1, "pg_id": 0, "process_group": ["tp", ""],
    "collective_seq_id": 102, "p2p_seq_id": 0, "op_id": 2,
    "profiling_name": "shm:all_gather_into_tensor",
    "input_sizes": [[4]], "input_dtypes": ["Float"],
    "output_sizes": [[2, 1, 2, 1, 4]], "output_dtypes": ["BFloat16"],
    "time_created_ns": 1000000, "duration_ms": 0.5, "timeout_ms": 0,
    "state": "completed", "time_discovered_started_ns": 1000000,
    "time_discovered_completed_ns": 1500000, "retired": true,
    "is_p2p": false, "frames": []})"));
  EXPECT_EQ(Dump(*recorded.recorder)["pg_status"]["0"],
            json({{"last_enqueued_collective", 102},
                  {"last_enqueued_numel", 4},
                  {"last_started_collective", 102},
                  {"last_started_numel", 4},
                  {"last_completed_collective", 102},
                  {"last_completed_numel", 4}}));
}

// If two threads report, the one whose collective ended first may report last.
TEST(FlightRecorderTest, WhatCompletedLastStays) {
  FlightRecorder recorder(10);
  const auto group = recorder.AddGroup({.name = "g"});
  const Instant now = Clock::now();
  const int64_t first = recorder.Add(*group, {.started = now, .sequence = 1});
  const int64_t second = recorder.Add(*group, {.started = now, .sequence = 2});
  recorder.Complete(*group, second, OkStatus(), now);
  recorder.Complete(*group, first, OkStatus(), now);
  EXPECT_THAT(recorder.ToJson(), HasSubstr("\"last_completed_collective\":2,"));
}

// The wall clock may be set back meanwhile.
TEST(FlightRecorderTest, NothingEndsBeforeItHasStarted) {
  FlightRecorder recorder(10);
  const auto group = recorder.AddGroup({.name = "g"});
  const Instant now = Clock::now();
  const int64_t record = recorder.Add(*group, {.started = now, .sequence = 1});
  recorder.Complete(*group, record, OkStatus(), now - microseconds(700));
  EXPECT_THAT(recorder.ToJson(), HasSubstr("\"duration_ms\":0.000000"));
}

TEST(FlightRecorderTest, SeveralThreadsRecordAtOnce) {
  Recorded recorded(50);
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&recorded, i] {
      std::vector<Collective> all = AllSorts();
      for (uint64_t n = 0; n < 500; ++n) {
        recorded.Run(all[n % all.size()], n);
        recorded.End(recorded.Add(all[i], n), n, OkStatus());
        if (n % 100 == 0) Dump(*recorded.recorder);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const json entries = Dump(*recorded.recorder)["entries"];
  for (const json& entry : entries) {
    EXPECT_EQ(entry["state"], "completed");
  }
}

TEST(FlightRecorderTest, WithoutRoomNothingIsKept) {
  FlightRecorder recorder(0);
  const auto group = recorder.AddGroup({.name = "world"});
  recorder.Complete(*group, recorder.Add(*group, {}), OkStatus(), Clock::now());
  EXPECT_EQ(Dump(recorder)["entries"], json::array());
  EXPECT_TRUE(Dump(recorder)["pg_config"].empty());
  recorder.RemoveGroup(*group);
  EXPECT_TRUE(Dump(recorder)["pg_config"].empty());
}

TEST(FlightRecorderTest, AFileIsThereAsAWholeOrNotAtAll) {
  FlightRecorder recorder(10);
  const std::string path = ::testing::TempDir() + "/flight_0";
  ASSERT_TRUE(recorder.WriteTo(path).ok());
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str(), recorder.ToJson());
  std::remove(path.c_str());
  // The last of several writers wins.
  std::vector<std::thread> writers;
  std::atomic<int> failed{0};
  writers.reserve(4);
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 100; ++n) failed += !recorder.WriteTo(path).ok();
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed, 0);
  std::stringstream again;
  again << std::ifstream(path).rdbuf();
  EXPECT_EQ(again.str(), recorder.ToJson());
  std::remove(path.c_str());
  const std::string nowhere = ::testing::TempDir() + "/nowhere/flight_0";
  const Status status = recorder.WriteTo(nowhere);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(),
            "cannot write \"" + nowhere + "\": No such file or directory");
}

std::string MakeJsonString(const std::string& text) {
  std::string json;
  AppendJsonString(text, json);
  return json;
}

TEST(FlightRecorderTest, AnyBytesAreAJsonString) {
  EXPECT_EQ(MakeJsonString("a\"b\\c\n"), R"("a\"b\\c\u000a")");
  // Characters of one to four bytes.
  for (const std::string text :
       {"\x7f", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    EXPECT_EQ(MakeJsonString(text), "\"" + text + "\"");
  }
  // A lone byte, a cut character, an overlong form, a surrogate, a value that
  // is too large.
  EXPECT_EQ(MakeJsonString("x\xff"), R"("x\\xff")");
  EXPECT_EQ(MakeJsonString("\xe2\x82"), R"("\\xe2\\x82")");
  EXPECT_EQ(MakeJsonString("\xc0\xaf"), R"("\\xc0\\xaf")");
  EXPECT_EQ(MakeJsonString("\xed\xa0\x80"), R"("\\xed\\xa0\\x80")");
  EXPECT_EQ(MakeJsonString("\xf4\x90\x80\x80"), R"("\\xf4\\x90\\x80\\x80")");
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first),
                                static_cast<char>(second), 'x'};
      EXPECT_TRUE(json::accept(MakeJsonString(text))) << first << " " << second;
    }
  }
}

}  // namespace
}  // namespace muster::dataplane
