// The limits of every table of a job. A call that would exceed one fails with
// RESOURCE_EXHAUSTED, which names the limit, and changes nothing.

#ifndef MUSTER_COORDINATOR_CORE_LIMITS_H_
#define MUSTER_COORDINATOR_CORE_LIMITS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text.h"
#include "coordinator/core/instant.h"
#include "muster/base/status.h"

namespace muster::coordinator::core {

class MemoryShare;

// All limits are per job. Errors name them by their field's name.
struct Limits {
  // The job's share of the memory of all jobs (total_memory.h); must outlive
  // the job's tables. Null: only the job's own limits count.
  MemoryShare* memory = nullptr;

  // Store.
  int64_t key_bytes = 4096;
  int64_t value_bytes = 16 << 20;
  int64_t keys = 1 << 20;
  int64_t store_bytes = int64_t{1} << 30;  // keys, values and queues together
  int64_t keys_per_call = 16384;
  int64_t queue_items = 1 << 20;  // of all queues together

  // How far back a watch may begin. All changes of the newest revision are
  // kept, even if they exceed these limits.
  int64_t watch_history_changes = 16384;
  int64_t watch_history_bytes = 16 << 20;  // of keys and values

  // Calls that wait.
  int64_t waiters = 1 << 18;
  int64_t waiter_bytes = 256 << 20;  // of the keys that they wait for
  Duration parked_time = std::chrono::hours(24);

  // Members.
  int64_t members = 1 << 16;
  int64_t name_bytes = 256;         // of members, hosts, groups and barriers
  int64_t text_bytes = 4096;        // reasons and failures; longer ones are cut
  int64_t progress_groups = 256;    // groups in one heartbeat
  int64_t retained_replies = 4096;  // per member, for its retries
  int64_t retained_reply_bytes = 64 << 20;  // per member

  // Rendezvous, barriers and groups.
  int64_t world_size = 1 << 16;
  int64_t open_barriers = 4096;
  // Decisions of failed barriers, kept for late callers: the number per barrier
  // name, and the bytes over all names.
  int64_t decided_barriers = 64;
  int64_t decided_barrier_bytes = 64 << 20;
  int64_t groups = 1 << 16;
  int64_t group_ranks = 1 << 22;  // of all groups together
  // Calls that make groups and wait for ranks. The oldest are forgotten.
  int64_t group_calls = 4096;
  int64_t group_call_bytes = 16 << 20;
  // Failures of groups, open and decided. The oldest are forgotten.
  int64_t group_failures = 4096;
  int64_t group_failure_bytes = 16 << 20;
};

// Error texts name at most this many ranks, and then `and 120 more`.
using base::kRanksInTextMax;

// The thing that exceeds a limit, for the error text: for example a `key` and
// its name. A long name is cut.
struct Offer {
  absl::string_view kind;
  absl::string_view name;  // empty: has none
};

// Returns OK when `offered` is at most `limit`, else RESOURCE_EXHAUSTED
// `limit value_bytes is 4096, offered 5000 (key "model"); the coordinator's
// --limit_value_bytes sets it`.
Status CheckLimit(absl::string_view name, int64_t limit, int64_t offered,
                  const Offer& offer = {});

// Returns the same error, with `how` after the offer.
Status LimitError(absl::string_view name, int64_t limit, int64_t offered,
                  const Offer& offer, absl::string_view how = "");

// Whether this process is muster-coordinator, whose flags set the limits. Set
// before the process serves.
inline std::atomic<bool> limits_have_flags = false;

// The end of that error's text: advice for its reader. In a process without
// flags, such as one whose TcpStore or rank 0 serves a coordinator, it says
// that muster-coordinator has the flag.
std::string LimitAdvice(absl::string_view name);

// The limits that the coordinator has a flag --limit_NAME for.
absl::Span<const absl::string_view> LimitsWithFlag();

// CheckLimit for the time that a call may wait: `limit parked_time is 86400s,
// offered 100000s`.
Status CheckParkedTime(const Limits& limits, Duration timeout);

// The first `bytes_max` bytes of `text`, or a few less to keep the last
// character whole: no client can parse a message with half a character.
std::string CutText(absl::string_view text, int64_t bytes_max);

// A cause or a reason as notices show it: quoted, escaped, and cut to
// kTextInNoticeMax bytes, so that nobody floods the log. Errors and events have
// the whole text.
inline constexpr int64_t kTextInNoticeMax = 256;
std::string TextInNotice(absl::string_view text);

// WaiterQuota counts the parked calls of a job across its tables, and the bytes
// that they hold.
class WaiterQuota {
 public:
  // `memory` is Limits::memory.
  explicit WaiterQuota(int64_t limit, int64_t bytes_limit = INT64_MAX,
                       MemoryShare* memory = nullptr)
      : limit_(limit), bytes_limit_(bytes_limit), memory_(memory) {}

  // Counts one parked call. Release must get the same `bytes`. Errors:
  // RESOURCE_EXHAUSTED (`limit waiters is ...`, `limit waiter_bytes is ...`,
  // `limit total_bytes is ...`).
  Status Take(int64_t bytes, const Offer& offer = {});
  void Release(int64_t bytes);

  int64_t parked() const { return parked_; }
  int64_t bytes() const { return bytes_; }

 private:
  const int64_t limit_;
  const int64_t bytes_limit_;
  MemoryShare* const memory_;
  int64_t parked_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace muster::coordinator::core

#endif  // MUSTER_COORDINATOR_CORE_LIMITS_H_
