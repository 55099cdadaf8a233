#include "coordinator/server/ops/metrics.h"

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// "name{label,label}" of a sample, without values and histogram parts.
std::string ParseName(absl::string_view sample) {
  const size_t brace = sample.find('{');
  const size_t close = sample.find('}');
  std::string name(sample.substr(0, sample.find_first_of("{ ")));
  for (const absl::string_view part : {"_bucket", "_sum", "_count"}) {
    if (absl::EndsWith(name, part)) name.resize(name.size() - part.size());
  }
  if (brace == absl::string_view::npos) return name;
  std::vector<std::string> labels;
  const absl::string_view all = sample.substr(brace + 1, close - brace - 1);
  for (const absl::string_view label : absl::StrSplit(all, ',')) {
    const absl::string_view key = label.substr(0, label.find('='));
    if (key != "le") labels.push_back(std::string(key));
  }
  if (labels.empty()) return name;
  return absl::StrCat(name, "{", absl::StrJoin(labels, ","), "}");
}

// "name{label,label} type" of every metric.
std::set<std::string> NamesIn(const std::string& text) {
  std::set<std::string> names;
  std::string type;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "# TYPE ")) {
      type = std::string(line.substr(line.rfind(' ') + 1));
    } else if (!absl::StartsWith(line, "#")) {
      names.insert(absl::StrCat(ParseName(line), " ", type));
    }
  }
  return names;
}

// Dashboards and alerts depend on these.
TEST(MetricsTest, NamesAndLabelsAreGolden) {
  Metrics metrics([] { return Gauges(); });
  EXPECT_THAT(
      NamesIn(metrics.Scrape()),
      ElementsAre(
          "muster_build_info{version} gauge",
          "muster_coordinator_barrier_wait_seconds{outcome} histogram",
          "muster_coordinator_barriers_total{outcome} counter",
          "muster_coordinator_events_total{kind} counter",
          "muster_coordinator_groups gauge", "muster_coordinator_jobs gauge",
          "muster_coordinator_keys gauge",
          "muster_coordinator_members{state} gauge",
          "muster_coordinator_open_barriers gauge",
          "muster_coordinator_queue_items gauge",
          "muster_coordinator_refused_files gauge",
          "muster_coordinator_relays gauge",
          "muster_coordinator_rendezvous_seconds histogram",
          "muster_coordinator_rpc_duration_seconds{method} histogram",
          "muster_coordinator_rpc_requests_total{code,method} counter",
          "muster_coordinator_sessions gauge",
          "muster_coordinator_storage_commit_seconds histogram",
          "muster_coordinator_storage_commit_steps histogram",
          "muster_coordinator_storage_records_total counter",
          "muster_coordinator_storage_uncommitted_steps gauge",
          "muster_coordinator_store_bytes gauge",
          "muster_coordinator_stream_batch_operations histogram",
          "muster_coordinator_waiters gauge",
          "process_cpu_seconds_total counter", "process_max_fds gauge",
          "process_open_fds gauge", "process_resident_memory_bytes gauge",
          "process_start_time_seconds gauge",
          "process_virtual_memory_bytes gauge"));
}

TEST(MetricsTest, CallsAreCountedByMethodAndCode) {
  Metrics metrics([] { return Gauges(); });
  metrics.CountCalls(Method::kSet, StatusCode::kOk,
                     std::chrono::microseconds(50), 16);
  metrics.CountCalls(Method::kSet, StatusCode::kResourceExhausted,
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

TEST(MetricsTest, CommitsAreCountedWithTheirStepsAndRecords) {
  Metrics metrics([] { return Gauges(); });
  metrics.CountCommit(std::chrono::milliseconds(3), 5, 12);
  metrics.CountCommit(std::chrono::milliseconds(3), 1, 1);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_storage_commit_seconds_bucket{"
                        "le=\"0.01\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_storage_commit_steps_bucket{"
                              "le=\"1\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_storage_records_total 13\n"));
}

TEST(MetricsTest, NoticesAndEventsAreCountedByOutcomeAndKind) {
  Metrics metrics([] { return Gauges(); });
  metrics.CountNotice(
      {core::NoticeKind::kBarrierTimedOut, "", std::chrono::seconds(2)});
  metrics.CountNotice(
      {core::NoticeKind::kGenerationFormed, "", std::chrono::milliseconds(3)});
  metrics.CountNotice({core::NoticeKind::kMemberRegistered, "", {}});
  metrics.CountEvent(core::EventKind::kFailed, 1);
  metrics.CountEvent(core::EventKind::kLeft, 3);
  metrics.CountEvent(core::EventKind::kLeft, 1);
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("muster_coordinator_barriers_total{outcome="
                              "\"timed_out\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_barrier_wait_seconds_sum{"
                              "outcome=\"timed_out\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_rendezvous_seconds_count 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_events_total{kind="
                              "\"failed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("muster_coordinator_events_total{kind="
                              "\"left\"} 4\n"));
}

TEST(MetricsTest, GaugesAreReadAtTheScrape) {
  Gauges gauges;
  Metrics metrics([&gauges] { return gauges; });
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("expiry")));
  gauges.keys = 42;
  gauges.certificate_expiry = 1234;
  gauges.token_expiry = 5678;
  gauges.members[static_cast<int>(core::MemberState::kLost)] = 3;
  const std::string text = metrics.Scrape();
  EXPECT_THAT(text, HasSubstr("muster_coordinator_keys 42\n"));
  EXPECT_THAT(
      text, HasSubstr("muster_coordinator_certificate_expiry_seconds 1234\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_token_expiry_seconds 5678\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_coordinator_members{state=\"lost\"} 3\n"));
}

}  // namespace
}  // namespace muster::coordinator
