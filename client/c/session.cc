#include "muster/session.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "client/c/owned_context.h"
#include "client/control/throw.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/muster_control.h"

struct muster_formation {
  muster::Formation formation;
};

struct muster_progress_report {
  std::vector<muster::GroupProgress> groups;
};

namespace muster::c {
namespace {

using EventKind = MemberEvent::Kind;
static_assert(MUSTER_MEMBER_LEFT == static_cast<int>(EventKind::kLeft));
static_assert(MUSTER_MEMBER_LOST == static_cast<int>(EventKind::kLost));
static_assert(MUSTER_MEMBER_FAILED == static_cast<int>(EventKind::kFailed));
static_assert(MUSTER_MEMBER_REPLACED == static_cast<int>(EventKind::kReplaced));
static_assert(MUSTER_MEMBER_WAITING == static_cast<int>(EventKind::kWaiting));
static_assert(MUSTER_MEMBER_GROUP_FAILED ==
              static_cast<int>(EventKind::kGroupFailed));

// Members as an array of pointers, whose elements may grow in later versions.
class MemberArray {
 public:
  explicit MemberArray(const std::vector<MemberInfo>& members) {
    for (const MemberInfo& member : members) {
      infos_.push_back(ToMemberInfo(member));
    }
    for (const muster_member_info& info : infos_) pointers_.push_back(&info);
  }
  MemberArray(const MemberArray&) = delete;
  MemberArray& operator=(const MemberArray&) = delete;

  const muster_member_info* const* data() const { return pointers_.data(); }
  size_t size() const { return pointers_.size(); }

 private:
  std::vector<muster_member_info> infos_;
  std::vector<const muster_member_info*> pointers_;
};

std::vector<muster_rank_range> ToRanges(const std::vector<RankRange>& from) {
  std::vector<muster_rank_range> to;
  for (const RankRange& range : from) to.push_back({range.first, range.count});
  return to;
}

void Deliver(const MemberEvent& from,
             void (*callback)(void*, const muster_member_event*),
             void* context) {
  const muster_member_info member = ToMemberInfo(from.member);
  const MemberArray culprits(from.culprits);
  const MemberArray left_members(from.left_members);
  const auto other_culprits = ToRanges(from.other_culprits);
  const auto left_ranks = ToRanges(from.left_ranks);
  muster_member_event to = {};
  to.size = sizeof(to);
  to.kind = static_cast<int32_t>(from.kind);
  to.generation_ended = from.generation_ended ? 1 : 0;
  to.generation = from.generation;
  to.member = &member;
  to.code = static_cast<muster_status>(from.code);
  to.unknown_culprits = from.unknown_culprits;
  to.culprits = culprits.data();
  to.culprit_count = culprits.size();
  to.other_culprits = other_culprits.data();
  to.other_culprit_count = other_culprits.size();
  to.left_ranks = left_ranks.data();
  to.left_rank_count = left_ranks.size();
  to.left_members = left_members.data();
  to.left_member_count = left_members.size();
  to.waiting = from.waiting;
  to.group = from.group.c_str();
  to.group_instance = from.group_instance.c_str();
  callback(context, &to);
}

// The error of a status that is not OK.
muster_error StatusToError(const Status& status) {
  try {
    internal::Throw(internal::ErrorSource::kControl, status);
  } catch (...) {
    return ToError(std::current_exception());
  }
}

// The callbacks share `owner`, which has their context.
void SetCallbacks(const muster_session_options& from,
                  const std::shared_ptr<OwnedContext>& owner,
                  SessionOptions& to) {
  if (from.on_event != nullptr) {
    to.on_event = [owner, callback = from.on_event](const MemberEvent& event) {
      Deliver(event, callback, owner->context());
    };
  }
  if (from.on_over != nullptr) {
    to.on_over = [owner, callback = from.on_over](const Status& status) {
      const muster_error error = StatusToError(status);
      callback(owner->context(), &error);
    };
  }
  if (from.progress != nullptr) {
    to.progress = [owner, callback = from.progress] {
      muster_progress_report report;
      callback(owner->context(), &report);
      return std::move(report.groups);
    };
  }
}

SessionOptions ToSessionOptions(const muster_session_options& from) {
  SessionOptions to;
  to.address = ToString(from.address);
  if (from.job != nullptr) to.job = from.job;
  to.member = ToString(from.member);
  to.tls_ca = ToString(from.tls_ca);
  to.tls_cert = ToString(from.tls_cert);
  to.tls_key = ToString(from.tls_key);
  to.tls_server_name = ToString(from.tls_server_name);
  to.token = ToString(from.token);
  to.token_file = ToString(from.token_file);
  to.use_token = from.no_token == 0;
  to.insecure = from.insecure != 0;
  to.pid = from.pid;
  to.connect_timeout =
      ToMilliseconds(from.connect_timeout_ms, to.connect_timeout);
  to.connect_timeout_name = "muster_session_options::connect_timeout_ms";
  to.unreached_log_interval =
      ToMilliseconds(from.unreached_log_interval_ms, to.unreached_log_interval);
  to.debug_address = ToString(from.debug_address);
  to.coordinator_note = ToString(from.coordinator_note);
  to.give_up_after = ToMilliseconds(from.give_up_after_ms);
  to.silence_max = ToMilliseconds(from.silence_max_ms);
  return to;
}

JoinOptions ToJoinOptions(const muster_join_options& from) {
  JoinOptions to;
  to.world_size = from.world_size;
  to.min_world_size = from.min_world_size;
  to.max_world_size = from.max_world_size;
  if (from.has_rank != 0) {
    if (from.rank < 0) {
      ThrowArgument("options", "rank is " + std::to_string(from.rank));
    }
    to.rank = from.rank;
  }
  if (from.has_last_call != 0) to.last_call = ToMilliseconds(from.last_call_ms);
  to.timeout = ToMilliseconds(from.timeout_ms, to.timeout);
  to.timeout_name = "muster_join_options::timeout_ms";
  to.without_seats = from.without_seats != 0;
  return to;
}

GroupProgress ToGroupProgress(const muster_group_progress& from) {
  GroupProgress to;
  to.group = ToString(from.group);
  to.last_enqueued = from.last_enqueued;
  to.last_completed = from.last_completed;
  to.current = ToString(from.current);
  to.running_for = ToMilliseconds(from.running_for_ms);
  if (from.is_peer_call != 0) {
    to.peer_call = PeerCall{.sends = from.sends != 0,
                            .number = from.peer_call_number,
                            .peer = from.peer};
  }
  if (from.has_arguments_hash != 0) to.arguments_hash = from.arguments_hash;
  return to;
}

Session& ToSession(muster_session* session) {
  return *Need(session, "session").session;
}

}  // namespace
}  // namespace muster::c

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::MakeStrings;
using muster::c::Need;
using muster::c::ReadOptions;
using muster::c::ToMilliseconds;
using muster::c::ToSession;
using muster::c::ToString;

muster_status muster_progress_report_add(
    muster_progress_report* report, const muster_group_progress* progress) {
  return Guard(__func__, [&] {
    const muster_group_progress from =
        ReadOptions(&Need(progress, "progress"), "progress");
    Need(report, "report").groups.push_back(muster::c::ToGroupProgress(from));
  });
}

muster_status muster_session_connect(const muster_session_options* options,
                                     muster_session** session) {
  return GuardHandle(__func__, session, "session", [&] {
    const muster_session_options from = ReadOptions(&Need(options, "options"));
    const auto owner = std::make_shared<muster::c::OwnedContext>(
        from.context, from.release_context);
    muster::SessionOptions to = muster::c::ToSessionOptions(from);
    muster::c::SetCallbacks(from, owner, to);
    auto handle = std::make_unique<muster_session>();
    handle->session = muster::Session::Connect(std::move(to));
    owner->Take();
    return handle.release();
  });
}

void muster_session_release(muster_session* session) { delete session; }

muster_status muster_session_join(muster_session* session,
                                  const muster_join_options* options,
                                  muster_formation** formation) {
  return GuardHandle(__func__, formation, "formation", [&] {
    return new muster_formation{ToSession(session).Join(
        muster::c::ToJoinOptions(ReadOptions(&Need(options, "options"))))};
  });
}

void muster_formation_release(muster_formation* formation) { delete formation; }

int64_t muster_formation_generation(const muster_formation* formation) {
  return formation == nullptr ? 0 : formation->formation.generation;
}

int32_t muster_formation_rank(const muster_formation* formation) {
  return formation == nullptr ? -1 : formation->formation.rank;
}

int32_t muster_formation_world_size(const muster_formation* formation) {
  return formation == nullptr ? 0 : formation->formation.world_size;
}

muster_status muster_formation_seat(const muster_formation* formation,
                                    int32_t rank, muster_member_info* seat) {
  return Guard(__func__, [&] {
    const auto& seats = Need(formation, "formation").formation.seats;
    if (rank < 0 || static_cast<size_t>(rank) >= seats.size()) {
      muster::c::ThrowArgument(
          "rank", std::to_string(rank) + " of " + std::to_string(seats.size()));
    }
    const muster::Seat& from = seats[static_cast<size_t>(rank)];
    muster_member_info to = {};
    to.rank = from.rank;
    to.pid = from.pid;
    to.member = from.member.c_str();
    to.host = from.host.c_str();
    to.cause = to.last_progress = to.debug_address = "";
    muster::c::Fill(to, seat, "seat");
  });
}

muster_status muster_session_close_rendezvous(muster_session* session,
                                              const char* reason) {
  return Guard(__func__,
               [&] { ToSession(session).CloseRendezvous(ToString(reason)); });
}

muster_status muster_session_register_groups(
    muster_session* session, const muster_group_definition* groups,
    size_t count, int32_t* registered) {
  return Guard(__func__, [&] {
    std::vector<muster::GroupDefinition> definitions;
    for (const muster_group_definition& group :
         muster::c::ToSpan(groups, count, "groups")) {
      muster::c::CheckReserved(group, "groups");
      definitions.push_back({.name = ToString(group.name),
                             .ranks = muster::c::ToVector(
                                 group.ranks, group.rank_count, "groups.ranks"),
                             .description = ToString(group.description)});
    }
    const std::vector<int> counts =
        ToSession(session).RegisterGroups(definitions);
    if (registered != nullptr)
      std::copy(counts.begin(), counts.end(), registered);
  });
}

muster_status muster_session_await_barrier(
    muster_session* session, const muster_session_barrier_options* options) {
  return Guard(__func__, [&] {
    const muster_session_barrier_options from =
        ReadOptions(&Need(options, "options"));
    muster::SessionBarrierOptions to;
    to.name = ToString(from.name);
    if (from.group != nullptr) to.group = from.group;
    to.timeout = ToMilliseconds(from.timeout_ms, to.timeout);
    to.wait_all_ranks = from.wait_all_ranks != 0;
    ToSession(session).AwaitBarrier(to);
  });
}

muster_status muster_session_report_failure(muster_session* session,
                                            const char* error) {
  return Guard(__func__,
               [&] { ToSession(session).ReportFailure(ToString(error)); });
}

muster_status muster_session_leave(muster_session* session, const char* reason,
                                   int64_t timeout_ms) {
  return Guard(__func__, [&] {
    ToSession(session).Leave(
        ToString(reason),
        muster::c::ToMilliseconds(timeout_ms, std::chrono::seconds(2)));
  });
}

muster_status muster_session_close(muster_session* session) {
  return Guard(__func__, [&] { ToSession(session).Close(); });
}

muster_status muster_session_address(muster_session* session,
                                     muster_strings** address) {
  return GuardHandle(__func__, address, "address",
                     [&] { return MakeStrings(ToSession(session).address()); });
}

muster_status muster_session_job(muster_session* session,
                                 muster_strings** job) {
  return GuardHandle(__func__, job, "job",
                     [&] { return MakeStrings(ToSession(session).job()); });
}

muster_status muster_session_member(muster_session* session,
                                    muster_strings** member) {
  return GuardHandle(__func__, member, "member",
                     [&] { return MakeStrings(ToSession(session).member()); });
}

muster_status muster_session_incarnation(muster_session* session,
                                         uint64_t* incarnation) {
  return Guard(__func__, [&] {
    Need(incarnation, "incarnation") = ToSession(session).incarnation();
  });
}

muster_status muster_session_coordinator_epoch(muster_session* session,
                                               uint64_t* coordinator_epoch) {
  return Guard(__func__, [&] {
    Need(coordinator_epoch, "coordinator_epoch") =
        ToSession(session).coordinator_epoch();
  });
}

muster_status muster_session_status(muster_session* session) {
  return Guard(__func__, [&] {
    muster::internal::ThrowIfFailed(muster::internal::ErrorSource::kControl,
                                    ToSession(session).status());
  });
}
