#ifndef MUSTER_CLIENT_PARALLEL_DATA_STEP_LOG_H_
#define MUSTER_CLIENT_PARALLEL_DATA_STEP_LOG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/parallel/data/buckets.h"
#include "client/telemetry/data_parallel_metrics.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"
#include "muster/data_parallel.h"

namespace muster::internal {

// When things have happened in a step.
struct StepTimes {
  struct Interval {
    base::Instant begin;
    base::Instant end;
  };

  // The same instant if no parameter was ready.
  base::Instant first_ready = {};
  base::Instant last_ready = {};
  // When buckets were reduced, in any order; they may overlap.
  std::vector<Interval> reductions = {};
};

DataParallel::Times ComputeTimes(StepTimes times);

// StepLog keeps the logging data of a DataParallel, writes it to the log at the
// debug levels, and counts it in the process's metrics. Thread-safe.
class StepLog {
 public:
  explicit StepLog(DataParallel::LoggingData data)
      : totals_(worker::FindDataParallelTotals(data.comm_hook)),
        data_(std::move(data)) {}
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  void SetBuckets(const Buckets& buckets, bool rebuilt);
  void SetUnused(std::vector<std::string> names);
  // Writes what is known before the first step to the log.
  void LogStart() const;
  // Adds a reduced step in which this rank was no shadow, and one in which it
  // was.
  void AddStep(StepTimes times);
  void AddShadow();

  DataParallel::LoggingData data() const {
    const MutexLock lock(mutex_);
    return data_;
  }

 private:
  // Counts the buckets in the process's metrics, or stops that.
  void CountBuckets(int64_t sign) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  worker::DataParallelTotals& totals_;
  mutable Mutex mutex_;
  DataParallel::LoggingData data_ MUSTER_GUARDED_BY(mutex_);
  DataParallel::Times sum_ MUSTER_GUARDED_BY(mutex_) = {};
  int64_t timed_steps_ MUSTER_GUARDED_BY(mutex_) = 0;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_DATA_STEP_LOG_H_
