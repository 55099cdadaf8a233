#include "coordinator/storage/etcd/etcd_client.h"

#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/endpoint.h"
#include "base/small_file.h"
#include "base/text.h"
#include "coordinator/storage/etcd/etcd.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::coordinator {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr unsigned kReadFilesSeconds = 5;
// A member that is silent for the sum of both is given up.
constexpr int kKeepaliveMs = 5'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kReconnectMsMax = 1'000;

StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const EtcdOptions& options) {
  if (options.ca.empty()) {
    if (options.cert.empty() && options.key.empty()) {
      return grpc::InsecureChannelCredentials();
    }
    return InvalidArgumentError(
        "etcd_cert and etcd_key need etcd_ca, the authorities of etcd's "
        "certificates");
  }
  if (options.cert.empty() != options.key.empty()) {
    return InvalidArgumentError(
        options.key.empty()
            ? absl::StrCat("etcd_cert is ", base::Quote(options.cert),
                           ", but there is no etcd_key")
            : absl::StrCat("etcd_key is ", base::Quote(options.key),
                           ", but there is no etcd_cert"));
  }
  // gRPC would only log that it cannot read one.
  const std::pair<const char*, const std::string&> files[] = {
      {"etcd_ca", options.ca},
      {"etcd_cert", options.cert},
      {"etcd_key", options.key}};
  for (const auto& [option, path] : files) {
    if (path.empty()) continue;
    const StatusOr<std::string> pem =
        base::ReadSmallFile(option, path, kFileBytesMax);
    if (!pem.ok()) return pem.status();
  }
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsChannelCredentialsOptions tls;
  tls.watch_root_certs();
  if (options.cert.empty()) {
    tls.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(options.ca,
                                                         kReadFilesSeconds));
  } else {
    tls.watch_identity_key_cert_pairs();
    tls.set_certificate_provider(
        std::make_shared<FileWatcherCertificateProvider>(
            options.key, options.cert, options.ca, kReadFilesSeconds));
  }
  return grpc::experimental::TlsCredentials(tls);
}

Status ToStatus(const std::string& endpoint, const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  StatusCode code = static_cast<StatusCode>(status.error_code());
  // etcd's codes do not tell these apart. What passes, like a lost connection:
  // a request that was too slow, and a member that has too many requests.
  const std::string& text = status.error_message();
  if (code == StatusCode::kDeadlineExceeded ||
      absl::StrContains(text, "too many requests")) {
    code = StatusCode::kUnavailable;
  }
  // A request that is larger than etcd's limit. It does not pass.
  if (absl::StrContains(text, "larger than max")) {
    code = StatusCode::kInvalidArgument;
  }
  return Status(
      code, absl::StrCat("etcd at ", endpoint, ": ", status.error_message()));
}

// A token ends some minutes after its last use, with its member, and when
// etcd's users change.
bool EndedToken(const grpc::Status& status) {
  return status.error_code() == grpc::UNAUTHENTICATED ||
         absl::StrContains(status.error_message(),
                           "revision of auth store is old");
}

class Client final : public EtcdKv {
 public:
  explicit Client(const EtcdOptions& options,
                  const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : options_(options) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMsMax);
    for (const std::string& endpoint : options.endpoints) {
      members_.push_back({endpoint, grpc::CreateCustomChannel(
                                        endpoint, credentials, arguments)});
    }
  }

  Status Range(const etcdserverpb::RangeRequest& request,
               etcdserverpb::RangeResponse& response) override {
    return Call(&etcdserverpb::KV::Stub::Range, etcdserverpb::KV::NewStub,
                request, response);
  }
  Status Txn(const etcdserverpb::TxnRequest& request,
             etcdserverpb::TxnResponse& response) override {
    return Call(&etcdserverpb::KV::Stub::Txn, etcdserverpb::KV::NewStub,
                request, response);
  }
  Status Compact(const etcdserverpb::CompactionRequest& request,
                 etcdserverpb::CompactionResponse& response) override {
    return Call(&etcdserverpb::KV::Stub::Compact, etcdserverpb::KV::NewStub,
                request, response);
  }

  StatusOr<int64_t> GrantLease(std::chrono::seconds ttl) override {
    etcdserverpb::LeaseGrantRequest request;
    request.set_ttl(ttl.count());
    etcdserverpb::LeaseGrantResponse response;
    Status status = Call(&etcdserverpb::Lease::Stub::LeaseGrant,
                         etcdserverpb::Lease::NewStub, request, response);
    if (!status.ok()) return status;
    return response.id();
  }

  Status KeepLeaseAlive(int64_t lease,
                        std::chrono::milliseconds member_timeout) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseKeepAliveResponse response;
    const Status status = ForEachMember(
        member_timeout,
        [&](const Member& member, grpc::ClientContext& context) {
          auto stub = etcdserverpb::Lease::NewStub(member.channel);
          auto stream = stub->LeaseKeepAlive(&context);
          const bool answered =
              stream->Write(request) && stream->Read(&response);
          // The stream has no other end: etcd keeps it open.
          if (answered) context.TryCancel();
          const grpc::Status end = stream->Finish();
          return answered ? grpc::Status::OK : end;
        });
    if (!status.ok() || response.ttl() > 0) return status;
    return NotFoundError("etcd: the lease has ended");
  }

  Status RevokeLease(int64_t lease) override {
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseRevokeResponse response;
    return Call(&etcdserverpb::Lease::Stub::LeaseRevoke,
                etcdserverpb::Lease::NewStub, request, response);
  }

 private:
  struct Member {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
  };

  template <typename Method, typename MakeStub, typename Request,
            typename Response>
  Status Call(Method method, MakeStub make_stub, const Request& request,
              Response& response) {
    return ForEachMember(
        options_.request_timeout,
        [&](const Member& member, grpc::ClientContext& context) {
          auto stub = make_stub(member.channel, grpc::StubOptions());
          return ((*stub).*method)(&context, request, &response);
        });
  }

  // Calls `call` with one member after another, beginning with the one that
  // answered last, until one answers within `timeout`.
  Status ForEachMember(
      std::chrono::milliseconds timeout,
      const std::function<grpc::Status(const Member& member,
                                       grpc::ClientContext& context)>& call) {
    const size_t first = Current();
    Status status;
    for (size_t i = 0; i < members_.size(); ++i) {
      const size_t index = (first + i) % members_.size();
      status = CallMember(members_[index], timeout, call);
      if (IsUnavailable(status)) continue;
      SetCurrent(index);
      return status;
    }
    SetCurrent((first + 1) % members_.size());
    return status;
  }

  Status CallMember(
      const Member& member, std::chrono::milliseconds timeout,
      const std::function<grpc::Status(const Member& member,
                                       grpc::ClientContext& context)>& call) {
    for (bool renewed = false;; renewed = true) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + timeout);
      Status status = Authenticate(member, renewed, context);
      if (!status.ok()) return status;
      const grpc::Status result = call(member, context);
      if (EndedToken(result) && !renewed && !options_.user.empty()) continue;
      return ToStatus(member.endpoint, result);
    }
  }

  Status Authenticate(const Member& member, bool renew,
                      grpc::ClientContext& context) MUSTER_LOCKS_EXCLUDED(mu_) {
    if (options_.user.empty()) return OkStatus();
    std::string token;
    if (!renew) {
      MutexLock lock(mu_);
      token = token_;
    }
    if (token.empty()) {
      const size_t colon = options_.user.find(':');
      etcdserverpb::AuthenticateRequest request;
      request.set_name(options_.user.substr(0, colon));
      request.set_password(options_.user.substr(colon + 1));
      etcdserverpb::AuthenticateResponse response;
      grpc::ClientContext own;
      own.set_deadline(context.deadline());
      const grpc::Status result = etcdserverpb::Auth::NewStub(member.channel)
                                      ->Authenticate(&own, request, &response);
      if (!result.ok()) return ToStatus(member.endpoint, result);
      token = response.token();
      MutexLock lock(mu_);
      token_ = token;
    }
    context.AddMetadata("token", token);
    return OkStatus();
  }

  size_t Current() MUSTER_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return current_;
  }
  void SetCurrent(size_t index) MUSTER_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    current_ = index;
  }

  const EtcdOptions options_;
  std::vector<Member> members_;
  Mutex mu_;
  size_t current_ MUSTER_GUARDED_BY(mu_) = 0;
  std::string token_ MUSTER_GUARDED_BY(mu_);
};

}  // namespace

StatusOr<std::unique_ptr<EtcdKv>> MakeEtcdClient(const EtcdOptions& options) {
  if (options.endpoints.empty()) {
    return InvalidArgumentError(
        "etcd_endpoints is empty; it needs the host:port of etcd's members");
  }
  for (const std::string& endpoint : options.endpoints) {
    const StatusOr<base::Endpoint> parsed =
        base::ParseEndpoint("etcd_endpoints", endpoint);
    if (!parsed.ok()) return parsed.status();
  }
  if (!options.user.empty() && !absl::StrContains(options.user, ':')) {
    return InvalidArgumentError("etcd_user must be name:password; it has no :");
  }
  auto credentials = MakeCredentials(options);
  if (!credentials.ok()) return credentials.status();
  return std::make_unique<Client>(options, *credentials);
}

}  // namespace muster::coordinator
