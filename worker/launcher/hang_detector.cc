#include "worker/launcher/hang_detector.h"

#include <algorithm>
#include <map>
#include <utility>

namespace muster::worker {

using internal::HostMember;
using internal::HostMembers;

void HangDetector::NoteAnswer(Instant now, std::chrono::milliseconds lease) {
  const bool paused = answered_at_.has_value() && lease.count() > 0 &&
                      now - *answered_at_ > lease / 2;
  // This process may have been stopped, together with the others of its host.
  if (!in_touch_since_.has_value() || paused) in_touch_since_ = now;
  // The job may have begun, with its lease, while the coordinator was silent.
  lease_ = lease;
  if (answered_at_.has_value() && IsCut(now - *answered_at_)) {
    regained_at_ = now;
  }
  answered_at_ = now;
}

// The silence may have begun just before a heartbeat; they are a third of a
// lease apart.
bool HangDetector::IsCut(Instant::duration silence) const {
  return lease_.count() > 0 && silence > lease_ * 2 / 3;
}

bool HangDetector::WasCutOff(Instant now) const {
  return answered_at_.has_value() &&
         (IsCut(now - *answered_at_) ||
          (regained_at_.has_value() &&
           now - *regained_at_ < lease_ + kReturnTime));
}

std::vector<HangDetector::Lost> HangDetector::Decide(const HostMembers& answer,
                                                     Instant asked_at,
                                                     Instant now) {
  NoteAnswer(now, answer.lease);
  struct Process {
    bool lives = false;
    // Its departed members that were not handled.
    std::vector<const HostMember*> departed;
  };
  std::map<int64_t, Process> processes;
  std::set<uint64_t> done;
  for (const HostMember& member : answer.members) {
    Process& process = processes[member.pid];
    if (member.state == HostMember::State::kLive) {
      process.lives = true;
    } else if ((first_ && asked_at - member.silent_for < began_) ||
               done_.contains(member.incarnation)) {
      done.insert(member.incarnation);
    } else {
      process.departed.push_back(&member);
    }
  }
  std::vector<Lost> lost;
  for (const auto& [pid, process] : processes) {
    if (process.departed.empty()) continue;
    const HostMember& last =
        **std::min_element(process.departed.begin(), process.departed.end(),
                           [](const HostMember* a, const HostMember* b) {
                             return a->silent_for < b->silent_for;
                           });
    if (!process.lives && last.state == HostMember::State::kLost) {
      const bool was_in_touch = asked_at - last.silent_for >= *in_touch_since_;
      if (!was_in_touch &&
          now - *in_touch_since_ < answer.lease + kReturnTime) {
        continue;  // may still come back
      }
      lost.push_back({static_cast<pid_t>(pid), last.cause});
    }
    for (const HostMember* member : process.departed) {
      done.insert(member->incarnation);
    }
  }
  first_ = false;
  done_ = std::move(done);
  return lost;
}

}  // namespace muster::worker
