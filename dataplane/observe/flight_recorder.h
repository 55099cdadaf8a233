// Records the last collectives of this process.

#ifndef MUSTER_DATAPLANE_OBSERVE_FLIGHT_RECORDER_H_
#define MUSTER_DATAPLANE_OBSERVE_FLIGHT_RECORDER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/clock.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {

// FlightRecorder keeps the last collectives, sends and receives of all groups
// of a process, running and complete, to show what happened before a failure.
// Thread-safe. A function that runs out of memory throws std::bad_alloc and
// changes nothing.
//
// Its JSON has the fields of c10d's flight recorder (version "2.10"), so that
// c10d's tools read it. The meaning of its fields:
//   state             scheduled: started by the caller; started: the one before
//                     it in its group is complete, so that it can run;
//                     completed
//   time_..._ns       since 1970
//   duration_ms       from started to completed
//   retired           complete or failed
//   op_id             the number within its group, including sends and receives
//   thread_id         the caller's
//   frames            empty
//   nccl_comm_state   the state of each NCCL communicator, by its group's name
//                     and its own, in the backend's words
// A failed collective also has "error", and keeps the state that it had.
class FlightRecorder {
 public:
  // Keeps the last `capacity` entries; 0: none.
  explicit FlightRecorder(size_t capacity);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  struct Group {
    std::string name = {};
    std::string description = {};
    std::string backend = {};
    // For each rank of the group, its rank in the default group.
    std::vector<int> ranks = {};
    // Returns Backend::communicator_states(); null: there are none. Called
    // until RemoveGroup, with a lock held.
    std::function<std::map<std::string, std::map<std::string, std::string>>()>
        communicators = nullptr;
  };

  // Handle of an added group. Only the recorder uses its contents. Callers
  // share its ownership, so that a collective may end after its group.
  struct GroupRecord;

  std::shared_ptr<GroupRecord> AddGroup(Group group)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // The group has ended: nothing is added to it any more. Its entries stay.
  void RemoveGroup(GroupRecord& group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // Adds an entry for `collective`, which was passed to the backend, and
  // returns its number for Complete.
  int64_t Add(GroupRecord& group, const Collective& collective)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // Records that the collective ended at `at`.
  void Complete(GroupRecord& group, int64_t record, const Status& status,
                Instant at) MUSTER_LOCKS_EXCLUDED(mutex_);

  std::string ToJson() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // Writes ToJson() to a file. The file appears complete or not at all; if
  // there are several writers, the last one wins.
  // Errors: the system's, as kNotFound, kPermissionDenied, kResourceExhausted
  // or the like, but never kUnavailable; the text names the file.
  Status WriteTo(const std::string& path) const MUSTER_LOCKS_EXCLUDED(mutex_);

  size_t capacity() const { return capacity_; }

 private:
  struct Entry;

  // The next entry for a collective of `group`: the oldest one if the ring is
  // full. Its fields have old values. Does not throw.
  Entry& NextEntry(GroupRecord& group) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if the entry was overwritten.
  Entry* Find(int64_t record) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void MarkStarted(Entry& entry, int64_t now_ns);
  // Marks the first running collective as started, if it is not, because the
  // one before it has completed.
  void StartFirst(const GroupRecord& group, int64_t now_ns)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes the group if it has ended and has no entry left.
  void Tidy(const GroupRecord& group) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nanoseconds since 1970. Reads the clocks only once a second, because every
  // collective calls it.
  int64_t WallClockNs(Instant at) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (at - anchor_ >= std::chrono::seconds(1)) ReadClocks();
    return at.time_since_epoch().count() + wall_clock_ahead_ns_;
  }
  void ReadClocks() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendEntry(int64_t record, const Entry& entry, std::string& json) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendCommunicators(std::string& json) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendConfig(std::string& json) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendStatus(std::string& json) const
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;

  mutable Mutex mutex_;
  // An instant, and the difference of the wall clock to Instant at that time.
  Instant anchor_ MUSTER_GUARDED_BY(mutex_);
  int64_t wall_clock_ahead_ns_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t next_record_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t next_group_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Entry of record r at r % capacity. `next_place_`: that of the next record.
  std::vector<Entry> ring_ MUSTER_GUARDED_BY(mutex_);
  size_t next_place_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Includes groups that have ended and still have entries.
  std::map<int64_t, std::shared_ptr<GroupRecord>> groups_
      MUSTER_GUARDED_BY(mutex_);
};

// Appends `text` as a quoted JSON string. `text` may hold any bytes: those that
// are not UTF-8 become `\\xff` and the like.
void AppendJsonString(absl::string_view text, std::string& json);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_FLIGHT_RECORDER_H_
