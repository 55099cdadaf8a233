#include "worker/launcher/lost_ranks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/control/endpoint.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAnswerTime(2000);
constexpr milliseconds kPauseMin(100);
constexpr milliseconds kPauseMax(1000);
// The first member, and the lease, come soon.
constexpr milliseconds kPauseWithoutJob(200);
// Long, because the answer is about all ranks of the job.
constexpr milliseconds kHungPauseMax(60'000);
// How often it asks per hang timeout.
constexpr int kPollsPerHang = 4;

}  // namespace

LostRanks::LostRanks(const CoordinatorAddress& coordinator, const Ranks& ranks,
                     milliseconds hang_timeout, std::function<void()> wake)
    : coordinator_(coordinator),
      ranks_(ranks),
      hang_timeout_(hang_timeout),
      wake_(std::move(wake)),
      thread_([this] { Run(); }) {}

LostRanks::~LostRanks() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::vector<LostRanks::Hung> LostRanks::Take() {
  MutexLock lock(mutex_);
  return std::exchange(hung_, {});
}

std::optional<LostRanks::Rendezvous> LostRanks::TakeRendezvous() {
  MutexLock lock(mutex_);
  return std::exchange(rendezvous_, std::nullopt);
}

bool LostRanks::IsOutOfTouch() const {
  MutexLock lock(mutex_);
  return detector_.IsOutOfTouch(Clock::now());
}

std::string LostRanks::DescribeSilence() const {
  MutexLock lock(mutex_);
  const auto now = Clock::now();
  if (!detector_.IsOutOfTouch(now)) return "";
  return absl::StrFormat(
      "the coordinator at %s has not answered for %.1fs",
      coordinator_.HostPort(),
      std::chrono::duration<double>(*detector_.Silence(now)).count());
}

bool LostRanks::WasCutOff() const {
  MutexLock lock(mutex_);
  return detector_.WasCutOff(Clock::now());
}

void LostRanks::Tell(std::vector<Hung> hung) {
  if (hung.empty()) return;
  {
    MutexLock lock(mutex_);
    std::move(hung.begin(), hung.end(), std::back_inserter(hung_));
  }
  wake_();
}

void LostRanks::TellRendezvous(const internal::HostMembers& answer,
                               Clock::time_point asked_at) {
  for (const internal::HostMember& member : answer.members) {
    // Other members are of an earlier attempt.
    if (asked_at - member.silent_for >= began_) none_came_ = false;
  }
  Rendezvous rendezvous = {
      .missing = {}, .joined = answer.joined, .none_came = none_came_};
  // The program chose another world size: its ranks are different ones.
  if (answer.forming_world_size == ranks_.world_size) {
    std::ranges::copy_if(answer.missing_ranks,
                         std::back_inserter(rendezvous.missing), [&](int rank) {
                           return rank >= ranks_.first_rank &&
                                  rank - ranks_.first_rank < ranks_.rank_count;
                         });
  }
  const bool were_missing =
      std::exchange(told_missing_, !rendezvous.missing.empty());
  const bool none_matters = none_came_ && hang_timeout_.count() > 0;
  if (rendezvous.missing.empty() && !were_missing && !none_matters) return;
  {
    MutexLock lock(mutex_);
    rendezvous_ = std::move(rendezvous);
  }
  wake_();
}

SessionOptions LostRanks::ForReader() const {
  SessionOptions options;
  options.address = coordinator_.HostPort();
  options.job = coordinator_.job;
  options.connect_timeout = kAnswerTime;
  return options;
}

milliseconds LostRanks::AskForLost() {
  const auto asked_at = Clock::now();
  if (reader_ == nullptr) {
    auto reader = internal::HostMembersReader::Open(ForReader());
    // The ranks report the error.
    if (!reader.ok()) return kPauseMax;
    reader_ = *std::move(reader);
  }
  const StatusOr<internal::HostMembers> answer =
      reader_->Read(internal::HostName(), ranks_.first_rank, ranks_.rank_count);
  if (!answer.ok()) {
    // A new reader, because gRPC waits ever longer before it reconnects, and
    // the token may have changed.
    reader_.reset();
    MutexLock lock(mutex_);
    detector_.NoAnswer();
    return kPauseMax;
  }
  std::vector<Hung> hung;
  {
    MutexLock lock(mutex_);
    for (const HangDetector::Lost& lost :
         detector_.Decide(*answer, asked_at, Clock::now())) {
      hung.push_back({.pid = lost.pid,
                      .fate = "was lost to the others",
                      .cause = lost.cause});
    }
  }
  Tell(std::move(hung));
  TellRendezvous(*answer, asked_at);
  if (answer->lease.count() == 0) return kPauseWithoutJob;
  return std::clamp(answer->lease / 10, kPauseMin, kPauseMax);
}

milliseconds LostRanks::AskForHung() {
  const milliseconds pause =
      std::clamp(hang_timeout_ / kPollsPerHang, kPauseMin, kHungPauseMax);
  if (hung_reader_ == nullptr) {
    auto reader = tools::HungRanksReader::Open(ForReader());
    if (!reader.ok()) return pause;
    hung_reader_ = *std::move(reader);
  }
  const auto answer = hung_reader_->Read(internal::HostName(), hang_timeout_);
  if (!answer.ok()) {
    hung_reader_.reset();
    return pause;
  }
  std::vector<Hung> hung;
  for (const tools::HungRank& rank : *answer) {
    hung.push_back({.pid = static_cast<pid_t>(rank.pid),
                    .fate = "hangs",
                    .cause = rank.why});
  }
  Tell(std::move(hung));
  return pause;
}

void LostRanks::Run() {
  auto lost_at = Clock::now();
  auto hung_at = hang_timeout_.count() > 0 ? lost_at : Clock::time_point::max();
  while (true) {
    if (Clock::now() >= lost_at) {
      const milliseconds pause = AskForLost();
      lost_at = Clock::now() + pause;
    }
    if (Clock::now() >= hung_at) {
      const milliseconds pause = AskForHung();
      hung_at = Clock::now() + pause;
    }
    const auto until = std::min(lost_at, hung_at);
    MutexLock lock(mutex_);
    while (!stopping_ && Clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (stopping_) break;
  }
}

}  // namespace muster::worker
