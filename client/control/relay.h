#ifndef MUSTER_CLIENT_CONTROL_RELAY_H_
#define MUSTER_CLIENT_CONTROL_RELAY_H_

#include <map>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "client/control/channel_security.h"
#include "client/control/endpoint.h"
#include "grpcpp/server.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {

class RelayedRank;
class RelayService;
class RelayUpstream;

// Relay serves SessionService.Stream to the ranks of this host, on a Unix
// socket, and carries their sessions to the coordinator over one call of
// SessionService.Relay. So a coordinator has one connection for each host. A
// rank names the coordinator that its session is for, and shows its token; if
// that is not this process's own, it has to connect by itself.
//
// The relay does not look into messages. It tells the coordinator at once when
// a rank is gone. If the coordinator does not answer or does not know the call,
// the ranks' sessions end, and the ranks connect by themselves (RelayRoute).
// Thread-safe.
class Relay {
 public:
  // `socket` is a path in a folder that only this user can enter: whoever
  // reaches it may use this process's certificate. `security` is that of the
  // calls to coordinators.
  // Errors: FAILED_PRECONDITION (the text has the path).
  static StatusOr<std::unique_ptr<Relay>> Start(const std::string& socket,
                                                ChannelSecurity security);

  // Ends the ranks' sessions. Waits a moment for the coordinator to be told.
  ~Relay();

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  friend class RelayService;
  friend class RelayUpstream;

  explicit Relay(ChannelSecurity security);

  // Gives the rank's session to an open call to `coordinator`.
  // Errors: INVALID_ARGUMENT (the address, or a file of the security),
  //   UNAUTHENTICATED (the token is not this process's).
  Status Attach(const std::shared_ptr<RelayedRank>& rank,
                absl::string_view coordinator, absl::string_view authorization);
  std::shared_ptr<RelayUpstream> FindUpstream(
      const std::string& key, const Endpoint& endpoint,
      const ConnectionSecurity& security);
  // The call takes no more sessions.
  void Forget(const RelayUpstream* upstream);
  // The call is over.
  void Remove(const std::shared_ptr<RelayUpstream>& upstream);

  const ChannelSecurity security_;
  std::unique_ptr<RelayService> service_;
  std::unique_ptr<grpc::Server> server_;

  // Taken without any other lock.
  Mutex mu_;
  CondVar changed_;
  // The calls that take sessions, by coordinator and token.
  std::map<std::string, std::shared_ptr<RelayUpstream>> upstreams_
      MUSTER_GUARDED_BY(mu_);
  // The calls that are not over.
  absl::flat_hash_set<std::shared_ptr<RelayUpstream>> calls_
      MUSTER_GUARDED_BY(mu_);
};

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_RELAY_H_
