#include "dataplane/decorators/metering.h"

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dataplane/biased_mutex.h"
#include "dataplane/collective.h"
#include "dataplane/instant.h"
#include "dataplane/releasable_lock.h"
#include "dataplane/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::dataplane {
namespace {

using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::Ge;

class RecordingMetrics : public Metrics {
 public:
  Series& SeriesOf(absl::string_view op, absl::string_view backend) override {
    return series.emplace_back(*this, std::string(op), std::string(backend));
  }

  struct NamedSeries : Series {
    NamedSeries(RecordingMetrics& all, std::string op, std::string backend)
        : all(all), op(std::move(op)), backend(std::move(backend)) {}

    void Finished(size_t bytes, std::chrono::nanoseconds elapsed,
                  absl::StatusCode code) override {
      all.records.emplace_back(op, backend, bytes, elapsed, code);
    }

    RecordingMetrics& all;
    const std::string op;
    const std::string backend;
  };

  std::deque<NamedSeries> series;
  std::vector<std::tuple<std::string, std::string, size_t,
                         std::chrono::nanoseconds, absl::StatusCode>>
      records;
};

TEST(MeteringTest, ReportsEachCollectiveWhenItCompletes) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  const auto metrics = std::make_shared<RecordingMetrics>();
  Metering metering(std::move(fake), metrics);
  std::vector<double> values(5);
  const auto reduce = metering.Start(
      {.kind = CollectiveKind::kAllReduce, .tensors = {Tensor(values)}});
  const auto barrier = metering.Start({.kind = CollectiveKind::kBarrier});
  EXPECT_TRUE(metrics->records.empty());
  backend.works[1]->Complete(absl::OkStatus());
  backend.works[0]->Complete(absl::UnavailableError("gone"));
  EXPECT_THAT(
      metrics->records,
      ElementsAre(
          FieldsAre("barrier", "fake", 0, Ge(std::chrono::nanoseconds(0)),
                    absl::StatusCode::kOk),
          FieldsAre("all_reduce", "fake", 40, Ge(std::chrono::nanoseconds(0)),
                    absl::StatusCode::kUnavailable)));
}

// Another clock may have said when it began.
TEST(MeteringTest, NothingEndsBeforeItHasBegun) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  const auto metrics = std::make_shared<RecordingMetrics>();
  Metering metering(std::move(fake), metrics);
  const Collective barrier = {.kind = CollectiveKind::kBarrier,
                              .started = Clock::now() + std::chrono::hours(1)};
  const auto work = metering.Start(barrier);
  backend.works[0]->Complete(absl::OkStatus());
  BiasedMutex mutex;
  ReleasableLock order(mutex);
  EXPECT_TRUE(metering.Run(barrier, order).status.ok());
  const auto at_once = FieldsAre(
      "barrier", "fake", 0, std::chrono::nanoseconds(0), absl::StatusCode::kOk);
  EXPECT_THAT(metrics->records, ElementsAre(at_once, at_once));
}

TEST(MeteringTest, ReportsWhatTheCallerWaitsFor) {
  auto fake = std::make_unique<testing::FakeBackend>();
  fake->run = [] { return absl::UnavailableError("gone"); };
  const auto metrics = std::make_shared<RecordingMetrics>();
  Metering metering(std::move(fake), metrics);
  BiasedMutex mutex;
  ReleasableLock order(mutex);
  EXPECT_EQ(metering.Run({.kind = CollectiveKind::kBarrier}, order).status,
            absl::UnavailableError("gone"));
  EXPECT_THAT(metrics->records,
              ElementsAre(FieldsAre("barrier", "fake", 0,
                                    Ge(std::chrono::nanoseconds(0)),
                                    absl::StatusCode::kUnavailable)));
}

TEST(MeteringTest, AsksOnceForTheSeriesOfAKind) {
  auto fake = std::make_unique<testing::FakeBackend>();
  fake->run = [] { return absl::OkStatus(); };
  const auto metrics = std::make_shared<RecordingMetrics>();
  Metering metering(std::move(fake), metrics);
  for (const CollectiveKind kind :
       {CollectiveKind::kBarrier, CollectiveKind::kBroadcast,
        CollectiveKind::kBarrier}) {
    BiasedMutex mutex;
    ReleasableLock order(mutex);
    EXPECT_TRUE(metering.Run({.kind = kind}, order).status.ok());
  }
  EXPECT_EQ(metrics->series.size(), 2);
  EXPECT_EQ(std::get<0>(metrics->records.back()), "barrier");
}

TEST(MeteringTest, PassesEverythingElseOn) {
  auto fake = std::make_unique<testing::FakeBackend>();
  testing::FakeBackend& backend = *fake;
  backend.supports = absl::UnimplementedError("no");
  Metering metering(std::move(fake), std::make_shared<RecordingMetrics>());
  EXPECT_EQ(metering.name(), "fake");
  EXPECT_EQ(metering.devices().size(), 1u);
  EXPECT_EQ(metering.Supports({}), absl::UnimplementedError("no"));
  for (const bool looks : {true, false}) {
    backend.looks = looks;
    EXPECT_EQ(metering.looks_where_tensors_are({}), looks);
  }
  metering.Abort(absl::AbortedError("stop"));
  EXPECT_THAT(backend.aborts, ElementsAre(absl::AbortedError("stop")));
}

}  // namespace
}  // namespace muster::dataplane
