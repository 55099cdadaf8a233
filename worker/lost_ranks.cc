#include "worker/lost_ranks.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "client/internal/endpoint.h"
#include "client/session.h"

namespace muster::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerTime(2000);
constexpr milliseconds kPauseMin(100);
constexpr milliseconds kPauseMax(1000);
// Its first member comes soon, and with it the lease.
constexpr milliseconds kPauseWithoutJob(200);

}  // namespace

LostRanks::LostRanks(const CoordinatorAddress& coordinator,
                     std::function<void()> wake)
    : coordinator_(coordinator),
      wake_(std::move(wake)),
      thread_([this] { Run(); }) {}

LostRanks::~LostRanks() {
  {
    dataplane::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::vector<HangJudge::Lost> LostRanks::Take() {
  dataplane::MutexLock lock(mutex_);
  return std::exchange(lost_, {});
}

milliseconds LostRanks::Ask() {
  const auto asked_at = dataplane::Clock::now();
  if (reader_ == nullptr) {
    SessionOptions options;
    options.address = coordinator_.HostPort();
    options.job = coordinator_.job;
    options.connect_timeout = kAnswerTime;
    auto reader = internal::HostMembersReader::Open(options);
    // The ranks say what is wrong.
    if (!reader.ok()) return kPauseMax;
    reader_ = *std::move(reader);
  }
  const absl::StatusOr<internal::HostMembers> answer =
      reader_->Read(internal::HostName());
  if (!answer.ok()) {
    // The transport waits ever longer before it connects again, and the token
    // may be another one by then.
    reader_.reset();
    judge_.NoAnswer();
    return kPauseMax;
  }
  std::vector<HangJudge::Lost> lost =
      judge_.Judge(*answer, asked_at, dataplane::Clock::now());
  if (!lost.empty()) {
    {
      dataplane::MutexLock lock(mutex_);
      lost_.insert(lost_.end(), lost.begin(), lost.end());
    }
    wake_();
  }
  if (answer->lease.count() == 0) return kPauseWithoutJob;
  return std::clamp(answer->lease / 10, kPauseMin, kPauseMax);
}

void LostRanks::Run() {
  while (true) {
    const auto until = dataplane::Clock::now() + Ask();
    dataplane::MutexLock lock(mutex_);
    while (!stopping_ && dataplane::Clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (stopping_) break;
  }
}

}  // namespace muster::worker
