// The verbs of the protocol as functions on a session, except those that only
// the store uses (store.cc). Each sends one operation and unpacks the answer.
//
// All return kUnavailable if there is no answer before the deadline, the
// session's status if the session is over, and the coordinator's errors, which
// the .proto files list.

#ifndef MUSTER_CLIENT_CONTROL_VERBS_H_
#define MUSTER_CLIENT_CONTROL_VERBS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/control/deadline.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::internal {

class Canceller;
class StreamSession;

Status SetKey(StreamSession& session, absl::string_view key,
              absl::string_view value, const Deadline& deadline);
Status SetKey(StreamSession& session, absl::string_view key,
              absl::string_view value, const SetOptions& options,
              const Deadline& deadline);
StatusOr<CompareAndSetResult> CompareAndSetKey(StreamSession& session,
                                               absl::string_view key,
                                               int64_t expected_revision,
                                               absl::string_view desired,
                                               const SetOptions& options,
                                               const Deadline& deadline);
StatusOr<std::optional<StoreValue>> TryGetKey(StreamSession& session,
                                              absl::string_view key,
                                              const Deadline& deadline);
StatusOr<std::string> GetKey(StreamSession& session, absl::string_view key,
                             const Deadline& deadline);
StatusOr<int64_t> AddToKey(StreamSession& session, absl::string_view key,
                           int64_t delta, const Deadline& deadline);
StatusOr<bool> DeleteKey(StreamSession& session, absl::string_view key,
                         const Deadline& deadline);
StatusOr<std::vector<std::string>> ListKeys(StreamSession& session,
                                            absl::string_view prefix,
                                            const Deadline& deadline);
StatusOr<std::vector<std::string>> GetKeys(StreamSession& session,
                                           const std::vector<std::string>& keys,
                                           const Deadline& deadline,
                                           Canceller* canceller = nullptr);

// Returns one answer of a watch. It has no changes if there were none before
// the deadline.
StatusOr<v1::WatchResponse> WatchOnce(StreamSession& session,
                                      v1::WatchRequest request,
                                      const Deadline& deadline,
                                      Canceller* canceller = nullptr);

StatusOr<Formation> Join(StreamSession& session, const JoinOptions& options);
Status CloseRendezvous(StreamSession& session, const std::string& reason,
                       const Deadline& deadline);
StatusOr<std::vector<int>> RegisterGroups(
    StreamSession& session, int64_t generation,
    const std::vector<GroupDefinition>& groups,
    std::optional<v1::GroupCall> call, const Deadline& deadline);
Status LeaveGroup(StreamSession& session, int64_t generation,
                  const std::string& group, const Deadline& deadline);
// `generation` and `rank` are those of the group's formation.
Status AwaitBarrier(StreamSession& session, const std::string& group,
                    const std::string& name, int64_t generation, int rank,
                    bool wait_all_ranks, const Deadline& deadline);
// Reports a failure for which this member is to blame.
Status ReportFailure(StreamSession& session, const std::string& error,
                     const Deadline& deadline);
// Reports an error with the culprits in it, if any.
Status ReportError(StreamSession& session, const Status& error,
                   const Deadline& deadline);
// Reports why the caller's group failed: `error`, and what `request` says
// besides. Returns the verdict if it is known and the group is not the default
// one.
StatusOr<std::optional<MemberEvent>> ReportGroupFailure(
    StreamSession& session, v1::ReportGroupFailureRequest request,
    const Status& error, const Deadline& deadline);
Status Leave(StreamSession& session, const std::string& reason,
             const Deadline& deadline);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_VERBS_H_
