#include "coordinator/server/metrics.h"

#include <chrono>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "name{label,label} type" of every metric, without the labels' values.
std::set<std::string> NamesIn(const std::string& text) {
  std::set<std::string> names;
  std::string type;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex("# TYPE \\S+ (\\S+)"))) {
      type = match[1];
    }
    if (line.empty() || line[0] == '#') continue;
    line = std::regex_replace(line, std::regex("=\"[^\"]*\""), "");
    line = line.substr(0, line.rfind(' '));
    line = std::regex_replace(line, std::regex("_(bucket|sum|count)\\b"), "");
    line = std::regex_replace(line, std::regex(",?\\ble\\b"), "");
    line = std::regex_replace(line, std::regex("\\{\\}"), "");
    names.insert(line + " " + type);
  }
  return names;
}

// Dashboards and alerts depend on these.
TEST(MetricsTest, NamesAndLabelsAreGolden) {
  Metrics metrics([] { return Gauges(); });
  EXPECT_THAT(
      NamesIn(metrics.Scrape()),
      ElementsAre("muster_build_info{version} gauge",
                  "muster_coordinator_barrier_wait_seconds{outcome} histogram",
                  "muster_coordinator_barriers_total{outcome} counter",
                  "muster_coordinator_events_total{kind} counter",
                  "muster_coordinator_jobs gauge",
                  "muster_coordinator_keys gauge",
                  "muster_coordinator_members{state} gauge",
                  "muster_coordinator_open_barriers gauge",
                  "muster_coordinator_rendezvous_seconds histogram",
                  "muster_coordinator_rpc_duration_seconds{method} histogram",
                  "muster_coordinator_rpc_requests_total{code,method} counter",
                  "muster_coordinator_sessions gauge",
                  "muster_coordinator_store_bytes gauge",
                  "muster_coordinator_stream_batch_operations histogram",
                  "muster_coordinator_waiters gauge"));
}

TEST(MetricsTest, CallsAreCountedByMethodAndCode) {
  Metrics metrics([] { return Gauges(); });
  metrics.CountCalls(Method::kSet, absl::StatusCode::kOk,
                     std::chrono::microseconds(50), 16);
  metrics.CountCalls(Method::kSet, absl::StatusCode::kResourceExhausted,
                     std::chrono::microseconds(3));
  metrics.CountBatch(17);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("muster_coordinator_rpc_requests_total{code="
                              "\"OK\",method=\"Set\"} 16\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_rpc_requests_total{code="
                              "\"RESOURCE_EXHAUSTED\",method=\"Set\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_rpc_duration_seconds_bucket{"
                              "method=\"Set\",le=\"5e-06\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_rpc_duration_seconds_bucket{"
                              "method=\"Set\",le=\"0.0001\"} 17\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_stream_batch_operations_"
                              "bucket{le=\"32\"} 1\n"));
}

TEST(MetricsTest, NoticesAndEventsAreCountedByOutcomeAndKind) {
  Metrics metrics([] { return Gauges(); });
  metrics.CountNotice(
      {core::NoticeKind::kBarrierTimedOut, "", std::chrono::seconds(2)});
  metrics.CountNotice(
      {core::NoticeKind::kGenerationFormed, "", std::chrono::milliseconds(3)});
  metrics.CountNotice({core::NoticeKind::kMemberRegistered, "", {}});
  metrics.CountEvent(core::EventKind::kFailed);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("muster_coordinator_barriers_total{outcome="
                              "\"timed_out\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_barrier_wait_seconds_sum{"
                              "outcome=\"timed_out\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_rendezvous_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_events_total{kind="
                              "\"failed\"} 1\n"));
}

TEST(MetricsTest, GaugesAreReadAtTheScrape) {
  Gauges gauges;
  Metrics metrics([&gauges] { return gauges; });
  gauges.keys = 42;
  gauges.members[static_cast<int>(core::MemberState::kLost)] = 3;
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("muster_coordinator_keys 42\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_members{state=\"lost\"} 3\n"));
}

}  // namespace
}  // namespace muster::coordinator
