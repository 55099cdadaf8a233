#include "coordinator/server/rpc/unsent_answers.h"

#include <chrono>

#include "coordinator/core/limits.h"

namespace muster::coordinator {
namespace {

// An answer is held as a message and in encoded form.
constexpr int64_t kCopies = 2;

}  // namespace

Status UnsentAnswers::Add(grpc::CallbackServerContext* call, int64_t bytes) {
  bytes *= kCopies;
  MutexLock lock(mu_);
  Status status = core::CheckLimit("unsent_bytes", bytes_max_, bytes_ + bytes,
                                   {"answers that clients have not taken", ""});
  if (!status.ok()) return status;
  answers_[call] = {bytes, std::chrono::steady_clock::now()};
  bytes_ += bytes;
  return OkStatus();
}

void UnsentAnswers::Remove(grpc::CallbackServerContext* call) {
  MutexLock lock(mu_);
  const auto answer = answers_.find(call);
  if (answer == answers_.end()) return;
  bytes_ -= answer->second.bytes;
  answers_.erase(answer);
}

void UnsentAnswers::CutOff(core::Instant now, core::Duration timeout) {
  // Under the lock, because the call exists until it is removed.
  MutexLock lock(mu_);
  for (const auto& [call, answer] : answers_) {
    if (now - answer.since >= timeout) call->TryCancel();
  }
}

int64_t UnsentAnswers::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace muster::coordinator
