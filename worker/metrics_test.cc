#include "worker/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace muster::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Every series of `text` as name{label,...}, without values and `le` bounds.
std::set<std::string> Series(const std::string& text) {
  std::set<std::string> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::string name = line.substr(0, line.find_first_of("{ "));
    std::string labels;
    bool in_value = false;
    const size_t open = line.find('{');
    if (open != std::string::npos) {
      std::string label;
      for (const char c : line.substr(open + 1)) {
        if (c == '"') {
          in_value = !in_value;
        } else if (!in_value && (c == '=' || c == '}')) {
          if (!label.empty()) {
            if (!labels.empty()) labels += ',';
            labels += label;
          }
          label.clear();
        } else if (!in_value && c != ',') {
          label += c;
        }
        if (!in_value && c == '}') break;
      }
    }
    std::string all = name;
    all.append("{").append(labels).append("}");
    series.insert(std::move(all));
  }
  return series;
}

// Dashboards depend on these: a change here is a change for every operator.
TEST(MetricsTest, NamesAndLabelsAreThese) {
  const auto metrics = Metrics::Create();
  metrics->CollectiveFinished("all_reduce", "gloo", 4096, 0.002,
                              absl::StatusCode::kOk);
  EXPECT_THAT(
      Series(metrics->Render()),
      ElementsAre(
          "muster_build_info{version}",
          "muster_dataplane_collective_bytes_total{backend,op}",
          "muster_dataplane_collective_duration_seconds_bucket{backend,op,le}",
          "muster_dataplane_collective_duration_seconds_count{backend,op}",
          "muster_dataplane_collective_duration_seconds_sum{backend,op}",
          "muster_dataplane_collective_running_seconds{}",
          "muster_dataplane_collectives_total{backend,code,op}",
          "muster_worker_rank{}", "muster_worker_world_size{}",
          "process_cpu_seconds_total{}", "process_open_fds{}",
          "process_resident_memory_bytes{}", "process_start_time_seconds{}"));
}

TEST(MetricsTest, CountsCollectivesBytesAndSeconds) {
  const auto metrics = Metrics::Create();
  metrics->CollectiveFinished("all_reduce", "gloo", 4096, 0.25,
                              absl::StatusCode::kOk);
  metrics->CollectiveFinished("all_reduce", "gloo", 1024, 0.5,
                              absl::StatusCode::kOk);
  const std::string text = metrics->Render();
  EXPECT_THAT(text, HasSubstr("muster_dataplane_collectives_total{backend="
                              "\"gloo\",code=\"OK\",op=\"all_reduce\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("muster_dataplane_collective_bytes_total{"
                              "backend=\"gloo\",op=\"all_reduce\"} 5120\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collective_duration_seconds_sum{"
                        "backend=\"gloo\",op=\"all_reduce\"} 0.75\n"));
}

TEST(MetricsTest, FailedCollectivesCountByCodeAlone) {
  const auto metrics = Metrics::Create();
  metrics->CollectiveFinished("barrier", "gloo", 0, 30,
                              absl::StatusCode::kDeadlineExceeded);
  const std::string text = metrics->Render();
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collectives_total{backend=\"gloo\","
                        "code=\"DEADLINE_EXCEEDED\",op=\"barrier\"} 1\n"));
  EXPECT_THAT(
      text,
      Not(HasSubstr("muster_dataplane_collective_duration_seconds_count{")));
}

TEST(MetricsTest, WhatRunsIsTheLastValueThatWasSet) {
  const auto metrics = Metrics::Create();
  EXPECT_THAT(metrics->Render(),
              HasSubstr("\nmuster_dataplane_collective_running_seconds 0\n"));
  metrics->SetRunning(std::chrono::milliseconds(1500));
  EXPECT_THAT(metrics->Render(),
              HasSubstr("\nmuster_dataplane_collective_running_seconds 1.5\n"));
}

TEST(MetricsTest, RankAndWorldSizeAreValues) {
  const auto metrics = Metrics::Create();
  EXPECT_THAT(metrics->Render(), HasSubstr("\nmuster_worker_rank -1\n"));
  metrics->SetRank(3, 8);
  const std::string text = metrics->Render();
  EXPECT_THAT(text, HasSubstr("\nmuster_worker_rank 3\n"));
  EXPECT_THAT(text, HasSubstr("\nmuster_worker_world_size 8\n"));
}

}  // namespace
}  // namespace muster::worker
