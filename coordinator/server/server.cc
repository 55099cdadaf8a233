#include "coordinator/server/server.h"

#include <limits.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/http_server.h"
#include "base/process_usage.h"
#include "base/text.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/core/total_memory.h"
#include "coordinator/server/auth/auth.h"
#include "coordinator/server/auth/credentials.h"
#include "coordinator/server/auth/handshake_peer.h"
#include "coordinator/server/endpoint.h"
#include "coordinator/server/jobs/commit_queue.h"
#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/job_elsewhere.h"
#include "coordinator/server/jobs/limit_log.h"
#include "coordinator/server/listener.h"
#include "coordinator/server/ops/library_log.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/server/ops/start_checks.h"
#include "coordinator/server/ops/status_page.h"
#include "coordinator/server/rpc/admin_service.h"
#include "coordinator/server/rpc/call_service.h"
#include "coordinator/server/rpc/open_calls.h"
#include "coordinator/server/rpc/session_service.h"
#include "coordinator/server/rpc/unary.h"
#include "coordinator/server/rpc/unsent_answers.h"
#include "coordinator/server/shards.h"
#include "coordinator/storage/fleet.h"
#include "coordinator/storage/storage.h"
#include "glog/logging.h"
#include "google/protobuf/message.h"
#include "grpc/health/v1/health.pb.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "muster/base/mutex.h"
#include "muster/version.h"

namespace muster::coordinator {
namespace {

using std::chrono::milliseconds;

// A peer whose host died silently is noticed after the sum of the two; with a
// longer lease not before the lease ends, or a member whose network is cut
// would count as one that closed its connection.
constexpr milliseconds kKeepaliveInterval{20'000};
constexpr milliseconds kKeepaliveTimeout{10'000};
// The time for idle clients to close their connections in a drain.
constexpr milliseconds kGoodbyeTime{500};
constexpr milliseconds kDrainInterval{50};
// The time for calls to end at destruction.
constexpr milliseconds kDestructionGrace{100};
// A connection that has not completed its TLS and HTTP/2 handshakes by then is
// closed.
constexpr milliseconds kHandshakeTimeout{20'000};
// A connection without a call is closed after this time; clients open another
// when they need it.
constexpr milliseconds kConnectionIdleTime{60'000};
// The allocator keeps freed memory. It is told to return it if it is more than
// this, which is checked at this interval.
constexpr size_t kFreeBytesMax = 256 << 20;
constexpr std::chrono::seconds kMemoryInterval{30};
// Rendering a status page of many jobs takes long and must not block probes.
constexpr size_t kHttpThreads = 16;
// The shortest interval of clients' pings.
constexpr milliseconds kPingIntervalMin{1'000};
// Concurrent unary calls on one connection.
constexpr int kCallsPerConnectionMax = 16'384;
// Threads of the reflection service, the only one that blocks.
constexpr int kBlockingThreadsMax = 16;

const char* const kServiceNames[] = {
    "muster.v1.StoreService", "muster.v1.MembershipService",
    "muster.v1.BarrierService", "muster.v1.AdminService",
    "muster.v1.SessionService"};

// At least two, so that one job's long call does not occupy all threads.
int TurnThreads() {
  return std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
}

core::CoordinatorEpoch RandomEpoch() {
  std::random_device device;
  uint64_t epoch = 0;
  // 0 stands for a client that never got an answer.
  while (epoch == 0) epoch = (uint64_t{device()} << 32) | device();
  return core::CoordinatorEpoch(epoch);
}

// Builds with the library's health service. Only a switch of the whole process
// enables it, which is reset at once. The lock is for our own servers.
std::unique_ptr<grpc::Server> BuildWithHealth(grpc::ServerBuilder& builder) {
  static Mutex* const mu = new Mutex;
  MutexLock lock(*mu);
  const bool before = grpc::DefaultHealthCheckServiceEnabled();
  grpc::EnableDefaultHealthCheckService(true);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  grpc::EnableDefaultHealthCheckService(before);
  return server;
}

Status CheckPositive(absl::string_view option, int64_t value) {
  if (value > 0) return OkStatus();
  return InvalidArgumentError(
      absl::StrCat(option, " is ", value, ", must be positive"));
}

Status CheckOptions(const ServerOptions& options) {
  const std::pair<const char*, int64_t> kPositive[] = {
      {"lease (milliseconds)", options.lease.count()},
      {"jobs_max", options.jobs_max},
      {"sessions_max", options.sessions_max},
      {"message_bytes_max", options.message_bytes_max},
      {"unsent_bytes_max", options.unsent_bytes_max},
      {"inbound_bytes_max", options.inbound_bytes_max},
      {"stalled_reader_timeout (milliseconds)",
       options.stalled_reader_timeout.count()},
      {"idle_job_retention (milliseconds)",
       options.idle_job_retention.count()}};
  for (const auto& [option, value] : kPositive) {
    Status status = CheckPositive(option, value);
    if (!status.ok()) return status;
  }
  if (options.storage_sync_interval.count() < 0) {
    return InvalidArgumentError(absl::StrCat(
        "storage_sync_interval (milliseconds) is ",
        options.storage_sync_interval.count(), ", must not be negative"));
  }
  if (options.reconnect_grace.count() < 0) {
    return InvalidArgumentError(absl::StrCat(
        "reconnect_grace (milliseconds) is ", options.reconnect_grace.count(),
        ", must not be negative"));
  }
  return OkStatus();
}

Status CheckTls(const ServerOptions& options) {
  const bool cert = !options.tls_cert.empty();
  if (cert != !options.tls_key.empty()) {
    return InvalidArgumentError(
        cert ? absl::StrCat("tls_cert is ", base::Quote(options.tls_cert),
                            ", but there is no tls_key")
             : absl::StrCat("tls_key is ", base::Quote(options.tls_key),
                            ", but there is no tls_cert"));
  }
  if (!cert && !options.tls_client_ca.empty()) {
    return InvalidArgumentError(absl::StrCat(
        "tls_client_ca is ", base::Quote(options.tls_client_ca),
        ", but without tls_cert and tls_key nobody shows a certificate"));
  }
  return OkStatus();
}

StatusOr<Endpoint> ParseListen(const ServerOptions& options) {
  StatusOr<Endpoint> endpoint = ParseEndpoint("listen", options.listen);
  if (!endpoint.ok() || options.insecure || !options.tls_cert.empty() ||
      IsLoopback(*endpoint)) {
    return endpoint;
  }
  return InvalidArgumentError(absl::StrCat(
      "listen ", base::Quote(options.listen),
      " can be reached from other hosts, and connections are plain text: "
      "anybody there could read and change every job; listen on 127.0.0.1, "
      "give it a certificate (--tls_cert, --tls_key), or pass --insecure if "
      "the network is trusted"));
}

Driver::Options DriverOptions(const ServerOptions& options, Metrics* metrics,
                              std::shared_ptr<CommitQueue> commits,
                              FairQueue* fair_queue, core::TotalMemory* memory,
                              std::atomic<int64_t>* untold_bytes) {
  Driver::Options driver;
  driver.core.membership.lease = options.lease;
  driver.core.membership.reconnect_grace = options.reconnect_grace;
  driver.core.limits = options.limits;
  driver.epoch = RandomEpoch();
  driver.jobs_max = options.jobs_max;
  if (options.jobs_per_token_max > 0) {
    driver.jobs_per_token_max = options.jobs_per_token_max;
  }
  if (options.total_bytes_max > 0) driver.memory = memory;
  driver.idle_job_retention = options.idle_job_retention;
  driver.log_notices = options.log_state_changes;
  driver.metrics = metrics;
  driver.commits = std::move(commits);
  driver.fair_queue = fair_queue;
  driver.untold_bytes = untold_bytes;
  return driver;
}

// The address at which other hosts reach a server that listens on `endpoint`.
std::string ReachableAddress(Endpoint endpoint) {
  if (endpoint.host == "0.0.0.0" || endpoint.host == "::") {
    char host[HOST_NAME_MAX + 1] = {};
    gethostname(host, sizeof(host) - 1);
    endpoint.host = host;
  }
  return endpoint.ToString();
}

void ConfigureTransport(const ServerOptions& options,
                        grpc::ServerBuilder& builder) {
  const auto ms = [](milliseconds value) {
    return static_cast<int>(value.count());
  };
  const milliseconds lease =
      std::min<milliseconds>(options.lease, std::chrono::hours(24));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             ms(std::max(kKeepaliveInterval, lease)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             ms(std::max(kKeepaliveTimeout, lease)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      ms(kPingIntervalMin));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             ms(kHandshakeTimeout));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             ms(kConnectionIdleTime));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             kCallsPerConnectionMax);
  builder.SetMaxReceiveMessageSize(options.message_bytes_max);
  // Answers are checked one by one (RESOURCE_EXHAUSTED). A batch of small ones
  // may be a little larger than its estimate.
  builder.SetMaxSendMessageSize(-1);
  builder.SetResourceQuota(
      grpc::ResourceQuota("coordinator")
          .SetMaxThreads(kBlockingThreadsMax)
          .Resize(static_cast<size_t>(options.inbound_bytes_max)));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
}

class ServerImpl final : public Server {
 public:
  // `storage` and `auth` may be null.
  ServerImpl(const ServerOptions& options, std::unique_ptr<Storage> storage,
             std::unique_ptr<Auth> auth)
      : options_(options),
        auth_(std::move(auth)),
        metrics_([this] { return ReadGauges(); }),
        storage_(storage.get()),
        commits_(storage == nullptr ? nullptr : NewCommits(std::move(storage))),
        fair_queue_(TurnThreads()),
        memory_(options.total_bytes_max),
        driver_(MakeDriverOptions()),
        unsent_(options.unsent_bytes_max),
        context_{
            &driver_,     &metrics_,   &open_calls_, options.message_bytes_max,
            &fair_queue_, auth_.get(), &unsent_},
        sessions_(context_,
                  {options.sessions_max, options.stalled_reader_timeout,
                   options.inbound_bytes_max}),
        shards_(driver_, sessions_, [this](std::unique_ptr<Storage> storage) {
          return NewCommits(std::move(storage));
        }) {}

  ~ServerImpl() override {
    Drain(kDestructionGrace);
    // Before the objects that the ticker sweeps and the pages read.
    driver_.Stop();
    fair_queue_.Stop();
    // Before the sessions to which its commits deliver answers.
    if (commits_ != nullptr) commits_->Stop().IgnoreError();
    shards_.Stop();
    http_.reset();
    MutexLock lock(fleet_mu_);
    fleet_.reset();
  }

  Status Restore() {
    if (storage_ == nullptr) return OkStatus();
    const StatusOr<int> jobs = RestoreJobs(*storage_, commits_, driver_);
    if (!jobs.ok()) return jobs.status();
    if (options_.log_state_changes) {
      const Gauges gauges = ReadGauges();
      LOG(INFO) << "restored: jobs=" << gauges.jobs
                << " members=" << gauges.members[0] << " keys=" << gauges.keys
                << " store_bytes=" << gauges.store_bytes;
    }
    return OkStatus();
  }

  Status Serve() {
    const StatusOr<Endpoint> endpoint = ParseListen(options_);
    if (!endpoint.ok()) return endpoint.status();
    Status status = LoadTls();
    if (status.ok()) status = ServeGrpc(*endpoint);
    if (status.ok() && !options_.http_listen.empty()) status = ServeHttp();
    if (status.ok()) status = JoinFleet();
    if (!status.ok()) return status;
    driver_.Start([this](core::Instant now) {
      if (tls_ != nullptr) tls_->Reload();
      if (auth_ != nullptr) auth_->Reload();
      sessions_.Sweep(now);
      unsent_.CutOff(now, options_.stalled_reader_timeout);
      ReturnMemory(now);
      TellOfLimits(now);
      TellOfLibraries(now);
      UpdateHealth();
    });
    return OkStatus();
  }

  int port() const override { return listener_->port(); }
  int http_port() const override {
    return http_ == nullptr ? 0 : http_->port();
  }
  uint64_t epoch() const override { return driver_.epoch().value(); }

  void Drain(milliseconds timeout) override {
    MutexLock lock(drain_mu_);
    if (grpc_ == nullptr || draining_.exchange(true)) return;
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const Status status = UnavailableError("the coordinator drains");
    if (grpc_->GetHealthCheckService() != nullptr) {
      grpc_->GetHealthCheckService()->SetServingStatus(false);
    }
    // Calls go on until their jobs are elsewhere.
    if (const std::shared_ptr<Fleet> fleet = GetFleet()) fleet->Leave(timeout);
    sessions_.Drain(status);
    auto now = std::chrono::steady_clock::now();
    do {
      // Repeated, because a call may have found its job just before and park
      // now.
      driver_.Drain(status);
      now = std::chrono::steady_clock::now();
    } while (!open_calls_.AwaitNone(std::min(deadline, now + kDrainInterval)) &&
             now < deadline);
    // Before the server to which it hands connections.
    if (listener_ != nullptr) listener_->Stop();
    // Only idle or silent connections are left, and calls that would not end.
    grpc_->Shutdown(std::chrono::system_clock::now() +
                    std::min(timeout, kGoodbyeTime));
    grpc_->Wait();
  }

 private:
  Driver::Options MakeDriverOptions() {
    Driver::Options driver = DriverOptions(
        options_, &metrics_, commits_, &fair_queue_, &memory_, &untold_bytes_);
    if (options_.open_fleet != nullptr) {
      driver.elsewhere = [this](absl::string_view job) {
        const std::shared_ptr<Fleet> fleet = GetFleet();
        return JobElsewhereError(
            fleet == nullptr ? "" : fleet->FindOwner(FindShard(job)));
      };
    }
    return driver;
  }

  bool is_durable() const {
    return commits_ != nullptr || options_.open_fleet != nullptr;
  }

  // Null: there is none, or not yet.
  std::shared_ptr<Fleet> GetFleet() const {
    MutexLock lock(fleet_mu_);
    return fleet_;
  }

  // This server, as others reach it. It listens.
  FleetMember Self() const {
    const auto reachable = [](const char* option, const std::string& address,
                              int port) {
      StatusOr<Endpoint> endpoint = ParseEndpoint(option, address);
      if (!endpoint.ok()) return address;  // listen_fd is used
      endpoint->port = port;
      return ReachableAddress(*std::move(endpoint));
    };
    FleetMember self;
    self.address = options_.advertise.empty()
                       ? reachable("listen", options_.listen, port())
                       : options_.advertise;
    if (http_ != nullptr) {
      self.http_address =
          reachable("http_listen", options_.http_listen, http_port());
    }
    self.version = MUSTER_VERSION;
    self.epoch = driver_.epoch().value();
    self.draining = draining_;
    return self;
  }

  int64_t UncommittedSteps() const {
    return commits_ != nullptr ? commits_->depth() : shards_.depth();
  }

  Status JoinFleet() {
    if (options_.open_fleet == nullptr) return OkStatus();
    StatusOr<std::unique_ptr<Fleet>> fleet =
        options_.open_fleet(Self(), shards_);
    if (!fleet.ok()) return fleet.status();
    MutexLock lock(fleet_mu_);
    fleet_ = *std::move(fleet);
    return OkStatus();
  }

  // OK, or why clients should go to another coordinator.
  Status CheckReady() const {
    if (draining_) return UnavailableError("draining");
    if (options_.open_fleet == nullptr) return OkStatus();
    const std::shared_ptr<Fleet> fleet = GetFleet();
    if (fleet == nullptr) return UnavailableError("joins its fleet");
    return fleet->CheckReady();
  }

  void UpdateHealth() {
    if (options_.open_fleet == nullptr) return;
    const bool ready = CheckReady().ok();
    grpc_->GetHealthCheckService()->SetServingStatus("", ready);
    for (const char* const name : kServiceNames) {
      grpc_->GetHealthCheckService()->SetServingStatus(name, ready);
    }
  }

  std::shared_ptr<CommitQueue> NewCommits(std::unique_ptr<Storage> storage) {
    CommitQueue::Observer observer;
    observer.written = [this](core::Duration took, int64_t steps,
                              int64_t records) {
      metrics_.CountCommit(took, steps, records);
    };
    observer.failed = [this](const Status& status) {
      // The fleet takes the shard away.
      if (options_.open_fleet != nullptr) return;
      if (options_.on_storage_failure == nullptr) {
        LOG(FATAL) << "storage_failed: cause=" << base::Quote(status.message());
      }
      options_.on_storage_failure(status);
    };
    return std::make_shared<CommitQueue>(
        std::move(storage), SyncPolicy{options_.storage_sync_interval},
        std::move(observer));
  }

  Status LoadTls() {
    if (options_.tls_cert.empty()) return OkStatus();
    StatusOr<std::unique_ptr<TlsIdentity>> tls = TlsIdentity::Load(
        {options_.tls_cert, options_.tls_key, options_.tls_client_ca});
    if (!tls.ok()) return tls.status();
    tls_ = *std::move(tls);
    return OkStatus();
  }

  Status ServeGrpc(const Endpoint& endpoint) {
    StatusOr<std::unique_ptr<Listener>> listener =
        options_.listen_fd >= 0 ? Listener::Duplicate(options_.listen_fd)
                                : Listener::Bind(endpoint);
    if (!listener.ok()) return listener.status();
    listener_ = *std::move(listener);
    grpc::ServerBuilder builder;
    ConfigureTransport(options_, builder);
    // The library registers itself when it is linked; this keeps it linked.
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Keeps the description of the library's own service linked.
    google::protobuf::LinkMessageReflection<
        ::grpc::health::v1::HealthCheckRequest>();
    for (const char* const service : {"Store", "Membership", "Barrier"}) {
      services_.push_back(MakeCallService(service, context_));
    }
    services_.push_back(MakeAdminService(
        context_,
        {.sessions = [this] { return sessions_.size(); },
         .draining = [this] { return draining_.load(); },
         .durable = is_durable(),
         .request_drain = options_.on_drain_request,
         .fleet = [this] { return GetFleet(); },
         .self = [this] { return Self(); },
         .check_ready = [this] { return CheckReady(); },
         .uncommitted_steps = [this] { return UncommittedSteps(); }}));
    services_.push_back(sessions_.MakeService());
    for (const auto& service : services_) {
      builder.RegisterService(service.get());
    }
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        tls_ == nullptr ? grpc::InsecureServerCredentials()
                        : tls_->NewCredentials());
    grpc_ = BuildWithHealth(builder);
    if (grpc_ == nullptr) {
      return InternalError("the gRPC library does not start a server");
    }
    listener_->Start([this](int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters
          connection;
      connection.fd = fd;
      const AcceptingFrom accepting(tls_ == nullptr ? "" : PeerAddress(fd));
      acceptor_->HandleNewConnection(&connection);
    });
    for (const char* const name : kServiceNames) {
      grpc_->GetHealthCheckService()->SetServingStatus(name, true);
    }
    return OkStatus();
  }

  Status ServeHttp() {
    const StatusOr<Endpoint> endpoint =
        ParseEndpoint("http_listen", options_.http_listen);
    if (!endpoint.ok()) return endpoint.status();
    const Endpoint listening = ListeningEndpoint(*endpoint);
    Status can = CheckCanListen(listening);
    if (!can.ok()) return can;
    const std::vector<base::HttpPage> pages = {
        {"/metrics", base::RenderAs("text/plain; version=0.0.4; charset=utf-8",
                                    [this] { return metrics_.Scrape(); })},
        {"/healthz", [] { return base::HttpResponse{.body = "ok\n"}; }},
        {"/readyz",
         [this] {
           const Status ready = CheckReady();
           if (ready.ok()) return base::HttpResponse{.body = "ready\n"};
           return base::HttpResponse{
               .status = 503, .body = absl::StrCat(ready.message(), "\n")};
         }},
        {"/", base::RenderAs("text/html; charset=utf-8", [this] {
           return RenderStatusPage(ReadStatus());
         })}};
    StatusOr<std::unique_ptr<base::HttpServer>> http =
        base::HttpServer::Start(listening, pages, {.threads = kHttpThreads});
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
    return OkStatus();
  }

  void ReturnMemory(core::Instant now) {
    if (now - memory_looked_at_ < kMemoryInterval) return;
    memory_looked_at_ = now;
    if (mallinfo2().fordblks > kFreeBytesMax) malloc_trim(0);
  }

  Gauges ReadGauges() {
    Gauges gauges;
    gauges.refused_files = (tls_ != nullptr && tls_->refused() ? 1 : 0) +
                           (auth_ != nullptr && auth_->refused() ? 1 : 0);
    if (tls_ != nullptr && tls_->expiry() != absl::InfiniteFuture()) {
      gauges.certificate_expiry = absl::ToUnixSeconds(tls_->expiry());
    }
    if (auth_ != nullptr && auth_->NextExpiry() != absl::InfiniteFuture()) {
      gauges.token_expiry = absl::ToUnixSeconds(auth_->NextExpiry());
    }
    gauges.sessions = sessions_.size();
    gauges.relays = sessions_.relays();
    gauges.uncommitted_steps = UncommittedSteps();
    if (const std::shared_ptr<Fleet> fleet = GetFleet()) {
      gauges.fleet = fleet->Counts();
    }
    for (const std::shared_ptr<Job>& job : driver_.Jobs()) {
      const core::JobCounts counts = job->Counts();
      ++gauges.jobs;
      gauges.keys += counts.keys;
      gauges.store_bytes += counts.store_bytes;
      gauges.queue_items += counts.queue_items;
      gauges.waiters += counts.waiters;
      gauges.open_barriers += counts.open_barriers;
      gauges.groups += counts.groups;
      for (int i = 0; i < core::kMemberStateCount; ++i) {
        gauges.members[i] += counts.members[i];
      }
    }
    return gauges;
  }

  StatusPageInput ReadStatus() {
    StatusPageInput input;
    input.uptime = std::chrono::steady_clock::now() - driver_.started_at();
    input.sessions = sessions_.size();
    input.draining = draining_.load();
    if (const std::shared_ptr<Fleet> fleet = GetFleet()) {
      input.fleet = fleet->View();
    }
    for (const std::shared_ptr<Job>& job : driver_.Jobs()) {
      input.jobs.push_back(
          {job->name(), job->Snapshot(), job->operations().per_second});
    }
    return input;
  }

  // In order of construction: each refers to earlier ones.
  const ServerOptions options_;
  const std::unique_ptr<Auth> auth_;
  Metrics metrics_;
  Storage* const storage_;  // that of `commits_`
  const std::shared_ptr<CommitQueue> commits_;
  FairQueue fair_queue_;
  core::TotalMemory memory_;
  std::atomic<int64_t> untold_bytes_ = 0;  // of all jobs
  Driver driver_;
  OpenCalls open_calls_;
  UnsentAnswers unsent_;
  core::Instant memory_looked_at_{};  // used by the ticker
  const ServiceContext context_;
  SessionTable sessions_;
  Shards shards_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<TlsIdentity> tls_;  // null: plain text
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<base::HttpServer> http_;
  mutable Mutex fleet_mu_;
  std::shared_ptr<Fleet> fleet_ MUSTER_GUARDED_BY(fleet_mu_);
  std::atomic<bool> draining_ = false;
  // Held for a whole Drain, so that concurrent callers return when it is done.
  Mutex drain_mu_;
};

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  TakeOverLibraryLogs();
  Status status =
      CheckAddressSpace(AddressSpaceLimit(), sysconf(_SC_NPROCESSORS_CONF));
  if (status.ok()) {
    const base::ProcessUsage usage = base::ReadProcessUsage();
    status = CheckDescriptors(static_cast<uint64_t>(usage.max_fds),
                              static_cast<uint64_t>(usage.open_fds));
  }
  if (status.ok()) status = CheckThreads(sysconf(_SC_NPROCESSORS_CONF));
  if (status.ok()) status = CheckOptions(options);
  if (status.ok()) status = CheckTls(options);
  if (!status.ok()) return status;
  std::unique_ptr<Auth> auth;
  if (!options.token_file.empty()) {
    StatusOr<std::unique_ptr<Auth>> loaded = Auth::Load(options.token_file);
    if (!loaded.ok()) return loaded.status();
    auth = *std::move(loaded);
  }
  std::unique_ptr<Storage> storage;
  if (options.open_storage != nullptr && options.open_fleet == nullptr) {
    StatusOr<std::unique_ptr<Storage>> opened = options.open_storage();
    if (!opened.ok()) return opened.status();
    storage = *std::move(opened);
  }
  auto server = std::make_unique<ServerImpl>(options, std::move(storage),
                                             std::move(auth));
  status = server->Restore();
  if (!status.ok()) return status;
  status = server->Serve();
  if (!status.ok()) return status;
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace muster::coordinator
