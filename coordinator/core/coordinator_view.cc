// How others see a coordinator: snapshots, counts, and what must always hold.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/total_memory.h"

namespace muster::coordinator::core {

MemberSnapshot Coordinator::SnapshotOf(const Member& member,
                                       Instant now) const {
  MemberSnapshot snapshot;
  snapshot.id = member.id;
  snapshot.incarnation = member.incarnation;
  snapshot.state = member.state;
  if (member.generation == rendezvous_.generation()) {
    snapshot.rank = member.rank;
  }
  snapshot.registration = member.registration;
  snapshot.heard_ago = now - member.heard_at;
  snapshot.cause = member.cause;
  // What a member was doing ends with it.
  const Instant until = member.live() ? now : member.state_since;
  snapshot.last_progress =
      DescribeProgress(member.progress, until - member.progress_at);
  snapshot.progress = member.progress;
  snapshot.progress_age = until - member.progress_at;
  return snapshot;
}

JobSnapshot Coordinator::Snapshot(absl::string_view host, Rank first_rank,
                                  int32_t rank_count, Instant now) const {
  JobSnapshot job;
  job.epoch = epoch_;
  job.lease = membership_.options().lease;
  for (const auto& [id, member] : membership_.members()) {
    if (member.registration.host == host) {
      job.members.push_back(SnapshotOf(member, now));
    }
  }
  job.forming_world_size = rendezvous_.forming_world_size();
  job.joined = static_cast<int32_t>(rendezvous_.waiters());
  job.missing_ranks = rendezvous_.MissingOf(first_rank, rank_count);
  return job;
}

JobSnapshot Coordinator::Snapshot(Instant now) const {
  JobSnapshot job;
  job.epoch = epoch_;
  job.lease = membership_.options().lease;
  for (const auto& [id, member] : membership_.members()) {
    job.members.push_back(SnapshotOf(member, now));
    job.retained_replies += member.replies.size();
  }
  job.generation = rendezvous_.generation();
  job.generation_running = rendezvous_.running();
  if (rendezvous_.formation() != nullptr) {
    job.world_size =
        static_cast<int32_t>(rendezvous_.formation()->world.size());
  }
  job.forming_min_world_size = rendezvous_.forming_min_world_size();
  job.forming_world_size = rendezvous_.forming_world_size();
  if (rendezvous_.last_call_end().has_value()) {
    job.last_call_remaining =
        std::max(*rendezvous_.last_call_end() - now, Duration::zero());
  }
  job.rendezvous_closed = rendezvous_.closed();
  job.rendezvous_waiting = rendezvous_.Waiting(now);
  if (!rendezvous_.running() && generation_end_.has_value()) {
    const Event& end = *generation_end_;
    job.generation_end =
        absl::StrCat("rank ", end.rank.value_or(Rank(-1)).value(), " (",
                     end.host, ", pid ", end.pid, ") ", EventKindName(end.kind),
                     ": ", base::Printable(end.cause));
  }
  job.joined = static_cast<int32_t>(rendezvous_.waiters());
  job.joined_members = rendezvous_.FirstWaiters(kMissingInSnapshotMax);
  job.missing_ranks = rendezvous_.FirstMissing(kMissingInSnapshotMax);
  job.groups = groups_.Snapshot(now);
  job.open_barriers = barriers_.open();
  job.barriers = barriers_.Snapshot(now);
  job.key_waits = store_.KeyWaits(now, job.more_key_waits);
  job.keys = store_.keys();
  job.queue_items = store_.queue_items();
  job.store_bytes = store_.bytes();
  job.revision = store_.revision();
  job.waiters = quota_.parked();
  return job;
}

JobCounts Coordinator::Counts() const {
  JobCounts counts;
  counts.live_members = membership_.live();
  for (const auto& [id, member] : membership_.members()) {
    ++counts.members[static_cast<int>(member.state)];
  }
  if (rendezvous_.formation() != nullptr) {
    counts.world_size =
        static_cast<int32_t>(rendezvous_.formation()->world.size());
  }
  counts.keys = store_.keys();
  counts.store_bytes = store_.bytes();
  counts.waiters = quota_.parked();
  counts.open_barriers = barriers_.open();
  counts.groups = groups_.size();
  counts.queue_items = store_.queue_items();
  counts.generation = rendezvous_.generation();
  counts.generation_running = rendezvous_.running();
  return counts;
}

bool Coordinator::Idle() const {
  return membership_.live() == 0 && quota_.parked() == 0;
}

bool Coordinator::Blank() const {
  return store_.revision() == 0 && membership_.members().empty() &&
         rendezvous_.generation() == Generation() &&
         rendezvous_.closed().empty();
}

absl::Status Coordinator::CheckInvariants() const {
  for (const absl::Status& status :
       {membership_.CheckInvariants(), store_.CheckInvariants(),
        rendezvous_.CheckInvariants(), groups_.CheckInvariants(),
        barriers_.CheckInvariants(),
        farewells_.CheckInvariants(rendezvous_.generation())}) {
    if (!status.ok()) return status;
  }
  const int64_t parked =
      store_.waiters() + rendezvous_.waiters() + barriers_.waiters();
  if (parked != quota_.parked()) {
    return absl::InternalError(absl::StrCat(
        "coordinator: counts ", quota_.parked(), " waiters, has ", parked));
  }
  const int64_t mutations =
      store_.pops() + rendezvous_.waiters() + barriers_.waiters();
  if (static_cast<int64_t>(origins_.size()) > mutations) {
    return absl::InternalError(absl::StrCat("coordinator: ", origins_.size(),
                                            " origins for ", mutations,
                                            " parked mutations"));
  }
  const int64_t memory = membership_.CountMemory() + store_.CountMemory() +
                         quota_.bytes() + kWaiterMemory * quota_.parked();
  if (limits_.memory != nullptr && memory != limits_.memory->held()) {
    return absl::InternalError(absl::StrCat("coordinator: counts ",
                                            limits_.memory->held(),
                                            " bytes, has ", memory));
  }
  return absl::OkStatus();
}

}  // namespace muster::coordinator::core
