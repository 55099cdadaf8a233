#include "dataplane/backends/shm/rehearsal.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "dataplane/backends/shm/selection.h"
#include "dataplane/collective.h"
#include "dataplane/instant.h"
#include "dataplane/tensor.h"

namespace muster::dataplane::shm_internal {
namespace {

// In the middle of the sizes for which the table asks.
constexpr size_t kBytes = 512 << 10;

// The quickest turn counts: the first finds new pages, and other programs are
// in the way of some. It is of several, since a rank may be ahead of another
// one.
constexpr int kTurns = 3;
constexpr int kCalls = 4;

constexpr Algorithm kWays[] = {Algorithm::kStaged, Algorithm::kSingleCopy};

}  // namespace

absl::Status Rehearse(Council& council, HostCollectives& collectives) {
  // By way.
  using Times = std::array<int64_t, std::size(kWays)>;
  Times own;
  own.fill(INT64_MAX);
  std::vector<uint8_t> tensor(kBytes);
  const Collective broadcast = {.kind = CollectiveKind::kBroadcast,
                                .tensors = {Tensor(tensor)}};
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t way = 0; way < std::size(kWays); ++way) {
      collectives.Force(kWays[way]);
      const Instant began = Clock::now();
      for (int call = 0; call < kCalls; ++call) {
        absl::Status status = council.Run(broadcast);
        if (!status.ok()) return status;
      }
      own[way] = std::min<int64_t>(
          own[way], (Clock::now() - began) / std::chrono::nanoseconds(1));
    }
  }
  const auto all = council.Hear(own);
  if (!all.ok()) return all.status();
  Times slowest = {};
  for (const Times& times : *all) {
    for (size_t way = 0; way < times.size(); ++way) {
      slowest[way] = std::max(slowest[way], times[way]);
    }
  }
  collectives.Force(Algorithm::kFastest);
  collectives.SetReadsFast(slowest[1] < slowest[0]);
  return absl::OkStatus();
}

}  // namespace muster::dataplane::shm_internal
