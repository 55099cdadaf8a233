#ifndef MUSTER_COORDINATOR_SERVER_RPC_UNARY_H_
#define MUSTER_COORDINATOR_SERVER_RPC_UNARY_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/auth/auth.h"
#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/jobs/limit_log.h"
#include "coordinator/server/jobs/sink.h"
#include "coordinator/server/method.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/server/rpc/apply.h"
#include "coordinator/server/rpc/open_calls.h"
#include "coordinator/server/rpc/request.h"
#include "coordinator/server/rpc/service.h"
#include "coordinator/server/rpc/unsent_answers.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "muster/v1/membership.pb.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {

// Shared by the services. Outlives all calls.
struct ServiceContext {
  Driver* driver;
  Metrics* metrics;
  OpenCalls* open_calls;
  // The largest size of an answer.
  int64_t message_bytes_max;
  FairQueue* fair_queue;
  // Checks callers; null: everybody may call.
  const Auth* auth = nullptr;
  UnsentAnswers* unsent = nullptr;
};

inline bool WithoutSeats(const v1::JoinRequest& request) {
  return request.without_seats();
}
template <typename Request>
bool WithoutSeats(const Request&) {
  return false;
}

// The owner of the turns of a member's unary calls.
inline const void* TaskOwner(const core::MemberId& member) {
  return reinterpret_cast<const void*>(
      std::hash<std::string>()(member.value()));
}

// UnaryCall is one unary call from its arrival to its answer. It lives until
// gRPC has finished it and the job no longer refers to it, whichever is last.
// Large requests and answers are handled in turns of its job.
template <typename Request, typename Response>
class UnaryCall
    : public grpc::ServerUnaryReactor,
      public Sink,
      public std::enable_shared_from_this<UnaryCall<Request, Response>> {
 public:
  UnaryCall(const ServiceContext& context, Method method,
            grpc::CallbackServerContext* grpc, Response* response)
      : context_(context),
        method_(method),
        started_(std::chrono::steady_clock::now()),
        grpc_(grpc),
        response_(response) {}

  void Start(grpc::ByteBuffer* bytes) {
    context_.open_calls->Begin();
    self_ = this->shared_from_this();
    // Requests of unknown callers are not parsed.
    if (context_.auth != nullptr) {
      const Status known = context_.auth->Know(*grpc_);
      if (!known.ok()) return End(known);
    }
    if (bytes->Length() <= FairQueue::kBytesWithoutTurn) return Open(bytes);
    const std::shared_ptr<Job> job = Spender(bytes);
    context_.fair_queue->Post(
        job.get(), this, [self = self_, job, bytes] { self->Open(bytes); });
  }

  void Deliver(absl::Span<Answer> answers) override {
    for (Answer& answer : answers) {
      Status status = ToStatus(answer);
      if (status.ok()) {
        status = CheckAnswerBytes(answer, context_.message_bytes_max);
      }
      const int64_t bytes = AnswerBytes(answer);
      if (status.ok() && bytes >= UnsentAnswers::kBytesMin) {
        status = AddUnsent(bytes);
      }
      if (!status.ok()) {
        End(status);
        continue;
      }
      if (bytes <= int64_t{FairQueue::kBytesWithoutTurn}) {
        Respond(answer);
        continue;
      }
      Post([self = this->shared_from_this(), answer = std::move(answer)] {
        self->Respond(answer);
      });
    }
  }

  void Publish(const SharedEvent&) override {}
  void Flush() override {}
  void Close(const Status& status) override {
    withdrawn_.store(true);
    End(status);
  }

  // The client gave up, or its deadline has passed.
  void OnCancel() override {
    cancelled_.store(true);
    if (!opened_.load()) return;
    if (!job_->busy()) return job_->CancelAll(self_);
    Post([self = self_] { self->job_->CancelAll(self); });
  }

  void OnDone() override {
    if (withdrawn_.load() && job_->busy()) {
      return Post([self = self_] { self->Retire(); });
    }
    Retire();
  }

 private:
  // The job that pays for parsing the request: the job that it names, if the
  // caller may use it and it exists.
  std::shared_ptr<Job> Spender(grpc::ByteBuffer* bytes) const {
    const v1::Caller caller = ParseCaller(bytes);
    if (context_.auth != nullptr &&
        !context_.auth
             ->Admit(*grpc_, method_, caller.job(), !caller.member().empty())
             .ok()) {
      return nullptr;
    }
    StatusOr<std::shared_ptr<Job>> job = context_.driver->FindJob(caller.job());
    return job.ok() ? *std::move(job) : nullptr;
  }

  void Retire() {
    if (withdrawn_.load()) job_->Detach(*this);
    {
      MutexLock lock(unsent_mu_);
      if (added_) context_.unsent->Remove(grpc_);
      retired_ = true;
    }
    context_.open_calls->End();
    // The last reference may be this one.
    std::shared_ptr<UnaryCall> self = std::move(self_);
  }

  // gRPC may have finished the call: a drain may have ended it before its
  // answer came here.
  Status AddUnsent(int64_t bytes) {
    MutexLock lock(unsent_mu_);
    if (retired_) return OkStatus();
    Status status = context_.unsent->Add(grpc_, bytes);
    added_ = status.ok();
    return status;
  }

  void Post(std::function<void()> turn) {
    context_.fair_queue->Post(job_.get(), TaskOwner(call_.member),
                              std::move(turn));
  }

  void Open(grpc::ByteBuffer* bytes) {
    const size_t length = bytes->Length();
    const Status parsed = ParseRequest(bytes, &request_);
    if (!parsed.ok()) return End(parsed);
    const v1::Caller& caller = request_.caller();
    call_ = ToCall(caller, context_.driver->limits());
    bool may_create = true;
    const TokenDigest* token = nullptr;
    StatusOr<Auth::Pass> pass;
    if (context_.auth != nullptr) {
      pass = context_.auth->Admit(*grpc_, method_, caller.job(),
                                  !caller.member().empty());
      if (!pass.ok()) return End(pass.status());
      may_create = pass->member;
      token = &pass->digest;
    }
    StatusOr<std::shared_ptr<Job>> job =
        may_create ? context_.driver->GetJob(caller.job(), token)
                   : context_.driver->FindJob(caller.job());
    if (!job.ok()) return End(job.status());
    job_ = *std::move(job);
    opened_.store(true);
    if (job_->Behind() && !IsResourceExhausted(job_->health())) {
      return job_->WhenTold([self = self_] { self->PostRun(); });
    }
    if (MayTakeLong(method_) || job_->busy() ||
        length > FairQueue::kBytesWithoutTurn || !job_->AtOnce(started_)) {
      return PostRun();
    }
    Run();
  }

  void PostRun() {
    Post([self = self_] {
      const Job::LongStep step(*self->job_);
      self->Run();
    });
  }

  // Moves keys and values out of the request.
  void Run() {
    // OnDone may come with the answer and reset self_.
    const std::shared_ptr<UnaryCall> self = self_;
    const Status health = job_->health();
    bool refused = false;
    job_->Run(
        self, 1,
        [&](size_t, core::WaiterId waiter, JobContext& context) {
          refused = IsResourceExhausted(health) &&
                    NeedsSpace(request_, method_, call_, job_->Behind(),
                               context.core);
          if (refused) return Job::Applied::kStop;
          call_.waiter = waiter;
          Apply(request_, call_, context);
          return Job::Applied::kCalled;
        },
        [&](size_t) {
          return CallName{0, method_, WithoutSeats(request_)};
        });
    if (refused) return End(health);
    // OnCancel may have come too early to find the call.
    if (cancelled_.load()) job_->CancelAll(self);
  }

  void Respond(const Answer& answer) {
    // Claims the call before it changes the response, because Close may come
    // from another thread.
    if (ended_.exchange(true)) return;
    Fill(answer, call_.member, response_);
    response_->set_coordinator_epoch(context_.driver->epoch().value());
    Finish(OkStatus());
  }

  void End(const Status& status) {
    if (ended_.exchange(true)) return;
    LogIfLimited(job_ == nullptr ? "" : job_->name(), status);
    Finish(status);
  }

  void Finish(const Status& status) {
    context_.metrics->CountCalls(method_, status.code(),
                                 std::chrono::steady_clock::now() - started_);
    grpc::ServerUnaryReactor::Finish(v1::ToGrpc(status));
  }

  const ServiceContext& context_;
  const Method method_;
  const core::Instant started_;
  grpc::CallbackServerContext* const grpc_;
  Request request_;  // set by Open
  core::Call call_;  // set by Open
  Response* const response_;
  std::shared_ptr<Job> job_;  // set by Open, before `opened_`
  std::shared_ptr<UnaryCall> self_;
  Mutex unsent_mu_;
  bool added_ MUSTER_GUARDED_BY(unsent_mu_) = false;    // to `unsent`
  bool retired_ MUSTER_GUARDED_BY(unsent_mu_) = false;  // gRPC is done with it
  std::atomic<bool> opened_ = false;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> cancelled_ = false;
  // The call was ended while it may have been parked.
  std::atomic<bool> withdrawn_ = false;
};

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_RPC_UNARY_H_
