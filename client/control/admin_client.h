// Unary client for tools. Does not join a job.

#ifndef MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_
#define MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "client/control/channel_security.h"
#include "client/control/deadline.h"
#include "client/control/endpoint.h"
#include "client/control/owner_search.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::internal {

// AdminClient is a connection to a coordinator. Every call returns the
// coordinator's answer, or kUnavailable with an address and a cause if there is
// no answer within the timeout. Used by one thread.
//
// A call about a job goes on to the coordinator that has the job, and beyond
// one that does not answer to the next of the addresses. A change whose answer
// was lost with its coordinator is then sent again.
class AdminClient {
 public:
  // Uses the addresses, the TLS and token settings, and connect_timeout (the
  // timeout of each call) of `options`. Empty TLS and token settings come from
  // the environment. Reads the files now; connects with the first call.
  // Errors: kInvalidArgument (an option or a file; the text names it),
  // kResourceExhausted (no room for threads; the text names the limit).
  static StatusOr<std::unique_ptr<AdminClient>> Open(
      const SessionOptions& options);

  ~AdminClient();
  AdminClient(const AdminClient&) = delete;
  AdminClient& operator=(const AdminClient&) = delete;

  Status ListJobs(const v1::ListJobsRequest& request,
                  v1::ListJobsResponse* response);
  Status GetJob(const v1::GetJobRequest& request, v1::GetJobResponse* response);
  // kInvalidArgument if there are several addresses.
  Status Drain(const v1::DrainRequest& request, v1::DrainResponse* response);
  Status GetCluster(const v1::GetClusterRequest& request,
                    v1::GetClusterResponse* response);
  Status MoveJob(const v1::MoveJobRequest& request,
                 v1::MoveJobResponse* response);
  Status CloseRendezvous(const v1::CloseRendezvousRequest& request,
                         v1::CloseRendezvousResponse* response);
  Status Set(const v1::SetRequest& request, v1::SetResponse* response);
  // The time to wait in the request is added to the timeout.
  Status Get(const v1::GetRequest& request, v1::GetResponse* response);
  Status TryGet(const v1::TryGetRequest& request, v1::TryGetResponse* response);
  Status Delete(const v1::DeleteRequest& request, v1::DeleteResponse* response);
  Status DeletePrefix(const v1::DeletePrefixRequest& request,
                      v1::DeletePrefixResponse* response);
  Status ListKeys(const v1::ListKeysRequest& request,
                  v1::ListKeysResponse* response);
  // Calls `changed` for every answer until it returns false, or the coordinator
  // ends the watch. Goes on after the last answer when the job moves.
  Status Watch(
      const v1::WatchRequest& request,
      const std::function<bool(const v1::WatchResponse& response)>& changed);

  // The coordinator that has answered last.
  const Endpoint& endpoint() const { return search_.current(); }

 private:
  struct Stubs;

  AdminClient(std::chrono::milliseconds timeout, ChannelSecurity security,
              OwnerSearch search);

  template <typename Stub, typename Method, typename Request, typename Response>
  Status Call(const std::unique_ptr<Stub> Stubs::*stub, Method method,
              const Request& request, std::chrono::milliseconds timeout,
              Response* response);
  // Calls `ask` at one coordinator after another until one answers, or until
  // `deadline`, which `ask` may move.
  Status AskOwner(const Instant& deadline, const std::function<Status()>& ask);
  // Makes stubs_ those of the current coordinator.
  Status Reach(Instant deadline);
  Status Explain(const Status& status) const;
  Status NoAnswer(const Status& why) const;

  const std::chrono::milliseconds timeout_;  // of each call
  const ChannelSecurity security_;
  OwnerSearch search_;
  // How often something was reached that did not serve (NewChannel).
  size_t turn_ = 0;
  // Null at first and after a failure.
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_
