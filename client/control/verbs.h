// The verbs of the protocol that several parts use, as functions on a session:
// each makes one operation and takes its answer apart. Those that the store
// alone uses are in store.cc.
//
// All return kUnavailable when there was no answer until the deadline, the
// session's own status when it is over, and else what the coordinator says:
// the .proto files list that.

#ifndef MUSTER_CLIENT_CONTROL_VERBS_H_
#define MUSTER_CLIENT_CONTROL_VERBS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "client/control/deadline.h"
#include "client/session.h"
#include "client/store.h"
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

// One answer of a watch; without changes when there was none until the
// deadline.
StatusOr<v1::WatchResponse> WatchOnce(StreamSession& session,
                                      v1::WatchRequest request,
                                      const Deadline& deadline,
                                      Canceller* canceller = nullptr);

StatusOr<Formation> Join(StreamSession& session, const JoinOptions& options);
Status CloseRendezvous(StreamSession& session, const std::string& reason,
                       const Deadline& deadline);
StatusOr<std::vector<int>> RegisterGroups(
    StreamSession& session, int64_t generation,
    const std::vector<GroupDefinition>& groups, const Deadline& deadline);
Status LeaveGroup(StreamSession& session, int64_t generation,
                  const std::string& group, const Deadline& deadline);
// The generation and the caller's rank in it are those of its formation.
Status AwaitBarrier(StreamSession& session, const std::string& group,
                    const std::string& name, int64_t generation, int rank,
                    bool wait_all_ranks, const Deadline& deadline);
// The caller is to blame.
Status ReportFailure(StreamSession& session, const std::string& error,
                     const Deadline& deadline);
// Whoever the error's culprits are, if any.
Status ReportError(StreamSession& session, const Status& error,
                   const Deadline& deadline);
// Of all errors that ranks bring to one key, the first: the same for all. It
// stays there for an hour, so that nobody need delete it.
// Nothing: the coordinator does not answer.
std::optional<Status> AgreeOnError(StreamSession& session,
                                   absl::string_view key, const Status& error,
                                   const Deadline& deadline);
// What is there of that, or comes by the deadline.
std::optional<Status> AwaitAgreedError(StreamSession& session,
                                       absl::string_view key,
                                       const Deadline& deadline);
// What is there of that now.
std::optional<Status> TryAgreedError(StreamSession& session,
                                     absl::string_view key,
                                     const Deadline& deadline);
Status Leave(StreamSession& session, const std::string& reason,
             const Deadline& deadline);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_VERBS_H_
