#include "worker/launcher/absent_ranks.h"

#include <atomic>
#include <stop_token>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"
#include "muster/errors.h"
#include "muster/session.h"

namespace muster::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerTime(2000);
constexpr milliseconds kPause(500);
// Below the coordinator's limit of a day.
constexpr std::chrono::hours kJoinTime(23);

SessionOptions OptionsFor(const CoordinatorAddress& coordinator) {
  SessionOptions options;
  options.address = coordinator.HostPort();
  options.job = coordinator.job;
  options.connect_timeout = kAnswerTime;
  return options;
}

}  // namespace

// Joins in place of one ended rank.
class AbsentRanks::PlaceholderMember {
 public:
  PlaceholderMember(int rank, int64_t pid, std::string end)
      : rank_(rank), pid_(pid), end_(std::move(end)) {}

  ~PlaceholderMember() {
    stop_.request_stop();
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      // Ends the wait in the rendezvous.
      if (session_ != nullptr) session_->Close();
    }
    if (thread_.joinable()) thread_.join();
  }

  PlaceholderMember(const PlaceholderMember&) = delete;
  PlaceholderMember& operator=(const PlaceholderMember&) = delete;

  // Joins, unless it is doing so already.
  void Stand(const CoordinatorAddress& coordinator, int world_size) {
    if (standing_.load()) return;
    if (thread_.joinable()) thread_.join();
    standing_.store(true);
    thread_ = std::thread([=, this] {
      try {
        SitAndFail(coordinator, world_size);
      } catch (const DistError&) {
        // Another process has the seat, or the coordinator is gone. If others
        // still wait, this is repeated.
      }
      std::shared_ptr<Session> over;
      {
        MutexLock lock(mutex_);
        over = std::move(session_);
      }
      over.reset();
      standing_.store(false);
    });
  }

 private:
  void SitAndFail(const CoordinatorAddress& coordinator, int world_size) {
    SessionOptions options = OptionsFor(coordinator);
    options.pid = pid_;
    options.stop_connecting = stop_.get_token();
    const std::shared_ptr<Session> session = Session::Connect(options);
    {
      MutexLock lock(mutex_);
      if (stopped_) return;
      session_ = session;
    }
    session->Join({.rank = rank_,
                   .world_size = world_size,
                   .timeout = kJoinTime,
                   .without_seats = true});
    session->ReportFailure(absl::StrCat(end_, " and will not join"));
    session->Leave(end_, kAnswerTime);
  }

  const int rank_;
  const int64_t pid_;
  const std::string end_;
  std::stop_source stop_;
  std::atomic<bool> standing_ = false;

  Mutex mutex_;
  bool stopped_ MUSTER_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Session> session_ MUSTER_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all of the above
};

AbsentRanks::AbsentRanks(const CoordinatorAddress& coordinator, int world_size)
    : coordinator_(coordinator),
      world_size_(world_size),
      thread_([this] { Run(); }) {}

AbsentRanks::~AbsentRanks() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void AbsentRanks::Add(int rank, int64_t pid, const std::string& end) {
  MutexLock lock(mutex_);
  absent_.push_back(std::make_unique<PlaceholderMember>(rank, pid, end));
  changed_.NotifyAll();
}

bool AbsentRanks::OthersWait() {
  if (reader_ == nullptr) {
    auto reader = internal::HostMembersReader::Open(OptionsFor(coordinator_));
    if (!reader.ok()) return false;
    reader_ = *std::move(reader);
  }
  const StatusOr<internal::HostMembers> answer =
      reader_->Read(internal::HostName());
  if (!answer.ok()) {
    // A new reader, because gRPC waits ever longer before it reconnects, and
    // the token may have changed.
    reader_.reset();
    return false;
  }
  return answer->joined > 0 && answer->forming_world_size == world_size_;
}

void AbsentRanks::Stand() {
  MutexLock lock(mutex_);
  for (const auto& rank : absent_) rank->Stand(coordinator_, world_size_);
}

void AbsentRanks::Run() {
  while (true) {
    {
      MutexLock lock(mutex_);
      while (!stopping_ && absent_.empty()) changed_.Wait(mutex_);
      const auto until = Clock::now() + kPause;
      while (!stopping_ && Clock::now() < until) {
        changed_.WaitUntil(mutex_, until);
      }
      if (stopping_) return;
    }
    others_wait_.store(OthersWait());
    if (others_wait()) Stand();
  }
}

}  // namespace muster::worker
