#include "coordinator/server/rpc/admin_service.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "coordinator/core/limits.h"
#include "coordinator/core/snapshot.h"
#include "coordinator/server/auth/job_name.h"
#include "coordinator/server/jobs/job_elsewhere.h"
#include "coordinator/server/method.h"
#include "coordinator/server/rpc/convert.h"
#include "coordinator/server/rpc/request.h"
#include "coordinator/server/rpc/service.h"
#include "glog/logging.h"
#include "muster/base/status.h"
#include "muster/v1/admin.pb.h"
#include "muster/version.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

// The most bytes of a client's text in the log.
constexpr size_t kReasonShownMax = 256;
// The most ranks that one GetJob may ask about.
constexpr int32_t kRanksAskedMax = 1024;

core::Instant Now() { return std::chrono::steady_clock::now(); }

void FillSummary(Job& job, const core::JobCounts& counts,
                 v1::JobSummary* summary) {
  summary->set_job(job.name());
  summary->set_generation(counts.generation.value());
  summary->set_world_size(counts.world_size);
  summary->set_members_alive(static_cast<int32_t>(counts.live_members));
  summary->set_keys(counts.keys);
  summary->set_store_bytes(counts.store_bytes);
  summary->set_waiters(counts.waiters);
  summary->set_open_barriers(static_cast<int32_t>(counts.open_barriers));
  summary->set_generation_running(counts.generation_running);
  summary->set_queue_items(counts.queue_items);
  const Job::Operations operations = job.operations();
  summary->set_operations(operations.total);
  summary->set_operations_per_second(operations.per_second);
}

core::JobCounts ComputeCounts(const core::JobSnapshot& snapshot) {
  core::JobCounts counts;
  for (const core::MemberSnapshot& member : snapshot.members) {
    if (member.state == core::MemberState::kAlive ||
        member.state == core::MemberState::kDisconnected) {
      ++counts.live_members;
    }
  }
  counts.keys = snapshot.keys;
  counts.store_bytes = snapshot.store_bytes;
  counts.waiters = snapshot.waiters;
  counts.open_barriers = snapshot.open_barriers;
  counts.generation = snapshot.generation;
  counts.generation_running = snapshot.generation_running;
  counts.world_size = snapshot.world_size;
  counts.queue_items = snapshot.queue_items;
  return counts;
}

void FillBarrier(const core::BarrierSnapshot& barrier,
                 v1::OpenBarrier* message) {
  message->set_group(barrier.group);
  message->set_name(barrier.barrier);
  message->set_instance(barrier.instance);
  message->set_arrived(barrier.arrived);
  message->set_expected(barrier.expected);
  for (const core::MissingRank& missing : barrier.missing) {
    FillMember(missing, message->add_missing());
  }
  message->mutable_others()->Add(barrier.others.begin(), barrier.others.end());
  FillDuration(barrier.open_for, message->mutable_open_for());
}

void FillGroup(const core::GroupSnapshot& group, v1::RegisteredGroup* message) {
  message->set_name(group.name);
  message->set_description(group.description);
  message->set_registered(group.registered);
  for (const core::Rank rank : *group.ranks) message->add_ranks(rank.value());
  for (const core::Rank rank : group.missing) {
    message->add_missing(rank.value());
  }
  if (group.forming_for.has_value()) {
    FillDuration(*group.forming_for, message->mutable_forming_for());
  }
}

void FillProgress(const core::MemberSnapshot& member,
                  v1::MemberProgress* message) {
  if (member.progress.empty()) return;
  FillDuration(member.progress_age, message->mutable_age());
  for (const core::GroupProgress& progress : member.progress) {
    v1::GroupProgress* group = message->add_groups();
    group->set_group(progress.group);
    group->set_last_enqueued(progress.last_enqueued);
    group->set_last_completed(progress.last_completed);
    group->set_current(progress.current);
    FillDuration(progress.current_age, group->mutable_running_for());
    if (progress.arguments_hash.has_value()) {
      group->set_arguments_hash(*progress.arguments_hash);
    }
    if (!progress.peer_call.has_value()) continue;
    v1::PeerCall* call = group->mutable_peer_call();
    call->set_sends(progress.peer_call->sends);
    call->set_number(progress.peer_call->number);
    call->set_peer(progress.peer_call->peer);
  }
}

// Fills in the members, and the lease, which tells how late they are.
void FillMembers(core::JobSnapshot& snapshot, v1::GetJobResponse* response) {
  FillDuration(snapshot.lease, response->mutable_lease());
  // By rank, then by name; members without a rank last.
  std::stable_sort(
      snapshot.members.begin(), snapshot.members.end(),
      [](const core::MemberSnapshot& a, const core::MemberSnapshot& b) {
        if (a.rank.has_value() != b.rank.has_value()) return a.rank.has_value();
        return a.rank.has_value() && *a.rank < *b.rank;
      });
  for (const core::MemberSnapshot& member : snapshot.members) {
    FillMember(member, response->add_members());
    FillProgress(member, response->add_progress());
  }
}

void FillKeyWaits(const core::JobSnapshot& snapshot,
                  v1::GetJobResponse* response) {
  for (const core::KeyWaitSnapshot& wait : snapshot.key_waits) {
    v1::KeyWait* message = response->add_key_waits();
    message->set_member(wait.member.value());
    message->set_key(wait.key);
    message->set_missing(wait.missing);
    message->set_item(wait.item);
    FillDuration(wait.waiting_for, message->mutable_waiting_for());
  }
  response->set_more_key_waits(snapshot.more_key_waits);
}

void FillJob(Job& job, v1::GetJobResponse* response) {
  core::JobSnapshot snapshot = job.Snapshot();
  FillSummary(job, ComputeCounts(snapshot), response->mutable_summary());
  FillMembers(snapshot, response);
  for (const core::BarrierSnapshot& barrier : snapshot.barriers) {
    FillBarrier(barrier, response->add_barriers());
  }
  response->set_forming_world_size(snapshot.forming_world_size);
  response->set_joined(snapshot.joined);
  response->set_forming_min_world_size(snapshot.forming_min_world_size);
  if (snapshot.last_call_remaining.has_value()) {
    FillDuration(*snapshot.last_call_remaining,
                 response->mutable_last_call_remaining());
  }
  response->set_rendezvous_closed(snapshot.rendezvous_closed);
  response->set_rendezvous_waiting(snapshot.rendezvous_waiting);
  response->set_generation_end(snapshot.generation_end);
  for (const core::MemberId& member : snapshot.joined_members) {
    response->add_joined_members(member.value());
  }
  for (const core::Rank rank : snapshot.missing_ranks) {
    response->add_missing_ranks(rank.value());
  }
  FillKeyWaits(snapshot, response);
  for (const core::GroupSnapshot& group : snapshot.groups) {
    FillGroup(group, response->add_groups());
  }
}

class AdminService final : public Service {
 public:
  AdminService(const ServiceContext& context, AdminHooks hooks)
      : context_(context), hooks_(std::move(hooks)) {
    Add<v1::ListJobsRequest>("/muster.v1.AdminService/ListJobs",
                             Method::kListJobs, &AdminService::ListJobs);
    Add<v1::GetJobRequest>("/muster.v1.AdminService/GetJob", Method::kGetJob,
                           &AdminService::GetJob);
    Add<v1::DrainRequest>("/muster.v1.AdminService/Drain", Method::kDrain,
                          &AdminService::Drain);
    Add<v1::GetClusterRequest>("/muster.v1.AdminService/GetCluster",
                               Method::kGetCluster, &AdminService::GetCluster);
    Add<v1::MoveJobRequest>("/muster.v1.AdminService/MoveJob", Method::kMoveJob,
                            &AdminService::MoveJob);
  }

 private:
  template <typename Request, typename Response>
  void Add(const char* name, Method method,
           Status (AdminService::*verb)(const Context&, const Request&,
                                        Response*)) {
    AddUnary<Response>(
        name, [this, method, verb](Context* context, grpc::ByteBuffer* bytes,
                                   Response* response) {
          const core::Instant started = Now();
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          // The description of a job may be large, and the job's lock may be
          // held. So the service has a share of the turns like a job, and each
          // call is an owner: none waits for a job or for another call.
          context_.fair_queue->Post(
              reinterpret_cast<const Job*>(this), context, [=, this] {
                const Status status = Answer(*context, bytes, verb, response);
                context_.metrics->CountCalls(method, status.code(),
                                             Now() - started);
                reactor->Finish(v1::ToGrpc(status));
              });
          return reactor;
        });
  }

  template <typename Request, typename Response>
  Status Answer(const Context& context, grpc::ByteBuffer* bytes,
                Status (AdminService::*verb)(const Context&, const Request&,
                                             Response*),
                Response* response) {
    // Requests of unknown callers are not parsed.
    if (context_.auth != nullptr) {
      Status known = context_.auth->Know(context);
      if (!known.ok()) return known;
    }
    Request request;
    Status parsed = ParseRequest(bytes, &request);
    if (!parsed.ok()) return parsed;
    return (this->*verb)(context, request, response);
  }

  Status ListJobs(const Context& context, const v1::ListJobsRequest&,
                  v1::ListJobsResponse* response) {
    const core::Instant now = Now();
    Driver& driver = *context_.driver;
    response->set_coordinator_epoch(driver.epoch().value());
    FillDuration(now - driver.started_at(), response->mutable_uptime());
    response->set_version(MUSTER_VERSION);
    for (const std::shared_ptr<Job>& job : driver.Jobs()) {
      if (!job->owned()) continue;
      // Lists only the jobs that the caller may see.
      if (!Admit(context, Method::kListJobs, job->name()).ok()) continue;
      FillSummary(*job, job->Counts(), response->add_jobs());
    }
    response->set_sessions(hooks_.sessions());
    response->set_draining(hooks_.draining());
    response->set_durable(hooks_.durable);
    return OkStatus();
  }

  Status GetJob(const Context& context, const v1::GetJobRequest& request,
                v1::GetJobResponse* response) {
    Status allowed = Admit(context, Method::kGetJob, request.job());
    if (!allowed.ok()) return allowed;
    const StatusOr<std::shared_ptr<Job>> job =
        context_.driver->FindJob(request.job());
    if (!job.ok()) return job.status();
    Status described = DescribeJob(**job, request, response);
    // Another coordinator may have changed the job meanwhile.
    if (described.ok() && !(*job)->owned()) {
      return JobElsewhereError("");
    }
    return described;
  }

  Status DescribeJob(Job& job, const v1::GetJobRequest& request,
                     v1::GetJobResponse* response) {
    response->set_coordinator_epoch(context_.driver->epoch().value());
    if (request.host().empty()) {
      FillDuration(Now() - context_.driver->started_at(),
                   response->mutable_uptime());
      response->set_durable(hooks_.durable);
      FillJob(job, response);
    } else {
      if (request.rank_count() < 0 || request.rank_count() > kRanksAskedMax) {
        return InvalidArgumentError(absl::StrCat("rank_count must be 0 to ",
                                                 kRanksAskedMax, ", got ",
                                                 request.rank_count()));
      }
      core::JobSnapshot snapshot =
          job.Snapshot(request.host(), core::Rank(request.first_rank()),
                       request.rank_count());
      FillMembers(snapshot, response);
      response->set_forming_world_size(snapshot.forming_world_size);
      response->set_joined(snapshot.joined);
      for (const core::Rank rank : snapshot.missing_ranks) {
        response->add_missing_ranks(rank.value());
      }
    }
    return core::CheckLimit("message_bytes", context_.message_bytes_max,
                            static_cast<int64_t>(response->ByteSizeLong()),
                            {"job", request.job()});
  }

  Status Drain(const Context& context, const v1::DrainRequest& request,
               v1::DrainResponse* response) {
    Status allowed = Admit(context, Method::kDrain, /*job=*/"");
    if (!allowed.ok()) return allowed;
    if (hooks_.request_drain == nullptr) {
      return FailedPreconditionError(
          "this coordinator is embedded in another process and ends with it");
    }
    LOG(INFO) << "drain_requested: peer=" << base::LogValue(context.peer())
              << " reason="
              << base::Quote(request.reason().substr(0, kReasonShownMax));
    response->set_coordinator_epoch(context_.driver->epoch().value());
    hooks_.request_drain();
    return OkStatus();
  }

  Status GetCluster(const Context&, const v1::GetClusterRequest& request,
                    v1::GetClusterResponse* response) {
    if (!request.job().empty()) {
      Status valid = CheckJobName(request.job());
      if (!valid.ok()) return valid;
      response->set_job_shard(FindShard(request.job()));
    }
    response->set_coordinator_epoch(context_.driver->epoch().value());
    const FleetMember self = hooks_.self();
    response->set_answered_by(self.address);
    response->set_not_ready(std::string(hooks_.check_ready().message()));
    response->set_uncommitted_steps(hooks_.uncommitted_steps());
    const std::shared_ptr<Fleet> fleet = hooks_.fleet();
    FleetView view;
    view.members = {self};
    if (fleet != nullptr) view = fleet->View();
    std::map<std::string, int> shards;
    for (const FleetView::Shard& shard : view.shards) ++shards[shard.owner];
    for (const FleetMember& member : view.members) {
      v1::ClusterCoordinator* message = response->add_coordinators();
      message->set_address(member.address);
      message->set_http_address(member.http_address);
      message->set_version(member.version);
      message->set_coordinator_epoch(member.epoch);
      message->set_draining(member.draining);
      message->set_shards(shards[member.address]);
    }
    if (fleet == nullptr) return OkStatus();
    for (const FleetView::Shard& shard : view.shards) {
      v1::ClusterShard* message = response->add_shards();
      message->set_owner(shard.owner);
      message->set_pin(shard.pin);
    }
    return OkStatus();
  }

  Status MoveJob(const Context& context, const v1::MoveJobRequest& request,
                 v1::MoveJobResponse* response) {
    Status status = CheckJobName(request.job());
    if (status.ok()) status = Admit(context, Method::kMoveJob, request.job());
    if (!status.ok()) return status;
    const std::shared_ptr<Fleet> fleet = hooks_.fleet();
    if (fleet == nullptr) {
      return FailedPreconditionError(
          "this coordinator shares its jobs with no other (--storage=etcd)");
    }
    LOG(INFO) << "move_requested: peer=" << base::LogValue(context.peer())
              << " job=" << request.job()
              << " to=" << base::LogValue(request.to());
    response->set_coordinator_epoch(context_.driver->epoch().value());
    return fleet->Move(FindShard(request.job()), request.to());
  }

  Status Admit(const Context& context, Method method,
               const std::string& job) const {
    if (context_.auth == nullptr) return OkStatus();
    return context_.auth->Admit(context, method, job, /*as_member=*/false)
        .status();
  }

  const ServiceContext& context_;
  const AdminHooks hooks_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context,
                                                AdminHooks hooks) {
  return std::make_unique<AdminService>(context, std::move(hooks));
}

}  // namespace muster::coordinator
