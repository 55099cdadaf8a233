#include "client/control/admin_client.h"

#include <utility>

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

struct AdminClient::Stubs {
  Stubs(Endpoint to, const ConnectionSecurity& security)
      : endpoint(std::move(to)),
        authorization(security.authorization()),
        channel(NewChannel(endpoint, security)),
        admin(v1::AdminService::NewStub(channel)),
        membership(v1::MembershipService::NewStub(channel)),
        store(v1::StoreService::NewStub(channel)) {}

  void Prepare(grpc::ClientContext& context) const {
    if (authorization.empty()) return;
    context.AddMetadata("authorization", authorization);
  }

  const Endpoint endpoint;
  const std::string authorization;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::AdminService::Stub> admin;
  const std::unique_ptr<v1::MembershipService::Stub> membership;
  const std::unique_ptr<v1::StoreService::Stub> store;
};

StatusOr<std::unique_ptr<AdminClient>> AdminClient::Open(
    const SessionOptions& options) {
  StatusOr<Endpoint> endpoint = ParseEndpoint(options.address);
  if (!endpoint.ok()) {
    return InvalidArgumentError(absl::StrCat("coordinator address ",
                                             base::Quote(options.address), ": ",
                                             endpoint.status().message()));
  }
  Status room = CheckProcessLimits();
  if (!room.ok()) return room;
  StatusOr<ChannelSecurity> security = ChannelSecurity::Take(options);
  if (!security.ok()) return security.status();
  const StatusOr<ConnectionSecurity> loaded = security->Load(*endpoint);
  if (!loaded.ok()) return loaded.status();
  return std::unique_ptr<AdminClient>(
      new AdminClient(options.connect_timeout, *std::move(security),
                      std::make_unique<Stubs>(*std::move(endpoint), *loaded)));
}

AdminClient::AdminClient(std::chrono::milliseconds timeout,
                         ChannelSecurity security, std::unique_ptr<Stubs> stubs)
    : timeout_(timeout),
      security_(std::move(security)),
      stubs_(std::move(stubs)) {}

AdminClient::~AdminClient() = default;

const Endpoint& AdminClient::endpoint() const { return stubs_->endpoint; }

namespace {

// Whether gRPC has made this status itself: the coordinator was silent for too
// long or shut down during the call. gRPC has no code of its own for that.
bool IsGrpcsOwn(const Status& status) {
  return IsDeadlineExceeded(status)
             ? absl::StrContains(status.message(), "Deadline Exceeded")
             : IsCancelled(status) && status.message() == "CANCELLED";
}

}  // namespace

// Adds the address and the cause, which gRPC mostly does not tell.
Status AdminClient::Explain(const Status& status) const {
  if (!IsUnavailable(status) && !IsUnimplemented(status) &&
      !IsGrpcsOwn(status)) {
    return status;
  }
  Status why = Probe(stubs_->endpoint, timeout_);
  if (why.ok()) why = security_.Explain(status, stubs_->endpoint);
  return UnavailableError(absl::StrCat("no answer from a coordinator at ",
                                       stubs_->endpoint.ToString(), ": ",
                                       why.message()));
}

template <typename Stub, typename Method, typename Request, typename Response>
Status AdminClient::Call(Stub& stub, Method method, const Request& request,
                         std::chrono::milliseconds timeout,
                         Response* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  stubs_->Prepare(context);
  const grpc::Status status = (stub.*method)(&context, request, response);
  return status.ok() ? OkStatus() : Explain(v1::FromGrpc(status));
}

Status AdminClient::ListJobs(const v1::ListJobsRequest& request,
                             v1::ListJobsResponse* response) {
  return Call(*stubs_->admin, &v1::AdminService::Stub::ListJobs, request,
              timeout_, response);
}

Status AdminClient::GetJob(const v1::GetJobRequest& request,
                           v1::GetJobResponse* response) {
  return Call(*stubs_->admin, &v1::AdminService::Stub::GetJob, request,
              timeout_, response);
}

Status AdminClient::Drain(const v1::DrainRequest& request,
                          v1::DrainResponse* response) {
  return Call(*stubs_->admin, &v1::AdminService::Stub::Drain, request, timeout_,
              response);
}

Status AdminClient::CloseRendezvous(const v1::CloseRendezvousRequest& request,
                                    v1::CloseRendezvousResponse* response) {
  return Call(*stubs_->membership,
              &v1::MembershipService::Stub::CloseRendezvous, request, timeout_,
              response);
}

Status AdminClient::Set(const v1::SetRequest& request,
                        v1::SetResponse* response) {
  return Call(*stubs_->store, &v1::StoreService::Stub::Set, request, timeout_,
              response);
}

Status AdminClient::Get(const v1::GetRequest& request,
                        v1::GetResponse* response) {
  const auto wait = std::chrono::seconds(request.timeout().seconds()) +
                    std::chrono::nanoseconds(request.timeout().nanos());
  return Call(*stubs_->store, &v1::StoreService::Stub::Get, request,
              timeout_ + std::chrono::ceil<std::chrono::milliseconds>(wait),
              response);
}

Status AdminClient::TryGet(const v1::TryGetRequest& request,
                           v1::TryGetResponse* response) {
  return Call(*stubs_->store, &v1::StoreService::Stub::TryGet, request,
              timeout_, response);
}

Status AdminClient::Delete(const v1::DeleteRequest& request,
                           v1::DeleteResponse* response) {
  return Call(*stubs_->store, &v1::StoreService::Stub::Delete, request,
              timeout_, response);
}

Status AdminClient::DeletePrefix(const v1::DeletePrefixRequest& request,
                                 v1::DeletePrefixResponse* response) {
  return Call(*stubs_->store, &v1::StoreService::Stub::DeletePrefix, request,
              timeout_, response);
}

Status AdminClient::ListKeys(const v1::ListKeysRequest& request,
                             v1::ListKeysResponse* response) {
  return Call(*stubs_->store, &v1::StoreService::Stub::ListKeys, request,
              timeout_, response);
}

Status AdminClient::Watch(
    const v1::WatchRequest& request,
    const std::function<bool(const v1::WatchResponse& response)>& changed) {
  grpc::ClientContext context;
  stubs_->Prepare(context);
  const std::unique_ptr<grpc::ClientReader<v1::WatchResponse>> reader =
      stubs_->store->Watch(&context, request);
  v1::WatchResponse response;
  bool wanted = true;
  while (wanted && reader->Read(&response)) wanted = changed(response);
  if (!wanted) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!wanted || status.ok()) return OkStatus();
  return Explain(v1::FromGrpc(status));
}

}  // namespace muster::internal
