#include "coordinator/server/rpc/watch_call.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "coordinator/core/call.h"
#include "coordinator/core/ids.h"
#include "coordinator/core/instant.h"
#include "coordinator/server/auth/auth.h"
#include "coordinator/server/jobs/driver.h"
#include "coordinator/server/jobs/fair_queue.h"
#include "coordinator/server/jobs/job.h"
#include "coordinator/server/jobs/sink.h"
#include "coordinator/server/method.h"
#include "coordinator/server/ops/metrics.h"
#include "coordinator/server/rpc/apply.h"
#include "coordinator/server/rpc/open_calls.h"
#include "coordinator/server/rpc/request.h"
#include "muster/base/mutex.h"
#include "muster/base/status.h"
#include "muster/base/thread_annotations.h"
#include "proto/muster/v1/status_wire.h"

namespace muster::coordinator {
namespace {

// WatchCall is one open watch. At any time a call of the job waits, or an
// answer is being written, or the watch is finished. It lives until gRPC has
// finished it and the job no longer refers to it.
class WatchCall final : public grpc::ServerWriteReactor<v1::WatchResponse>,
                        public Sink,
                        public std::enable_shared_from_this<WatchCall> {
 public:
  explicit WatchCall(const ServiceContext& context)
      : context_(context), started_(std::chrono::steady_clock::now()) {}

  void Start(const grpc::CallbackServerContext* grpc, grpc::ByteBuffer* bytes) {
    context_.open_calls->Begin();
    self_ = shared_from_this();
    // Requests of unknown callers are not parsed.
    if (context_.auth != nullptr) {
      const Status known = context_.auth->Know(*grpc);
      if (!known.ok()) return End(known);
    }
    v1::WatchRequest request;
    const Status parsed = ParseRequest(bytes, &request);
    if (!parsed.ok()) return End(parsed);
    call_ = ToCall(request.caller(), context_.driver->limits());
    const std::string job_name = request.caller().job();
    {
      MutexLock lock(mu_);
      request_ = std::move(request);
    }
    if (context_.auth != nullptr) {
      const StatusOr<Auth::Pass> pass = context_.auth->Admit(
          *grpc, Method::kWatch, job_name, !call_.member.value().empty());
      if (!pass.ok()) return End(pass.status());
      pass_ = *pass;
    }
    StatusOr<std::shared_ptr<Job>> job = context_.driver->GetJob(
        job_name, context_.auth == nullptr ? nullptr : &pass_.digest);
    if (!job.ok()) return End(job.status());
    job_ = *std::move(job);
    MutexLock lock(mu_);
    PostAsk();
  }

  void Deliver(absl::Span<Answer> answers) override {
    for (const Answer& answer : answers) {
      Status status = ToStatus(answer);
      // The token may have become invalid since the watch began.
      if (status.ok() && context_.auth != nullptr) {
        status = context_.auth->Renew(Method::kWatch, job_->name(), pass_);
      }
      if (status.ok()) {
        status = CheckAnswerBytes(answer, context_.message_bytes_max);
      }
      if (!status.ok()) {
        End(status);
        continue;
      }
      MutexLock lock(mu_);
      if (finished_) continue;
      response_.Clear();
      Fill(answer.payload, &response_);
      response_.set_coordinator_epoch(context_.driver->epoch().value());
      request_.set_after_revision(response_.revision());
      StartWrite(&response_);
    }
  }

  void Publish(const SharedEvent&) override {}
  void Flush() override {}
  void Close(const Status& status) override { End(status); }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(CancelledError("the client has gone"));
    MutexLock lock(mu_);
    if (!finished_) PostAsk();
  }

  void OnCancel() override { End(CancelledError("cancelled by the caller")); }

  void OnDone() override {
    {
      MutexLock lock(mu_);
      done_ = true;
      if (posted_tasks_ > 0) return;  // the last turn retires it
      // Retires in a turn, which finds nothing else to do.
      if (job_ != nullptr && job_->busy()) return PostAsk();
    }
    Retire();
  }

 private:
  void Retire() {
    if (job_ != nullptr) job_->Detach(*this);
    context_.open_calls->End();
    // This may be the last reference.
    std::shared_ptr<WatchCall> self = std::move(self_);
  }

  // Asks in a turn, because a watch may be far behind.
  void PostAsk() MUSTER_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++posted_tasks_;
    context_.fair_queue->Post(job_.get(), TaskOwner(call_.member),
                              [self = self_] { self->RunTask(); });
  }

  void RunTask() {
    v1::WatchRequest request;
    bool finished = false;
    {
      MutexLock lock(mu_);
      request = request_;
      finished = finished_;
    }
    if (!finished) Ask(request);
    {
      MutexLock lock(mu_);
      if (--posted_tasks_ > 0 || !done_) return;
    }
    Retire();
  }

  // Asks the job for the changes after the written ones. The answer may come
  // before this returns.
  void Ask(v1::WatchRequest& request) {
    const Job::LongStep step(*job_);
    job_->Run(
        self_, 1,
        [&](size_t, core::WaiterId waiter, JobContext& context) {
          call_.waiter = waiter;
          Apply(request, call_, context);
          return Job::Applied::kCalled;
        },
        [](size_t) {
          return CallName{0, Method::kWatch};
        });
  }

  void End(const Status& status) {
    MutexLock lock(mu_);
    if (finished_) return;
    finished_ = true;
    context_.metrics->CountCalls(Method::kWatch, status.code(),
                                 std::chrono::steady_clock::now() - started_);
    Finish(v1::ToGrpc(status));
  }

  const ServiceContext& context_;
  const core::Instant started_;
  std::shared_ptr<WatchCall> self_;  // set by Start, reset by OnDone
  std::shared_ptr<Job> job_;         // set by Start before other threads see it

  core::Call call_;  // used only by the thread that asks
  Auth::Pass pass_;  // set by Start, then used by the thread that delivers

  Mutex mu_;
  // The next request, which begins after the written changes.
  v1::WatchRequest request_ MUSTER_GUARDED_BY(mu_);
  // Used by gRPC while it is written; there is no other answer then.
  v1::WatchResponse response_ MUSTER_GUARDED_BY(mu_);
  bool finished_ MUSTER_GUARDED_BY(mu_) = false;
  int posted_tasks_ MUSTER_GUARDED_BY(mu_) = 0;  // posted, or under way
  bool done_ MUSTER_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchResponse>* StartWatch(
    const ServiceContext& context, const grpc::CallbackServerContext* grpc,
    grpc::ByteBuffer* request) {
  auto call = std::make_shared<WatchCall>(context);
  grpc::ServerWriteReactor<v1::WatchResponse>* reactor = call.get();
  call->Start(grpc, request);
  return reactor;
}

}  // namespace muster::coordinator
