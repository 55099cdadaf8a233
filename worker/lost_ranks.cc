#include "worker/lost_ranks.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/errors.h"
#include "client/internal/endpoint.h"
#include "client/session.h"
#include "worker/attempt.h"

namespace muster::worker {
namespace {

constexpr std::chrono::seconds kConnectTime(3);
constexpr std::chrono::seconds kPause(1);

}  // namespace

LostRanks::LostRanks(const CoordinatorAddress& coordinator,
                     std::function<void()> wake)
    : coordinator_(coordinator),
      wake_(std::move(wake)),
      thread_([this] { Listen(); }) {}

LostRanks::~LostRanks() {
  stop_connecting_.request_stop();
  {
    dataplane::MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::vector<LostRanks::Lost> LostRanks::Take() {
  dataplane::MutexLock lock(mutex_);
  return std::exchange(lost_, {});
}

void LostRanks::OnEvent(const MemberEvent& event) {
  if (event.kind != MemberEvent::Kind::kLost ||
      event.member.host != internal::HostName()) {
    return;
  }
  {
    dataplane::MutexLock lock(mutex_);
    lost_.push_back({static_cast<pid_t>(event.member.pid), event.member.cause});
  }
  wake_();
}

std::shared_ptr<Session> LostRanks::Connect() {
  SessionOptions options;
  options.address = coordinator_.HostPort();
  options.job = coordinator_.job;
  options.member =
      absl::StrCat("muster-run-", internal::HostName(), "-", getpid());
  options.connect_timeout = kConnectTime;
  options.stop_connecting = stop_connecting_.get_token();
  options.on_event = [this](const MemberEvent& event) { OnEvent(event); };
  options.on_over = [this](const absl::Status&) {
    dataplane::MutexLock lock(mutex_);
    over_ = true;
    changed_.NotifyAll();
  };
  {
    dataplane::MutexLock lock(mutex_);
    over_ = false;
  }
  try {
    return Session::Connect(std::move(options));
  } catch (const DistError&) {
    // The ranks say why.
    return nullptr;
  }
}

void LostRanks::Listen() {
  while (true) {
    const std::shared_ptr<Session> session = Connect();
    dataplane::MutexLock lock(mutex_);
    const auto until = dataplane::Clock::now() + kPause;
    while (!stopping_ && session != nullptr && !over_) changed_.Wait(mutex_);
    // It was lost itself, or does not get in.
    while (!stopping_ && dataplane::Clock::now() < until) {
      changed_.WaitUntil(mutex_, until);
    }
    if (stopping_) break;
  }
}

}  // namespace muster::worker
