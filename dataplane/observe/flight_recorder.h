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
#include "base/clock.h"
#include "base/status.h"
#include "base/thread_annotations.h"
#include "dataplane/biased_mutex.h"
#include "dataplane/collective.h"

namespace muster::dataplane {

// FlightRecorder keeps the last collectives, sends and receives of all groups
// of a process, running and complete, to show what happened before a failure.
// Thread-safe. A function that runs out of memory throws std::bad_alloc and
// changes nothing.
//
// Its JSON has the fields of c10d's flight recorder (version "2.10"), so that
// tools that read that format read this. The fields mean:
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
// A failed collective also has "error", and keeps the state that it had.
class FlightRecorder {
 public:
  // The last `capacity` are kept; 0: none.
  explicit FlightRecorder(size_t capacity);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

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

  // A group that was added, for what follows. It is the recorder's alone; that
  // others have it, too, lets a collective end after its group.
  struct GroupRecord;

  // What an entry says of its collective that others may say, too. The
  // recorder's alone as well.
  struct Outline;

  // Keeps what is found out about the collectives of one plan, in one group, so
  // that it is found out once. Of one of them at a time. May outlive the group.
  class Memo : public Plan::Memo {
   public:
    explicit Memo(std::shared_ptr<FlightRecorder> recorder);
    ~Memo() override;
    Memo(const Memo&) = delete;
    Memo& operator=(const Memo&) = delete;

   private:
    friend class FlightRecorder;

    const std::shared_ptr<FlightRecorder> recorder_;
    // Under the recorder's lock. Null: nothing is known.
    Outline* outline_ = nullptr;
  };

  std::shared_ptr<GroupRecord> AddGroup(Group group)
      MUSTER_LOCKS_EXCLUDED(mutex_);
  // It has ended; its entries stay. Nothing is added to it any more.
  void RemoveGroup(GroupRecord& group) MUSTER_LOCKS_EXCLUDED(mutex_);

  // `collective` was given to the backend. Returns a number for Complete.
  // `memo`: that of its plan, made by this recorder; null: it has none.
  int64_t Add(GroupRecord& group, const Collective& collective,
              Memo* memo = nullptr) MUSTER_LOCKS_EXCLUDED(mutex_);
  // It ended then.
  void Complete(GroupRecord& group, int64_t record, const Status& status,
                Instant at) MUSTER_LOCKS_EXCLUDED(mutex_);
  // Both at once, in less time, of one that has ended with OK.
  void AddCompleted(GroupRecord& group, const Collective& collective,
                    Instant at, Memo* memo = nullptr)
      MUSTER_LOCKS_EXCLUDED(mutex_);

  std::string ToJson() const MUSTER_LOCKS_EXCLUDED(mutex_);

  // ToJson() into a file, which is there as a whole or not at all, of
  // whichever of several writers is the last.
  // Errors: what the system says, as kNotFound, kPermissionDenied,
  // kResourceExhausted or the like, never kUnavailable; the text names the
  // file.
  Status WriteTo(const std::string& path) const MUSTER_LOCKS_EXCLUDED(mutex_);

  size_t capacity() const { return capacity_; }

 private:
  // One line of the cache: each collective writes another one. What state it is
  // in the times say. 0: not yet.
  struct alignas(64) Entry {
    Outline* outline = nullptr;
    int64_t collective_sequence = 0;
    int64_t point_to_point_sequence = 0;
    int64_t op = 0;
    int64_t created_ns = 0;
    int64_t started_ns = 0;
    int64_t completed_ns = 0;
    // Null: none.
    std::unique_ptr<std::string> error;
  };
  static_assert(sizeof(Entry) == 64);

  // That of the memo, or `spare_`, for NextEntry. Changes no entry.
  inline Outline& OutlineOf(GroupRecord& group, const Collective& collective,
                            Memo* memo) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same of a memo that has none, or another one, or of none.
  Outline& NewOutline(GroupRecord& group, const Collective& collective,
                      Memo* memo) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Describe(const Collective& collective, Outline& outline);
  // One entry or memo has it no more.
  void Drop(Outline* outline) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetOutline(Entry& entry, Outline& outline)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what is known from the start, perhaps where the oldest one was. The
  // two times that follow are the caller's.
  inline Entry& NextEntry(Outline& outline, const Collective& collective,
                          int64_t created_ns)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null: it was overwritten.
  Entry* Find(int64_t record) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void MarkStarted(Entry& entry, int64_t now_ns);
  // The first of those that run, if it has not started: the one before it is
  // complete.
  void StartFirst(const GroupRecord& group, int64_t now_ns)
      MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets it when it has ended and has no entry any more.
  void Tidy(const GroupRecord& group) MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Since 1970. Both clocks are read once a second: this is in the way of every
  // collective.
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

  mutable BiasedMutex mutex_;
  // A moment, and what the wall clock was ahead of Instant then.
  Instant anchor_ MUSTER_GUARDED_BY(mutex_);
  int64_t wall_clock_ahead_ns_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t next_record_ MUSTER_GUARDED_BY(mutex_) = 0;
  int64_t next_group_ MUSTER_GUARDED_BY(mutex_) = 0;
  // Entry of record r at r % capacity; and that of the next one.
  std::vector<Entry> ring_ MUSTER_GUARDED_BY(mutex_);
  size_t next_place_ MUSTER_GUARDED_BY(mutex_) = 0;
  // One that nobody has, for the next collective without a memo. As a rule that
  // of the entry which the last one has overwritten.
  std::unique_ptr<Outline> spare_ MUSTER_GUARDED_BY(mutex_);
  // Those that have ended go when none of their entries is left.
  std::map<int64_t, std::shared_ptr<GroupRecord>> groups_
      MUSTER_GUARDED_BY(mutex_);
};

// Appends `text` as a JSON string, quoted. It may be any bytes: those that are
// no UTF-8 become `\\xff` and the like.
void AppendJsonString(absl::string_view text, std::string& json);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_OBSERVE_FLIGHT_RECORDER_H_
