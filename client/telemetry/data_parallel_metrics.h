// Counts the work of the DataParallels of this process, for its metrics.

#ifndef MUSTER_CLIENT_TELEMETRY_DATA_PARALLEL_METRICS_H_
#define MUSTER_CLIENT_TELEMETRY_DATA_PARALLEL_METRICS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster::worker {

// The values of the label `hook`. Hooks of the program are the last.
inline constexpr std::array<std::string_view, 7> kDataParallelHooks = {
    "all_reduce",   "fp16_compress", "bf16_compress", "int8_compress",
    "fp8_compress", "power_sgd",     "custom"};

// The sums over the DataParallels with one kind of hook. Times are in
// nanoseconds, as DataParallel::Times says them. Shadows count as steps alone.
struct DataParallelTotals {
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> compute_time{0};
  std::atomic<int64_t> communication_time{0};
  std::atomic<int64_t> overlap_time{0};
  std::atomic<int64_t> exposed_time{0};
  // Only DataParallels that exist now count here.
  std::atomic<int64_t> buckets{0};
  std::atomic<int64_t> bucket_bytes{0};
};

// By index in kDataParallelHooks.
inline std::array<DataParallelTotals, kDataParallelHooks.size()>
    data_parallel_totals;

// Finds them for CommunicationHook::Describe(), which begins with the name.
inline DataParallelTotals& FindDataParallelTotals(std::string_view hook) {
  size_t index = 0;
  while (index + 1 < kDataParallelHooks.size() &&
         hook.substr(0, hook.find(' ')) != kDataParallelHooks[index]) {
    ++index;
  }
  return data_parallel_totals[index];
}

}  // namespace muster::worker

#endif  // MUSTER_CLIENT_TELEMETRY_DATA_PARALLEL_METRICS_H_
