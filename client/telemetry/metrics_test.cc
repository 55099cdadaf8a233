#include "client/telemetry/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/telemetry/data_parallel_metrics.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns every series of `text` as name{label,...}, without values and `le`.
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

// Dashboards depend on these: a change affects every operator.
TEST(MetricsTest, NamesAndLabelsAreThese) {
  const auto metrics = Metrics::Create();
  metrics->GetSeries("all_reduce", "gloo")
      .Finished(4096, milliseconds(2), StatusCode::kOk);
  FindDataParallelTotals("all_reduce").steps += 1;
  EXPECT_THAT(
      Series(metrics->Render()),
      ElementsAre(
          "muster_build_info{version}",
          "muster_data_parallel_backward_compute_seconds_total{hook}",
          "muster_data_parallel_bucket_bytes{hook}",
          "muster_data_parallel_buckets{hook}",
          "muster_data_parallel_communication_seconds_total{hook}",
          "muster_data_parallel_exposed_communication_seconds_total{hook}",
          "muster_data_parallel_overlap_seconds_total{hook}",
          "muster_data_parallel_steps_total{hook}",
          "muster_dataplane_collective_bytes_total{backend,op}",
          "muster_dataplane_collective_duration_seconds_bucket{backend,op,le}",
          "muster_dataplane_collective_duration_seconds_count{backend,op}",
          "muster_dataplane_collective_duration_seconds_sum{backend,op}",
          "muster_dataplane_collective_running_seconds{}",
          "muster_dataplane_collectives_total{backend,code,op}",
          "muster_dataplane_refused_connections_total{}",
          "muster_worker_rank{}", "muster_worker_world_size{}",
          "process_cpu_seconds_total{}", "process_open_fds{}",
          "process_resident_memory_bytes{}", "process_start_time_seconds{}"));
}

TEST(MetricsTest, CountsRefusedConnections) {
  const auto metrics = Metrics::Create();
  dataplane::refused_connections += 2;
  EXPECT_THAT(metrics->Render(),
              HasSubstr("\nmuster_dataplane_refused_connections_total 2\n"));
  dataplane::refused_connections += 1;
  EXPECT_THAT(metrics->Render(),
              HasSubstr("\nmuster_dataplane_refused_connections_total 3\n"));
}

TEST(MetricsTest, SaysWhatDataParallelsDidByTheirHook) {
  const auto metrics = Metrics::Create();
  DataParallelTotals& totals =
      FindDataParallelTotals("power_sgd with rank 2, start_step 0");
  totals.steps += 3;
  totals.compute_time += 4'000'000'000;
  totals.communication_time += 2'500'000'000;
  totals.overlap_time += 2'000'000'000;
  totals.exposed_time += 500'000'000;
  totals.buckets += 5;
  totals.bucket_bytes += 4096;
  const std::string text = metrics->Render();
  for (const std::string line :
       {"steps_total{hook=\"power_sgd\"} 3",
        "backward_compute_seconds_total{hook=\"power_sgd\"} 4",
        "communication_seconds_total{hook=\"power_sgd\"} 2.5",
        "overlap_seconds_total{hook=\"power_sgd\"} 2",
        "exposed_communication_seconds_total{hook=\"power_sgd\"} 0.5",
        "buckets{hook=\"power_sgd\"} 5",
        "bucket_bytes{hook=\"power_sgd\"} 4096"}) {
    EXPECT_THAT(text, HasSubstr("\nmuster_data_parallel_" + line + "\n"));
  }
  EXPECT_THAT(text, Not(HasSubstr("hook=\"custom\"")));
  EXPECT_EQ(&FindDataParallelTotals("anything"),
            &FindDataParallelTotals("power_sgd_of_mine"));
  EXPECT_NE(&FindDataParallelTotals("anything"), &totals);
}

TEST(MetricsTest, CountsCollectivesBytesAndSeconds) {
  const auto metrics = Metrics::Create();
  Metrics::Series& series = metrics->GetSeries("all_reduce", "gloo");
  series.Finished(4096, milliseconds(250), StatusCode::kOk);
  series.Finished(1024, milliseconds(500), StatusCode::kOk);
  const std::string text = metrics->Render();
  EXPECT_THAT(text, HasSubstr("muster_dataplane_collectives_total{backend="
                              "\"gloo\",code=\"OK\",op=\"all_reduce\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("muster_dataplane_collective_bytes_total{"
                              "backend=\"gloo\",op=\"all_reduce\"} 5120\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collective_duration_seconds_sum{"
                        "backend=\"gloo\",op=\"all_reduce\"} 0.75\n"));
}

// Groups on threads of their own share one series.
TEST(MetricsTest, CountsEachOfThoseThatCompleteAtOnce) {
  constexpr int kThreads = 8;
  constexpr int kTimes = 20000;
  const auto metrics = Metrics::Create();
  Metrics::Series& series = metrics->GetSeries("all_reduce", "shm");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int time = 0; time < kTimes; ++time) {
        series.Finished(4, nanoseconds(50), StatusCode::kOk);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::string text = metrics->Render();
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collectives_total{backend="
                        "\"shm\",code=\"OK\",op=\"all_reduce\"} 160000\n"));
  EXPECT_THAT(text, HasSubstr("muster_dataplane_collective_bytes_total{"
                              "backend=\"shm\",op=\"all_reduce\"} 640000\n"));
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collective_duration_seconds_sum{"
                        "backend=\"shm\",op=\"all_reduce\"} 0.008\n"));
}

// Later threads mostly have the address of the first one's variables.
TEST(MetricsTest, CountsEachOfThreadsThatComeOneAfterTheOther) {
  const auto metrics = Metrics::Create();
  Metrics::Series& series = metrics->GetSeries("barrier", "shm");
  for (int i = 0; i < 20; ++i) {
    std::thread([&] {
      series.Finished(4, nanoseconds(50), StatusCode::kOk);
    }).join();
    series.Finished(4, nanoseconds(50), StatusCode::kOk);
  }
  EXPECT_THAT(metrics->Render(),
              HasSubstr("muster_dataplane_collectives_total{backend="
                        "\"shm\",code=\"OK\",op=\"barrier\"} 40\n"));
}

// A duration that is equal to a bound counts in that bucket.
TEST(MetricsTest, DurationsCountInEachBucketThatHoldsThem) {
  const auto metrics = Metrics::Create();
  Metrics::Series& series = metrics->GetSeries("all_reduce", "shm");
  series.Finished(4, nanoseconds(400), StatusCode::kOk);
  series.Finished(4, nanoseconds(1000), StatusCode::kOk);
  series.Finished(4, nanoseconds(1001), StatusCode::kOk);
  series.Finished(4, milliseconds(60'000), StatusCode::kOk);
  series.Finished(4, milliseconds(60'001), StatusCode::kOk);
  const std::string text = metrics->Render();
  const auto expect_bucket = [&](const std::string& bound, int count) {
    EXPECT_THAT(text,
                HasSubstr("muster_dataplane_collective_duration_seconds_"
                          "bucket{backend=\"shm\",op=\"all_reduce\",le=\"" +
                          bound + "\"} " + std::to_string(count) + "\n"));
  };
  expect_bucket("1e-06", 2);
  expect_bucket("2.5e-06", 3);
  expect_bucket("10", 3);
  expect_bucket("60", 4);
  expect_bucket("+Inf", 5);
  EXPECT_THAT(text,
              HasSubstr("muster_dataplane_collective_duration_seconds_count{"
                        "backend=\"shm\",op=\"all_reduce\"} 5\n"));
}

TEST(MetricsTest, SeriesAreApartByNames) {
  const auto metrics = Metrics::Create();
  Metrics::Series& series = metrics->GetSeries("all_reduce", "gloo");
  EXPECT_EQ(&series, &metrics->GetSeries("all_reduce", "gloo"));
  EXPECT_NE(&series, &metrics->GetSeries("all_reduce", "shm"));
  EXPECT_NE(&series, &metrics->GetSeries("broadcast", "gloo"));
  // No collective has finished.
  EXPECT_THAT(metrics->Render(),
              Not(HasSubstr("muster_dataplane_collectives")));
}

TEST(MetricsTest, FailedCollectivesCountByCodeAlone) {
  const auto metrics = Metrics::Create();
  metrics->GetSeries("barrier", "gloo")
      .Finished(0, std::chrono::seconds(30), StatusCode::kDeadlineExceeded);
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
  metrics->SetRunning(milliseconds(1500));
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
