#include "coordinator/server/jobs/operation_rate.h"

#include <chrono>

namespace muster::coordinator {
namespace {

constexpr core::Duration kWindow = std::chrono::seconds(10);

}  // namespace

void OperationRate::Sample(core::Instant now, int64_t total) {
  samples_.emplace_back(now, total);
  while (now - samples_.front().first > kWindow) samples_.pop_front();
  const std::chrono::duration<double> span = now - samples_.front().first;
  per_second_ =
      span.count() > 0
          ? static_cast<double>(total - samples_.front().second) / span.count()
          : 0;
}

}  // namespace muster::coordinator
