#include "client/parallel/data/step_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/text.h"
#include "glog/logging.h"
#include "muster/debug.h"

namespace muster::internal {
namespace {

constexpr int64_t kStepsPerLog = 100;

}  // namespace

DataParallel::Times ComputeTimes(StepTimes times) {
  std::sort(times.reductions.begin(), times.reductions.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  DataParallel::Times result;
  result.backward_compute_time = times.last_ready - times.first_ready;
  // The end of the time that is counted so far.
  base::Instant counted = base::Instant::min();
  for (const StepTimes::Interval& each : times.reductions) {
    const base::Instant begin = std::max(each.begin, counted);
    if (each.end <= begin) continue;
    counted = each.end;
    result.backward_comm_time += each.end - begin;
    const base::Instant hidden_end = std::min(each.end, times.last_ready);
    if (hidden_end <= begin) continue;
    result.backward_compute_comm_overlap_time += hidden_end - begin;
  }
  result.exposed_comm_time =
      result.backward_comm_time - result.backward_compute_comm_overlap_time;
  return result;
}

StepLog::~StepLog() {
  const MutexLock lock(mutex_);
  CountBuckets(-1);
}

void StepLog::CountBuckets(int64_t sign) {
  totals_.buckets += sign * static_cast<int64_t>(data_.bucket_sizes.size());
  for (const int64_t bytes : data_.bucket_sizes) {
    totals_.bucket_bytes += sign * bytes;
  }
}

void StepLog::SetBuckets(const Buckets& buckets, bool rebuilt) {
  const MutexLock lock(mutex_);
  CountBuckets(-1);
  data_.has_rebuilt_buckets = rebuilt;
  data_.symmetric_bucket_count = 0;
  data_.bucket_sizes.clear();
  for (const Bucket& bucket : buckets.all()) {
    data_.bucket_sizes.push_back(
        static_cast<int64_t>(bucket.gradients.buffer.bytes()));
    if (bucket.memory.is_symmetric()) ++data_.symmetric_bucket_count;
  }
  data_.has_symmetric_buckets =
      data_.symmetric_bucket_count == buckets.all().size();
  CountBuckets(1);
}

void StepLog::SetUnused(std::vector<std::string> names) {
  const MutexLock lock(mutex_);
  data_.unused_parameters = std::move(names);
}

void StepLog::LogStart() const {
  if (GetDebugLevel() == DebugLevel::kOff) return;
  const DataParallel::LoggingData data = this->data();
  LOG(INFO) << "data parallel built: rank=" << data.rank
            << " world_size=" << data.world_size
            << " hook=" << base::LogValue(data.comm_hook)
            << " parameters=" << data.parameter_count
            << " bytes=" << data.total_parameter_bytes
            << " bucket_sizes=" << absl::StrJoin(data.bucket_sizes, ",")
            << " symmetric=" << data.has_symmetric_buckets;
}

void StepLog::AddStep(StepTimes times) {
  const DataParallel::Times last = ComputeTimes(std::move(times));
  const MutexLock lock(mutex_);
  ++data_.num_iterations;
  ++timed_steps_;
  data_.last = last;
  ++totals_.steps;
  totals_.compute_time += last.backward_compute_time.count();
  totals_.communication_time += last.backward_comm_time.count();
  totals_.overlap_time += last.backward_compute_comm_overlap_time.count();
  totals_.exposed_time += last.exposed_comm_time.count();
  for (const auto time :
       {&DataParallel::Times::backward_compute_time,
        &DataParallel::Times::backward_comm_time,
        &DataParallel::Times::backward_compute_comm_overlap_time,
        &DataParallel::Times::exposed_comm_time}) {
    sum_.*time += data_.last.*time;
    data_.average.*time = sum_.*time / timed_steps_;
  }
  if (timed_steps_ % kStepsPerLog != 0 ||
      GetDebugLevel() != DebugLevel::kDetail) {
    return;
  }
  const DataParallel::Times& average = data_.average;
  LOG(INFO) << "data parallel steps: rank=" << data_.rank
            << " steps=" << timed_steps_ << " backward_compute="
            << base::FormatDuration(average.backward_compute_time)
            << " backward_comm="
            << base::FormatDuration(average.backward_comm_time) << " overlap="
            << base::FormatDuration(average.backward_compute_comm_overlap_time)
            << " exposed_comm="
            << base::FormatDuration(average.exposed_comm_time)
            << " unused=" << data_.unused_parameters.size();
}

void StepLog::AddShadow() {
  const MutexLock lock(mutex_);
  ++data_.num_iterations;
  ++totals_.steps;
}

}  // namespace muster::internal
