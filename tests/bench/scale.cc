#include "tests/bench/scale.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/session.h"
#include "muster/store.h"
#include "muster/v1/admin.grpc.pb.h"
#include "muster/v1/session.grpc.pb.h"
#include "tests/bench/callers.h"
#include "tests/bench/echo.grpc.pb.h"

namespace muster::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kConnections = 100;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

double ComputeMedian(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double ResidentBytes(int pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  double all = 0;
  double resident = 0;
  statm >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

void AwaitWaiters(v1::AdminService::Stub& admin, int waiters) {
  v1::GetJobRequest request;
  request.set_job("bench");
  v1::GetJobResponse job;
  do {
    grpc::ClientContext context;
    const grpc::Status status = admin.GetJob(&context, request, &job);
    if (!status.ok()) throw std::runtime_error(status.error_message());
  } while (job.summary().waiters() < waiters);
}

// Makes `waiters` threads call `wait`, and `release` when all of them do.
// Returns the milliseconds from `release` to the last one's return.
double Release(int waiters, const std::function<void(int)>& wait,
               const std::function<Clock::time_point()>& release) {
  std::vector<std::thread> threads;
  std::vector<Clock::time_point> back(static_cast<size_t>(waiters));
  for (int i = 0; i < waiters; ++i) {
    threads.emplace_back([&, i] {
      wait(i);
      back[static_cast<size_t>(i)] = Clock::now();
    });
  }
  const Clock::time_point start = release();
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double, std::milli>(
             *std::max_element(back.begin(), back.end()) - start)
      .count();
}

double ReleaseKey(const ScaleOptions& options, int sessions) {
  std::vector<std::unique_ptr<CoordinatorStore>> stores;
  for (int i = 0; i <= sessions; ++i) {
    stores.push_back(
        std::make_unique<CoordinatorStore>(Connect(options.coordinator)));
  }
  const auto admin = v1::AdminService::NewStub(OwnChannel(options.coordinator));
  CoordinatorStore& setter = *stores.back();
  std::vector<double> rounds;
  for (int round = 0; round < options.rounds; ++round) {
    setter.DeleteKey("released");
    rounds.push_back(Release(
        options.waiters,
        [&](int i) {
          stores[static_cast<size_t>(i % sessions)]->Get("released");
        },
        [&] {
          AwaitWaiters(*admin, options.waiters);
          const Clock::time_point start = Clock::now();
          setter.Set("released", "now");
          return start;
        }));
  }
  setter.DeleteKey("released");
  return ComputeMedian(rounds);
}

double ReleaseEchoes(const ScaleOptions& options) {
  std::vector<std::unique_ptr<EchoService::Stub>> stubs;
  for (int i = 0; i <= options.waiters; ++i) {
    stubs.push_back(EchoService::NewStub(OwnChannel(options.echo)));
  }
  std::vector<double> rounds;
  // One additional round, which connects.
  for (int round = 0; round <= options.rounds; ++round) {
    const double last = Release(
        options.waiters,
        [&](int i) {
          grpc::ClientContext context;
          EchoRequest request;
          EchoResponse response;
          stubs[static_cast<size_t>(i)]->Park(&context, request, &response);
        },
        [&] {
          for (;;) {
            grpc::ClientContext context;
            ReleaseRequest request;
            request.set_calls(options.waiters);
            ReleaseResponse response;
            const Clock::time_point start = Clock::now();
            const grpc::Status status =
                stubs.back()->Release(&context, request, &response);
            if (!status.ok()) throw std::runtime_error(status.error_message());
            if (response.released()) return start;
          }
        });
    if (round > 0) rounds.push_back(last);
  }
  return ComputeMedian(rounds);
}

// One member's stream, which reads all messages as they come.
class Member
    : public grpc::ClientBidiReactor<v1::StreamRequest, v1::StreamResponse> {
 public:
  // A count over all members. The thread that waits for it sleeps, because the
  // coordinator needs the processor.
  class Count {
   public:
    void Add(int count) {
      const std::lock_guard<std::mutex> lock(mutex_);
      count_ += count;
      if (count_ >= wanted_) changed_.notify_all();
    }
    int value() const {
      const std::lock_guard<std::mutex> lock(mutex_);
      return count_;
    }
    // Throws after some minutes.
    void Await(int wanted) {
      std::unique_lock<std::mutex> lock(mutex_);
      wanted_ = wanted;
      if (changed_.wait_for(lock, std::chrono::minutes(5),
                            [&] { return count_ >= wanted_; })) {
        return;
      }
      throw std::runtime_error(
          absl::StrCat("members: ", count_, " of ", wanted_, " answers came"));
    }

   private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    int count_ = 0;
    int wanted_ = 0;
  };
  struct Tally {
    Count welcomes;
    Count answers;
    Count events;
    Count event_bytes;
    Count failures;
    Count failure_bytes;  // bytes of their answers
    Count ended;
  };

  Member(v1::SessionService::Stub& stub, int number, Tally& tally)
      : tally_(tally) {
    stub.async()->Stream(&context_, this);
    v1::Hello& hello = *request_.mutable_hello();
    hello.mutable_caller()->set_job("members");
    hello.mutable_caller()->set_member(absl::StrCat("m", number));
    hello.mutable_caller()->set_incarnation(1);
    *hello.mutable_registration()->mutable_caller() = hello.caller();
    hello.mutable_registration()->set_host(absl::StrCat("host-", number / 8));
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }

  void Send(v1::Operation operation) {
    // The answer may come before gRPC has finished the write.
    while (!writable_) std::this_thread::yield();
    writable_ = false;
    request_.Clear();
    operation.set_id(++last_id_);
    *request_.add_operations() = std::move(operation);
    StartWrite(&request_);
  }

  void Cancel() { context_.TryCancel(); }

  void OnWriteDone(bool) override { writable_ = true; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.has_welcome()) tally_.welcomes.Add(1);
    int answers = 0;
    for (const v1::Result& result : response_.results()) {
      if (!result.has_status()) {
        ++answers;
      } else {
        tally_.failure_bytes.Add(static_cast<int>(result.ByteSizeLong()));
        tally_.failures.Add(1);
      }
    }
    if (answers > 0) tally_.answers.Add(answers);
    for (const v1::MemberEvent& event : response_.events()) {
      tally_.event_bytes.Add(static_cast<int>(event.ByteSizeLong()));
      tally_.events.Add(1);
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status&) override { tally_.ended.Add(1); }

 private:
  Tally& tally_;
  grpc::ClientContext context_;
  v1::StreamRequest request_;
  v1::StreamResponse response_;
  uint64_t last_id_ = 0;
  std::atomic<bool> writable_{false};
};

// The relay of one host with as many idle members. Its ranks do nothing.
class RelayedHost {
 public:
  static constexpr int kMembers = 8;

  RelayedHost(const ScaleOptions& options, int number)
      : stub_(v1::SessionService::NewStub(OwnChannel(options.coordinator))),
        stream_(stub_->Relay(&context_)) {
    v1::RelayRequest request;
    for (int i = 1; i <= kMembers; ++i) {
      v1::StreamRequest first;
      v1::Hello& hello = *first.mutable_hello();
      hello.mutable_caller()->set_job("relayed");
      hello.mutable_caller()->set_member(absl::StrCat("m", number, ".", i));
      hello.mutable_caller()->set_incarnation(1);
      *hello.mutable_registration()->mutable_caller() = hello.caller();
      hello.mutable_registration()->set_host(absl::StrCat("host-", number));
      v1::RelayFrame* frame = request.add_frames();
      frame->set_session(static_cast<uint64_t>(i));
      frame->set_open(true);
      frame = request.add_frames();
      frame->set_session(static_cast<uint64_t>(i));
      frame->set_last_part(first.SerializeAsString());
    }
    stream_->Write(request);
    v1::RelayResponse response;
    for (int welcomes = 0; welcomes < kMembers;) {
      if (!stream_->Read(&response)) {
        throw std::runtime_error("the relay's call broke");
      }
      for (const v1::RelayFrame& frame : response.frames()) {
        if (frame.has_last_part()) ++welcomes;
      }
    }
  }
  ~RelayedHost() {
    context_.TryCancel();
    stream_->Finish();
  }
  RelayedHost(const RelayedHost&) = delete;
  RelayedHost& operator=(const RelayedHost&) = delete;

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::SessionService::Stub> stub_;
  const std::unique_ptr<
      grpc::ClientReaderWriter<v1::RelayRequest, v1::RelayResponse>>
      stream_;
};

class Members {
 public:
  // Members are numbered from `first`.
  explicit Members(const ScaleOptions& options, int first = 0) {
    for (int i = 0; i < std::min(kConnections, options.members); ++i) {
      stubs_.push_back(
          v1::SessionService::NewStub(OwnChannel(options.coordinator)));
    }
    for (int i = 0; i < options.members; ++i) {
      members_.push_back(std::make_unique<Member>(
          *stubs_[static_cast<size_t>(i) % stubs_.size()], first + i, tally_));
    }
    tally_.welcomes.Await(size());
  }

  ~Members() {
    for (const auto& member : members_) member->Cancel();
    tally_.ended.Await(size());
  }

  int size() const { return static_cast<int>(members_.size()); }
  Member& operator[](int i) { return *members_[static_cast<size_t>(i)]; }
  Member::Tally& tally() { return tally_; }

  // Makes the members ranks of a generation. Returns the milliseconds it takes.
  double Form() {
    return Time(tally_.answers, size(), [&] {
      v1::Operation operation;
      operation.mutable_join()->set_world_size(size());
      operation.mutable_join()->set_without_seats(true);
      for (int i = 0; i < size(); ++i) {
        operation.mutable_join()->set_rank(i);
        (*this)[i].Send(operation);
      }
    });
  }

  // All members but the last `absent` arrive at a barrier.
  void Arrive(const std::string& barrier, int absent = 0) {
    v1::Operation operation;
    operation.mutable_await_barrier()->set_generation(1);
    operation.mutable_await_barrier()->set_name(barrier);
    for (int i = 0; i < size() - absent; ++i) {
      operation.mutable_await_barrier()->set_rank(i);
      (*this)[i].Send(operation);
    }
  }

  // Returns the milliseconds from `act` until `count` has grown by `wanted`.
  double Time(Member::Count& count, int wanted,
              const std::function<void()>& act) {
    const int before = count.value();
    const Clock::time_point start = Clock::now();
    act();
    count.Await(before + wanted);
    return MillisecondsSince(start);
  }

 private:
  Member::Tally tally_;
  std::vector<std::unique_ptr<v1::SessionService::Stub>> stubs_;
  std::vector<std::unique_ptr<Member>> members_;
};

// The growth of the process's memory per `open`.
double KibibytesOfEach(int pid, int count,
                       const std::function<void(int)>& open) {
  // Later ones use memory that the first ones allocate.
  const int first = count / 10 + 1;
  for (int i = 0; i < first; ++i) open(i);
  const double before = ResidentBytes(pid);
  for (int i = 0; i < count; ++i) open(first + i);
  return (ResidentBytes(pid) - before) / count / 1024;
}

Figure AtMost(std::string name, double value, std::string unit, double target) {
  return {.name = std::move(name),
          .value = value,
          .unit = std::move(unit),
          .target = target};
}

}  // namespace

std::vector<Figure> MeasureRelease(const ScaleOptions& options) {
  const int shared = std::min(64, options.waiters);
  const std::string waiters =
      absl::StrCat("release of ", options.waiters, " waiters over ");
  const double echoes = ReleaseEchoes(options);
  return {AtMost(absl::StrCat(waiters, shared, " sessions"),
                 ReleaseKey(options, shared), "ms", 15),
          {.name = absl::StrCat(waiters, options.waiters, " sessions"),
           .value = ReleaseKey(options, options.waiters),
           .unit = "ms",
           .reference = "parked echo calls",
           .reference_value = echoes,
           .target = 1}};
}

std::vector<Figure> MeasureIdleSessions(const ScaleOptions& options) {
  // Each session has a connection of its own.
  std::vector<std::unique_ptr<Members>> sessions;
  const double session =
      KibibytesOfEach(options.coordinator_pid, options.sessions, [&](int i) {
        sessions.push_back(std::make_unique<Members>(
            ScaleOptions{.coordinator = options.coordinator, .members = 1}, i));
      });
  std::vector<std::unique_ptr<RelayedHost>> hosts;
  const double host = KibibytesOfEach(
      options.coordinator_pid,
      std::max(1, options.sessions / RelayedHost::kMembers), [&](int i) {
        hosts.push_back(std::make_unique<RelayedHost>(options, i));
      });
  std::vector<Operation> streams;
  const double stream =
      KibibytesOfEach(options.echo_pid, options.sessions, [&](int i) {
        streams.push_back(MakeOperation("echo stream", options.echo, "", i));
        streams.back()();
      });
  return {AtMost("idle session", session, "KiB", 32),
          AtMost(absl::StrCat("idle session of a relay with ",
                              RelayedHost::kMembers),
                 host / RelayedHost::kMembers, "KiB", 8),
          {.name = "idle echo stream", .value = stream, .unit = "KiB"}};
}

std::vector<Figure> MeasureMembers(const ScaleOptions& options) {
  const double before = ResidentBytes(options.coordinator_pid);
  Members members(options);
  const int n = members.size();
  const double bytes = ResidentBytes(options.coordinator_pid) - before;
  const double join = members.Form();
  const double barrier =
      members.Time(members.tally().answers, n, [&] { members.Arrive("all"); });
  const double failure = members.Time(members.tally().events, n - 1, [&] {
    v1::Operation operation;
    operation.mutable_report_failure()->set_error("measured");
    members[0].Send(operation);
  });
  const std::string name = absl::StrCat(n, " members: ");
  return {AtMost(name + "memory of each", bytes / n / 1024, "KiB", 64),
          AtMost(name + "static rendezvous", join, "ms", 10'000),
          AtMost(name + "barrier", barrier, "ms", 1000),
          AtMost(name + "failure told to all", failure, "ms", 1000)};
}

std::vector<Figure> MeasureEnd(const ScaleOptions& options) {
  Members members(options);
  const int n = members.size();
  members.Form();
  Member::Tally& tally = members.tally();
  // Half of them wait for the others. One of the others fails; then the rest
  // come.
  const int absent = n / 2;
  const double failed = members.Time(tally.failures, n - absent, [&] {
    members.Arrive("failed", absent);
    v1::Operation operation;
    operation.mutable_report_failure()->set_error("measured");
    members[n - 1].Send(operation);
  });
  const double answer = static_cast<double>(tally.failure_bytes.value()) /
                        static_cast<double>(tally.failures.value());
  const int events = tally.events.value();
  const int bytes = tally.event_bytes.value();
  const double end = members.Time(tally.answers, n - 1, [&] {
    v1::Operation operation;
    operation.mutable_leave()->set_reason("finished");
    for (int i = 0; i < n - 1; ++i) members[i].Send(operation);
  });
  const std::string name = absl::StrCat(n, " members: ");
  return {AtMost(name + "failed barrier", failed, "ms", 1000),
          AtMost(name + "bytes of each answer of it", answer, "B", 4000),
          AtMost(name + "all leave", end, "ms", 2000),
          AtMost(name + "events for each by the end",
                 static_cast<double>(tally.events.value() - events) / n,
                 "events", 20),
          AtMost(name + "bytes for each by the end",
                 static_cast<double>(tally.event_bytes.value() - bytes) / n,
                 "B", 20'000)};
}

}  // namespace muster::bench
