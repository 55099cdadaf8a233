// What the collectives of this process did last.

#ifndef MUSTER_DATAPLANE_FLIGHT_RECORDER_FLIGHT_RECORDER_H_
#define MUSTER_DATAPLANE_FLIGHT_RECORDER_FLIGHT_RECORDER_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dataplane/collective.h"
#include "dataplane/instant.h"
#include "dataplane/mutex.h"

namespace muster::dataplane {

// FlightRecorder keeps the last collectives, sends and receives of all groups
// of a process, running ones and complete ones, for a look at what happened
// before a failure. Thread-safe.
//
// Its JSON has the fields of c10d's flight recorder (version "2.10"), so that
// tools which read that read this. What they mean here:
//   state             scheduled: started by the caller; started: the one before
//                     it in its group is complete, so that it can run;
//                     completed
//   time_..._ns       since 1970
//   duration_ms       from started to completed
//   retired           nobody works on it any more
//   op_id             the number within its group, sends and receives counted
//   thread_id         of the caller
//   frames            empty
//   nccl_comm_state   of each communicator of NCCL's, by the name of its group
//                     and its own, in the words of the backend
// Besides: "error" of a failed one, which stays in the state that it had.
class FlightRecorder {
 public:
  // The last `capacity` are kept; 0: none.
  explicit FlightRecorder(size_t capacity);

  struct Group {
    std::string name = {};
    std::string description = {};
    std::string backend = {};
    // By the rank in the group, in numbers of the default one.
    std::vector<int> ranks = {};
    // What is known of its communicators, texts by their names, of each by a
    // name of its own; null: nothing. Called until RemoveGroup, with a lock
    // held.
    std::function<std::map<std::string, std::map<std::string, std::string>>()>
        communicators = nullptr;
  };

  // Returns the number of the group, for what follows.
  int64_t AddGroup(Group group) ABSL_LOCKS_EXCLUDED(mutex_);
  // It has ended; its entries stay.
  void RemoveGroup(int64_t group) ABSL_LOCKS_EXCLUDED(mutex_);

  // `collective` was given to the backend. Returns a number for Complete.
  int64_t Add(int64_t group, const Collective& collective)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // It ended then.
  void Complete(int64_t group, int64_t record, const absl::Status& status,
                Instant at) ABSL_LOCKS_EXCLUDED(mutex_);

  std::string ToJson() const ABSL_LOCKS_EXCLUDED(mutex_);

  // ToJson() into a file, which is there as a whole or not at all, of
  // whichever of several writers is the last.
  // Errors: what the system says, as kNotFound, kPermissionDenied,
  // kResourceExhausted or the like, never kUnavailable; the text names the
  // file.
  absl::Status WriteTo(const std::string& path) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  size_t capacity() const { return capacity_; }

 private:
  enum class State : uint8_t { kScheduled, kStarted, kCompleted };

  struct Thread {
    int64_t id = 0;
    std::array<char, 16> name = {};
  };

  // As small as it may be: each collective writes another one.
  struct Entry {
    int64_t record = -1;
    int64_t group = 0;
    int64_t collective_sequence = 0;
    int64_t point_to_point_sequence = 0;
    int64_t op = 0;
    // Of the tensors and inputs.
    int64_t elements = 0;
    int64_t created_ns = 0;
    int64_t started_ns = 0;
    int64_t completed_ns = 0;
    int64_t timeout_ms = 0;
    CollectiveKind kind = CollectiveKind::kBarrier;
    bool point_to_point = false;
    State state = State::kScheduled;
    bool retired = false;
    // How many tensors, inputs and outputs it has.
    std::array<uint32_t, 3> lists = {};
    // Of each of those, one after the other: the data type, the number of
    // dimensions, and those. Behind them there may be what an earlier entry
    // had.
    absl::InlinedVector<int64_t, 6> shapes;
    Thread thread;
    // Null: none.
    std::unique_ptr<std::string> error;
  };

  // Of the newest collective that came so far; -1: none.
  struct Last {
    int64_t sequence = -1;
    int64_t elements = -1;
  };

  struct GroupRecord {
    Group group;
    bool ended = false;
    int64_t collective_sequence = 0;
    int64_t point_to_point_sequence = 0;
    int64_t op = 0;
    Last enqueued;
    Last started;
    Last completed;
    // Records of the collectives that have not completed, in their order.
    std::deque<int64_t> running;
  };

  static const Thread& ThisThread();
  static void NoteTensors(const Collective& collective, Entry& entry);
  // Since 1970. Both clocks are read once a second: this is in the way of every
  // collective.
  int64_t WallClockNs(Instant at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (at - anchor_ >= std::chrono::seconds(1)) ReadClocks();
    return at.time_since_epoch().count() + wall_clock_ahead_ns_;
  }
  void ReadClocks() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets a group that has ended when it has no entry any more.
  void Tidy(int64_t group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: it was overwritten.
  Entry* Find(int64_t record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the next one is to be, which may be the place of the oldest one.
  Entry& NextEntry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void MarkStarted(GroupRecord& group, Entry& entry, int64_t now_ns);
  void AppendEntry(const Entry& entry, std::string& json) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendCommunicators(std::string& json) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendConfig(std::string& json) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AppendStatus(std::string& json) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t capacity_;

  mutable Mutex mutex_;
  // A moment, and what the wall clock was ahead of Instant then.
  Instant anchor_ ABSL_GUARDED_BY(mutex_);
  int64_t wall_clock_ahead_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_record_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_group_ ABSL_GUARDED_BY(mutex_) = 0;
  // Entry of record r at r % capacity; and that of the next one.
  std::vector<Entry> ring_ ABSL_GUARDED_BY(mutex_);
  size_t next_place_ ABSL_GUARDED_BY(mutex_) = 0;
  // Those that have ended go when none of their entries is left.
  std::map<int64_t, GroupRecord> groups_ ABSL_GUARDED_BY(mutex_);
};

// Appends `text` as a JSON string, quoted. It may be any bytes: those that are
// no UTF-8 become `\\xff` and the like.
void AppendJsonString(absl::string_view text, std::string& json);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_FLIGHT_RECORDER_FLIGHT_RECORDER_H_
