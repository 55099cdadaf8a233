// Unary client for tools. Does not join a job.

#ifndef MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_
#define MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "client/control/channel_security.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"
#include "muster/session.h"
#include "muster/v1/admin.pb.h"
#include "muster/v1/membership.pb.h"
#include "muster/v1/store.pb.h"

namespace muster::internal {

// AdminClient is a connection to a coordinator. Every call returns the
// coordinator's answer, or kUnavailable with an address and a cause if there is
// no answer within the timeout. Used by one thread.
class AdminClient {
 public:
  // Uses the address, the TLS and token settings, and connect_timeout (the
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
  Status Drain(const v1::DrainRequest& request, v1::DrainResponse* response);
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
  // ends the watch.
  Status Watch(
      const v1::WatchRequest& request,
      const std::function<bool(const v1::WatchResponse& response)>& changed);

  const Endpoint& endpoint() const;

 private:
  struct Stubs;

  AdminClient(std::chrono::milliseconds timeout, ChannelSecurity security,
              std::unique_ptr<Stubs> stubs);

  template <typename Stub, typename Method, typename Request, typename Response>
  Status Call(Stub& stub, Method method, const Request& request,
              std::chrono::milliseconds timeout, Response* response);
  Status Explain(const Status& status) const;

  const std::chrono::milliseconds timeout_;  // of each call
  const ChannelSecurity security_;
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_ADMIN_CLIENT_H_
