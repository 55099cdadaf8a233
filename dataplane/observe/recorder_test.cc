#include "dataplane/observe/recorder.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "dataplane/observe/flight_recorder.h"
#include "dataplane/observe/metrics.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "muster/base/clock.h"
#include "muster/base/status.h"
#include "muster/dataplane/collective.h"
#include "muster/dataplane/tensor.h"
#include "nlohmann/json.hpp"

namespace muster::dataplane {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Not;

json Dump(const FlightRecorder& recorder) {
  return json::parse(recorder.ToJson());
}

// Runs it as a Communicator does.
Status EnterAndRun(Backend& backend, const Collective& collective,
                   Backend::Prepared* prepared = nullptr) {
  const Ticket ticket = backend.Enter(collective);
  return backend.Run(collective, prepared, ticket).status;
}

class RecorderTest : public ::testing::Test {
 protected:
  explicit RecorderTest(size_t capacity = 100)
      : recorder_(std::make_shared<FlightRecorder>(capacity)) {
    auto fake = std::make_unique<testing::FakeBackend>();
    fake_ = fake.get();
    recording_ = std::make_unique<Recorder>(
        std::move(fake), recorder_,
        FlightRecorder::Group{.name = "tp",
                              .description = "tensor \"parallel\"\n",
                              .backend = "gloo",
                              .ranks = {1, 3}},
        /*metrics=*/nullptr, [this](const Status& why) {
          failures_.push_back(std::string(why.message()));
        });
  }

  void Start(CollectiveKind kind, uint64_t sequence) {
    Collective collective;
    collective.kind = kind;
    collective.sequence = sequence;
    collective.timeout = std::chrono::seconds(30);
    collective.started = Clock::now();
    if (kind == CollectiveKind::kSend) {
      collective.inputs = {Tensor(floats_.data(), {2, 3})};
    } else if (kind == CollectiveKind::kAllGatherIntoTensor) {
      collective.inputs = {Tensor(floats_.data(), {3})};
      collective.outputs = {Tensor(floats_.data(), {6})};
    } else if (kind == CollectiveKind::kAllReduce) {
      collective.tensors = {Tensor(floats_.data(), DataType::kBfloat16, {4})};
    }
    recording_->Start(collective)->OnCompletion([](const Status&) {});
  }

  std::vector<float> floats_ = std::vector<float>(12);
  std::shared_ptr<FlightRecorder> recorder_;
  testing::FakeBackend* fake_;
  std::vector<std::string> failures_;
  std::unique_ptr<Recorder> recording_;
};

TEST_F(RecorderTest, HasTheFieldsThatToolsRead) {
  Start(CollectiveKind::kAllGatherIntoTensor, 1);
  Start(CollectiveKind::kSend, 1);
  Start(CollectiveKind::kAllReduce, 2);
  fake_->works[0]->Complete(OkStatus());
  const json dump = Dump(*recorder_);
  EXPECT_EQ(dump["version"], "2.10");
  EXPECT_TRUE(dump.contains("comm_lib_version"));
  EXPECT_EQ(dump["nccl_comm_state"], json::object());
  EXPECT_EQ(dump["pg_config"]["0"]["name"], "tp");
  EXPECT_EQ(dump["pg_config"]["0"]["desc"], "tensor \"parallel\"\n");
  EXPECT_EQ(dump["pg_config"]["0"]["ranks"], "[1, 3]");
  EXPECT_EQ(dump["pg_status"]["0"], json({{"last_enqueued_collective", 2},
                                          {"last_enqueued_numel", 4},
                                          {"last_started_collective", 2},
                                          {"last_started_numel", 4},
                                          {"last_completed_collective", 1},
                                          {"last_completed_numel", 3}}));
  ASSERT_EQ(dump["entries"].size(), 3U);
  const json& gather = dump["entries"][0];
  EXPECT_EQ(gather["record_id"], 0);
  EXPECT_EQ(gather["pg_id"], 0);
  EXPECT_EQ(gather["process_group"][0], "tp");
  EXPECT_EQ(gather["collective_seq_id"], 1);
  EXPECT_EQ(gather["p2p_seq_id"], 0);
  EXPECT_EQ(gather["op_id"], 1);
  EXPECT_EQ(gather["profiling_name"], "gloo:all_gather_into_tensor");
  EXPECT_EQ(gather["input_sizes"], json::parse("[[3]]"));
  EXPECT_EQ(gather["input_dtypes"], json::parse("[\"Float\"]"));
  EXPECT_EQ(gather["output_sizes"], json::parse("[[6]]"));
  EXPECT_EQ(gather["output_dtypes"], json::parse("[\"Float\"]"));
  EXPECT_EQ(gather["timeout_ms"], 30'000);
  EXPECT_EQ(gather["state"], "completed");
  EXPECT_EQ(gather["retired"], true);
  EXPECT_EQ(gather["is_p2p"], false);
  EXPECT_EQ(gather["frames"], json::array());
  EXPECT_GE(gather["duration_ms"], 0);
  EXPECT_GE(gather["time_discovered_completed_ns"],
            gather["time_discovered_started_ns"]);
  EXPECT_GE(gather["time_discovered_started_ns"], gather["time_created_ns"]);
  EXPECT_TRUE(gather.contains("thread_id"));
  EXPECT_TRUE(gather.contains("thread_name"));
  const json& send = dump["entries"][1];
  EXPECT_EQ(send["is_p2p"], true);
  EXPECT_EQ(send["p2p_seq_id"], 1);
  EXPECT_EQ(send["collective_seq_id"], 1);
  EXPECT_EQ(send["state"], "started");
  EXPECT_EQ(send["op_id"], 2);
  const json& reduce = dump["entries"][2];
  EXPECT_EQ(reduce["input_dtypes"], json::parse("[\"BFloat16\"]"));
  EXPECT_EQ(reduce["output_sizes"], json::parse("[[4]]"));
  // The collective before it has completed.
  EXPECT_EQ(reduce["state"], "started");
  EXPECT_EQ(reduce["retired"], false);
  EXPECT_TRUE(reduce["time_discovered_completed_ns"].is_null());
}

TEST_F(RecorderTest, HasWhatTheBackendSaysOfItsCommunicatorsWhileItLives) {
  fake_->states = {{"nccl", {{"rank", "1"}, {"state", "ready"}}}};
  EXPECT_EQ(Dump(*recorder_)["nccl_comm_state"],
            json({{"tp/nccl", {{"rank", "1"}, {"state", "ready"}}}}));
  recording_ = nullptr;
  EXPECT_EQ(Dump(*recorder_)["nccl_comm_state"], json::object());
}

TEST_F(RecorderTest, OneStartsWhenTheOneBeforeItIsComplete) {
  for (uint64_t i = 1; i <= 3; ++i) Start(CollectiveKind::kAllReduce, i);
  const auto states = [&] {
    std::vector<std::string> states;
    const json dump = Dump(*recorder_);
    for (const json& entry : dump["entries"]) states.push_back(entry["state"]);
    return states;
  };
  EXPECT_THAT(states(), ElementsAre("started", "scheduled", "scheduled"));
  fake_->works[0]->Complete(OkStatus());
  EXPECT_THAT(states(), ElementsAre("completed", "started", "scheduled"));
  fake_->works[1]->Complete(UnavailableError("rank 3 is gone"));
  recording_->Abort(UnavailableError("rank 3 is gone"));
  recording_->Abort(UnavailableError("again"));
  EXPECT_THAT(states(), ElementsAre("completed", "started", "scheduled"));
  const json dump = Dump(*recorder_);
  EXPECT_EQ(dump["entries"][1]["error"], "rank 3 is gone");
  EXPECT_EQ(dump["entries"][2]["error"], "rank 3 is gone");
  EXPECT_FALSE(dump["entries"][0].contains("error"));
  EXPECT_THAT(failures_, ElementsAre("rank 3 is gone"));
}

TEST_F(RecorderTest, TheEndOfAGroupIsNoFailureAndItsEntriesStay) {
  Start(CollectiveKind::kBarrier, 1);
  fake_->works[0]->Complete(OkStatus());
  recording_->Abort(CancelledError("destroyed"));
  recording_ = nullptr;
  EXPECT_TRUE(failures_.empty());
  EXPECT_EQ(Dump(*recorder_)["entries"][0]["process_group"][0], "tp");
}

TEST_F(RecorderTest, OneThatItsCallerWaitsForIsThereWhileItWaits) {
  const auto run = [&](uint64_t sequence) {
    return EnterAndRun(*recording_,
                       {.started = Clock::now(), .sequence = sequence});
  };
  const auto state = [&](size_t entry) {
    return Dump(*recorder_)["entries"].at(entry)["state"];
  };
  fake_->run = [&] {
    EXPECT_EQ(state(0), "started");
    return OkStatus();
  };
  EXPECT_TRUE(run(1).ok());
  json dump = Dump(*recorder_);
  ASSERT_EQ(dump["entries"].size(), 1U);
  EXPECT_EQ(dump["entries"][0]["state"], "completed");
  EXPECT_EQ(dump["entries"][0]["retired"], true);
  EXPECT_EQ(dump["pg_status"]["0"]["last_completed_collective"], 1);
  fake_->run = [] { return UnavailableError("rank 3 is gone"); };
  EXPECT_FALSE(run(2).ok());
  dump = Dump(*recorder_);
  ASSERT_EQ(dump["entries"].size(), 2U);
  EXPECT_EQ(dump["entries"][1]["state"], "started");
  EXPECT_EQ(dump["entries"][1]["retired"], true);
  EXPECT_EQ(dump["entries"][1]["error"], "rank 3 is gone");
  EXPECT_EQ(dump["pg_status"]["0"]["last_completed_collective"], 1);
}

// Records come in the order in which collectives get their places.
TEST_F(RecorderTest, OneIsThereWhenItHasItsPlace) {
  const Collective first = {.started = Clock::now(), .sequence = 1};
  const Collective second = {.started = Clock::now(), .sequence = 2};
  const Ticket tickets[] = {recording_->Enter(first),
                            recording_->Enter(second)};
  json entries = Dump(*recorder_)["entries"];
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0]["state"], "started");
  EXPECT_EQ(entries[1]["state"], "scheduled");
  EXPECT_TRUE(recording_->Run(second, nullptr, tickets[1]).status.ok());
  EXPECT_TRUE(recording_->Run(first, nullptr, tickets[0]).status.ok());
  entries = Dump(*recorder_)["entries"];
  for (const int i : {0, 1}) {
    EXPECT_EQ(entries[i]["collective_seq_id"], i + 1);
    EXPECT_EQ(entries[i]["state"], "completed");
  }
}

// The inner backend may leave the run to another thread.
TEST_F(RecorderTest, OneThatAnotherThreadRunsIsRecordedOnce) {
  class Starting : public testing::FakeBackend {
   public:
    Ticket Enter(const Collective& collective) override {
      return Backend::Enter(collective);
    }
    Completion Run(const Collective& collective, Prepared* prepared,
                   const Ticket& ticket) override {
      works.back()->Complete(OkStatus());
      return Backend::Run(collective, prepared, ticket);
    }
  };
  Recorder recording(std::make_unique<Starting>(), recorder_, {.name = "dp"});
  EXPECT_TRUE(EnterAndRun(recording, {.sequence = 1}).ok());
  const json entries = Dump(*recorder_)["entries"];
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0]["state"], "completed");
}

TEST_F(RecorderTest, WhatTheBackendHasPreparedIsItsOwn) {
  const auto prepared = recording_->Prepare({});
  ASSERT_EQ(fake_->prepared.size(), 1U);
  EXPECT_TRUE(EnterAndRun(*recording_, {}, prepared.get()).ok());
  EXPECT_THAT(fake_->run_with, ElementsAre(prepared.get()));
}

TEST_F(RecorderTest, AnEntryNamesTheThreadOfItsCall) {
  const auto start = [&] { Start(CollectiveKind::kBarrier, 1); };
  start();
  start();
  std::thread(start).join();
  const json entries = Dump(*recorder_)["entries"];
  EXPECT_EQ(entries.at(0)["thread_id"], entries.at(1)["thread_id"]);
  EXPECT_NE(entries.at(1)["thread_id"], entries.at(2)["thread_id"]);
}

class SmallRecorderTest : public RecorderTest {
 protected:
  SmallRecorderTest() : RecorderTest(3) {}
};

TEST_F(SmallRecorderTest, TheOldestGo) {
  for (uint64_t i = 1; i <= 5; ++i) Start(CollectiveKind::kBarrier, i);
  json dump = Dump(*recorder_);
  ASSERT_EQ(dump["entries"].size(), 3U);
  EXPECT_EQ(dump["entries"][0]["record_id"], 2);
  EXPECT_EQ(dump["entries"][2]["record_id"], 4);
  // Collectives without an entry can complete.
  for (int i = 0; i < 4; ++i) fake_->works[i]->Complete(OkStatus());
  dump = Dump(*recorder_);
  EXPECT_EQ(dump["entries"][1]["state"], "completed");
  EXPECT_EQ(dump["entries"][2]["state"], "started");
  // A group without entries is removed, too.
  recording_ = nullptr;
  const auto next = recorder_->AddGroup({.name = "next"});
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(Dump(*recorder_)["pg_config"].size(), 2U);
    recorder_->Add(*next, {.sequence = i});
  }
  EXPECT_EQ(Dump(*recorder_)["pg_config"].size(), 1U);
}

TEST_F(SmallRecorderTest, ACollectiveMayEndWhenItsGroupIsForgotten) {
  Start(CollectiveKind::kAllReduce, 1);
  Start(CollectiveKind::kAllReduce, 2);
  const auto works = fake_->works;
  recording_ = nullptr;
  const auto next = recorder_->AddGroup({.name = "next"});
  for (uint64_t i = 1; i <= 3; ++i) recorder_->Add(*next, {.sequence = i});
  const std::string before = recorder_->ToJson();
  EXPECT_THAT(before, Not(HasSubstr("\"tp\"")));
  works[0]->Complete(OkStatus());
  works[1]->Complete(UnavailableError("gone"));
  EXPECT_EQ(recorder_->ToJson(), before);
}

TEST_F(SmallRecorderTest, NothingStaysOfWhatWasThere) {
  std::vector<float> floats(16);
  Collective large = {.kind = CollectiveKind::kAllToAllSingle, .sequence = 1};
  large.inputs = {Tensor(floats.data(), {2, 1, 2, 1, 4})};
  large.outputs = {Tensor(floats.data(), {16})};
  recording_->Start(large)->OnCompletion([](const Status&) {});
  fake_->works[0]->Complete(UnknownError("broken"));
  for (uint64_t i = 2; i <= 4; ++i) Start(CollectiveKind::kAllReduce, i);
  const json entries = Dump(*recorder_)["entries"];
  ASSERT_EQ(entries.size(), 3U);
  for (const json& entry : entries) {
    EXPECT_EQ(entry["input_sizes"], json({{4}}));
    EXPECT_EQ(entry["output_sizes"], json({{4}}));
    EXPECT_EQ(entry["input_dtypes"], json({"BFloat16"}));
    EXPECT_FALSE(entry.contains("error"));
  }
}

class FakeMetrics : public Metrics {
 public:
  Series& GetSeries(absl::string_view op, absl::string_view backend) override {
    return series.emplace_back(*this, std::string(op), std::string(backend));
  }

  struct NamedSeries : Series {
    NamedSeries(FakeMetrics& all, std::string op, std::string backend)
        : all(all), op(std::move(op)), backend(std::move(backend)) {}

    void Finished(size_t bytes, std::chrono::nanoseconds elapsed,
                  StatusCode code) override {
      all.records.emplace_back(op, backend, bytes, elapsed, code);
    }

    FakeMetrics& all;
    const std::string op;
    const std::string backend;
  };

  std::deque<NamedSeries> series;
  std::vector<std::tuple<std::string, std::string, size_t,
                         std::chrono::nanoseconds, StatusCode>>
      records;
};

std::shared_ptr<FlightRecorder> NoRecorder() {
  return std::make_shared<FlightRecorder>(0);
}

TEST(RecorderMetricsTest, ReportsEachCollectiveWhenItCompletes) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  const auto metrics = std::make_shared<FakeMetrics>();
  Recorder recording(std::move(fake), NoRecorder(), {}, metrics);
  std::vector<double> values(5);
  const auto reduce = recording.Start(
      {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
  const auto barrier = recording.Start({.kind = CollectiveKind::kBarrier});
  EXPECT_TRUE(metrics->records.empty());
  backend.works[1]->Complete(OkStatus());
  backend.works[0]->Complete(UnavailableError("gone"));
  EXPECT_THAT(
      metrics->records,
      ElementsAre(
          FieldsAre("barrier", "fake", 0, Ge(std::chrono::nanoseconds(0)),
                    StatusCode::kOk),
          FieldsAre("all_reduce", "fake", 40, Ge(std::chrono::nanoseconds(0)),
                    StatusCode::kUnavailable)));
}

TEST(RecorderMetricsTest, ReportsWhatTheCallerWaitsFor) {
  auto fake = std::make_unique<testing::FakeBackend>();
  fake->run = [] { return UnavailableError("gone"); };
  const auto metrics = std::make_shared<FakeMetrics>();
  Recorder recording(std::move(fake), NoRecorder(), {}, metrics);
  EXPECT_EQ(EnterAndRun(recording, {.kind = CollectiveKind::kBarrier}),
            UnavailableError("gone"));
  EXPECT_THAT(metrics->records,
              ElementsAre(FieldsAre("barrier", "fake", 0,
                                    Ge(std::chrono::nanoseconds(0)),
                                    StatusCode::kUnavailable)));
}

TEST(RecorderMetricsTest, AsksOnceForTheSeriesOfAKind) {
  auto fake = std::make_unique<testing::FakeBackend>();
  fake->run = [] { return OkStatus(); };
  const auto metrics = std::make_shared<FakeMetrics>();
  Recorder recording(std::move(fake), NoRecorder(), {}, metrics);
  for (const CollectiveKind kind :
       {CollectiveKind::kBarrier, CollectiveKind::kBroadcast,
        CollectiveKind::kBarrier}) {
    EXPECT_TRUE(EnterAndRun(recording, {.kind = kind}).ok());
  }
  EXPECT_EQ(metrics->series.size(), 2);
  EXPECT_EQ(std::get<0>(metrics->records.back()), "barrier");
}

TEST(RecorderMetricsTest, PassesEverythingElseOn) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  backend.supports = UnimplementedError("no");
  Recorder recording(std::move(fake), NoRecorder(), {},
                     std::make_shared<FakeMetrics>());
  EXPECT_EQ(recording.name(), "fake");
  EXPECT_EQ(recording.devices().size(), 1u);
  EXPECT_EQ(recording.Supports({}), UnimplementedError("no"));
  recording.Abort(AbortedError("stop"));
  EXPECT_THAT(backend.aborts, ElementsAre(AbortedError("stop")));
}

TEST(RecorderMetricsTest, WhatIsReportedIsWrittenDownAsWell) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  fake->run = [] { return OkStatus(); };
  const auto recorder = std::make_shared<FlightRecorder>(10);
  const auto metrics = std::make_shared<FakeMetrics>();
  Recorder recording(std::move(fake), recorder, {}, metrics);
  const auto work = recording.Start(
      {.kind = CollectiveKind::kBarrier, .started = Clock::now()});
  backend.works[0]->Complete(OkStatus());
  EXPECT_TRUE(
      EnterAndRun(recording, {.started = Clock::now(), .sequence = 1}).ok());
  EXPECT_EQ(metrics->records.size(), 2U);
  const json entries = Dump(*recorder)["entries"];
  ASSERT_EQ(entries.size(), 2U);
  for (const json& entry : entries) EXPECT_EQ(entry["state"], "completed");
}

}  // namespace
}  // namespace muster::dataplane
