#include "client/control/admin_client.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/channel.h"
#include "client/control/channel_security.h"
#include "grpcpp/grpcpp.h"
#include "muster/v1/admin.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/store.grpc.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::internal {

namespace {

using std::chrono::milliseconds;

// How long one address of several may take to accept a connection.
constexpr milliseconds kReachMax{2'000};

}  // namespace

struct AdminClient::Stubs {
  Stubs(const Endpoint& endpoint, const ConnectionSecurity& security,
        size_t turn)
      : authorization(security.authorization()),
        channel(NewChannel(endpoint, security, milliseconds(0), turn)),
        admin(v1::AdminService::NewStub(channel)),
        membership(v1::MembershipService::NewStub(channel)),
        store(v1::StoreService::NewStub(channel)) {}

  void Prepare(grpc::ClientContext& context) const {
    if (authorization.empty()) return;
    context.AddMetadata("authorization", authorization);
  }

  const std::string authorization;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::AdminService::Stub> admin;
  const std::unique_ptr<v1::MembershipService::Stub> membership;
  const std::unique_ptr<v1::StoreService::Stub> store;
};

StatusOr<std::unique_ptr<AdminClient>> AdminClient::Open(
    const SessionOptions& options) {
  StatusOr<std::vector<Endpoint>> addresses =
      ParseEndpoints("coordinator address", options.address);
  if (!addresses.ok()) return addresses.status();
  Status room = CheckProcessLimits();
  if (!room.ok()) return room;
  StatusOr<ChannelSecurity> security = ChannelSecurity::Take(options);
  if (!security.ok()) return security.status();
  for (const Endpoint& each : *addresses) {
    Status loaded = security->Load(each).status();
    if (!loaded.ok()) return loaded;
  }
  return std::unique_ptr<AdminClient>(new AdminClient(
      options.connect_timeout, *std::move(security),
      OwnerSearch(*std::move(addresses), std::random_device()())));
}

AdminClient::AdminClient(milliseconds timeout, ChannelSecurity security,
                         OwnerSearch search)
    : timeout_(timeout),
      security_(std::move(security)),
      search_(std::move(search)) {}

AdminClient::~AdminClient() = default;

namespace {

// Whether gRPC has made this status itself: the coordinator was silent for too
// long or shut down during the call. gRPC has no code of its own for that.
bool IsGrpcsOwn(const Status& status) {
  return IsDeadlineExceeded(status)
             ? absl::StrContains(status.message(), "Deadline Exceeded")
             : IsCancelled(status) && status.message() == "CANCELLED";
}

bool IsAnswer(const Status& status) {
  return !IsUnavailable(status) && !IsUnimplemented(status) &&
         !IsGrpcsOwn(status);
}

}  // namespace

// Adds the address and the cause, which gRPC mostly does not tell.
Status AdminClient::Explain(const Status& status) const {
  if (v1::GetJobOwner(status)) return NoAnswer(status);
  Status why = Probe(search_.current(), timeout_);
  if (why.ok()) why = security_.Explain(status, search_.current());
  return NoAnswer(why);
}

Status AdminClient::NoAnswer(const Status& why) const {
  const std::vector<Endpoint>& addresses = search_.addresses();
  return UnavailableError(absl::StrCat(
      "no answer from a coordinator at ", search_.current().ToString(), ": ",
      why.message(),
      addresses.size() > 1 ? absl::StrCat("; tried ", JoinEndpoints(addresses))
                           : ""));
}

Status AdminClient::Reach(Instant deadline) {
  if (stubs_ != nullptr) return OkStatus();
  const StatusOr<ConnectionSecurity> security =
      security_.Load(search_.current());
  if (!security.ok()) return security.status();
  // The only address there is has the whole time.
  if (search_.has_others()) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    Status probed = Probe(search_.current(), std::min(kReachMax, left));
    if (!probed.ok()) return NoAnswer(probed);
  }
  stubs_ = std::make_unique<Stubs>(search_.current(), *security, turn_);
  return OkStatus();
}

Status AdminClient::AskOwner(const Instant& deadline,
                             const std::function<Status()>& ask) {
  bool referred = false;
  for (;;) {
    Status status = Reach(deadline);
    const bool reached = status.ok();
    if (reached) status = ask();
    if (IsAnswer(status)) {
      if (reached) {
        search_.Found();
        turn_ = 0;
      }
      return status;
    }
    referred = referred || v1::GetJobOwner(status);
    Status explained = reached ? Explain(status) : status;
    if (reached) ++turn_;
    stubs_ = nullptr;
    const milliseconds pause = search_.Next(status);
    // Waits for a coordinator that takes over the job, and not for one that
    // does not answer.
    if ((pause.count() > 0 && !referred) || Clock::now() + pause >= deadline) {
      return explained;
    }
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
}

template <typename Stub, typename Method, typename Request, typename Response>
Status AdminClient::Call(const std::unique_ptr<Stub> Stubs::*stub,
                         Method method, const Request& request,
                         milliseconds timeout, Response* response) {
  const Instant deadline = Clock::now() + timeout;
  return AskOwner(deadline, [&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         (deadline - Clock::now()));
    stubs_->Prepare(context);
    return v1::FromGrpc(
        ((*((*stubs_).*stub)).*method)(&context, request, response));
  });
}

Status AdminClient::ListJobs(const v1::ListJobsRequest& request,
                             v1::ListJobsResponse* response) {
  return Call(&Stubs::admin, &v1::AdminService::Stub::ListJobs, request,
              timeout_, response);
}

Status AdminClient::GetJob(const v1::GetJobRequest& request,
                           v1::GetJobResponse* response) {
  return Call(&Stubs::admin, &v1::AdminService::Stub::GetJob, request, timeout_,
              response);
}

Status AdminClient::Drain(const v1::DrainRequest& request,
                          v1::DrainResponse* response) {
  if (search_.addresses().size() > 1) {
    return InvalidArgumentError(absl::StrCat(
        "coordinator address ", base::Quote(JoinEndpoints(search_.addresses())),
        ": a drain is for one coordinator, not for a list"));
  }
  return Call(&Stubs::admin, &v1::AdminService::Stub::Drain, request, timeout_,
              response);
}

Status AdminClient::GetCluster(const v1::GetClusterRequest& request,
                               v1::GetClusterResponse* response) {
  return Call(&Stubs::admin, &v1::AdminService::Stub::GetCluster, request,
              timeout_, response);
}

Status AdminClient::MoveJob(const v1::MoveJobRequest& request,
                            v1::MoveJobResponse* response) {
  return Call(&Stubs::admin, &v1::AdminService::Stub::MoveJob, request,
              timeout_, response);
}

Status AdminClient::CloseRendezvous(const v1::CloseRendezvousRequest& request,
                                    v1::CloseRendezvousResponse* response) {
  return Call(&Stubs::membership, &v1::MembershipService::Stub::CloseRendezvous,
              request, timeout_, response);
}

Status AdminClient::Set(const v1::SetRequest& request,
                        v1::SetResponse* response) {
  return Call(&Stubs::store, &v1::StoreService::Stub::Set, request, timeout_,
              response);
}

Status AdminClient::Get(const v1::GetRequest& request,
                        v1::GetResponse* response) {
  const auto wait = std::chrono::seconds(request.timeout().seconds()) +
                    std::chrono::nanoseconds(request.timeout().nanos());
  return Call(&Stubs::store, &v1::StoreService::Stub::Get, request,
              timeout_ + std::chrono::ceil<std::chrono::milliseconds>(wait),
              response);
}

Status AdminClient::TryGet(const v1::TryGetRequest& request,
                           v1::TryGetResponse* response) {
  return Call(&Stubs::store, &v1::StoreService::Stub::TryGet, request, timeout_,
              response);
}

Status AdminClient::Delete(const v1::DeleteRequest& request,
                           v1::DeleteResponse* response) {
  return Call(&Stubs::store, &v1::StoreService::Stub::Delete, request, timeout_,
              response);
}

Status AdminClient::DeletePrefix(const v1::DeletePrefixRequest& request,
                                 v1::DeletePrefixResponse* response) {
  return Call(&Stubs::store, &v1::StoreService::Stub::DeletePrefix, request,
              timeout_, response);
}

Status AdminClient::ListKeys(const v1::ListKeysRequest& request,
                             v1::ListKeysResponse* response) {
  return Call(&Stubs::store, &v1::StoreService::Stub::ListKeys, request,
              timeout_, response);
}

Status AdminClient::Watch(
    const v1::WatchRequest& request,
    const std::function<bool(const v1::WatchResponse& response)>& changed) {
  v1::WatchRequest asked = request;
  Instant deadline = Clock::now() + timeout_;
  return AskOwner(deadline, [&] {
    grpc::ClientContext context;
    stubs_->Prepare(context);
    const std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader =
        stubs_->store->Watch(&context, asked);
    v1::WatchResponse response;
    bool wanted = true;
    while (wanted && reader->Read(&response)) {
      search_.Found();
      asked.set_after_revision(response.revision());
      wanted = changed(response);
    }
    if (!wanted) context.TryCancel();
    const grpc::Status status = reader->Finish();
    // The search for the next coordinator has all the time again.
    deadline = Clock::now() + timeout_;
    return wanted ? v1::FromGrpc(status) : OkStatus();
  });
}

}  // namespace muster::internal
