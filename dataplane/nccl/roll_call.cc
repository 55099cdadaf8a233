#include "dataplane/nccl/roll_call.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"

namespace muster::dataplane::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTellAfterMin(20);
constexpr milliseconds kTellAfterMax(1000);
// Allowance for a round trip to the store.
constexpr milliseconds kStoreTime(300);
// The polling interval for notes of other ranks.
constexpr milliseconds kLook(50);
constexpr size_t kMissingMax = 8;

std::string MakeKey(int rank) { return absl::StrCat("nccl/at/", rank); }

}  // namespace

RollCall::RollCall(std::shared_ptr<BootstrapStore> store, int rank, int size)
    : store_(std::move(store)), rank_(rank), size_(size) {}

milliseconds RollCall::TellAfter(milliseconds timeout) {
  return std::clamp(timeout / 4, kTellAfterMin, kTellAfterMax);
}

RollCall::~RollCall() { Stop(); }

void RollCall::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void RollCall::Tell(uint64_t number) {
  MutexLock lock(mutex_);
  if (number <= to_tell_) return;
  to_tell_ = number;
  Wake();
}

void RollCall::FindMissing(uint64_t number, milliseconds timeout, Then then) {
  MutexLock lock(mutex_);
  question_ = {number, timeout, std::move(then)};
  Wake();
}

void RollCall::Wake() {
  if (stopping_) return;
  changed_.NotifyAll();
  if (!thread_.joinable()) thread_ = std::thread([this] { Serve(); });
}

void RollCall::Serve() {
  uint64_t told = 0;
  for (;;) {
    std::optional<Question> question;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && told >= to_tell_ && !question_.has_value()) {
        changed_.Wait(mutex_);
      }
      if (stopping_) return;
      question.swap(question_);
      told = std::max(told, to_tell_);
    }
    if (!question.has_value()) {
      Publish(told);
      continue;
    }
    const std::vector<int> missing =
        Missing(question->number, question->timeout);
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    question->then(missing);
  }
}

void RollCall::Publish(uint64_t number) const {
  if (size_ == 1) return;
  // If this fails, other ranks take this rank for missing.
  store_->SetBy(MakeKey(rank_), absl::StrCat(number), Clock::now() + kStoreTime)
      .IgnoreError();
}

std::vector<int> RollCall::Missing(uint64_t number,
                                   milliseconds timeout) const {
  if (size_ == 1) return {};
  Publish(number);
  const Instant until = Clock::now() + TellAfter(timeout) + kStoreTime;
  std::vector<int> missing;
  for (int rank = 0; rank < size_ && missing.size() < kMissingMax; ++rank) {
    if (rank == rank_) continue;
    for (;;) {
      // Looks at least once, even if the ranks before have used up the time.
      const auto value =
          store_->Get({MakeKey(rank)}, std::max(until, Clock::now() + kLook));
      uint64_t at = 0;
      if (value.ok() && absl::SimpleAtoi(value->front(), &at) && at >= number) {
        break;
      }
      if (Clock::now() >= until) {
        missing.push_back(rank);
        break;
      }
      // The rank has noted a lower number so far.
      std::this_thread::sleep_for(kLook);
    }
  }
  return missing;
}

Status RollCall::NotMade(const Status& status, absl::string_view group) const {
  const std::vector<int> missing = Missing(/*number=*/0, milliseconds(0));
  if (missing.empty()) return status;
  Status named = DeadlineExceededError(
      absl::StrCat("group ", base::Quote(group), ": ", DescribeRanks(missing),
                   " did not come to make the communicator"));
  SetCulpritRanks(named, missing);
  return named;
}

std::string DescribeRanks(const std::vector<int>& ranks) {
  return ranks.empty() ? "the other ranks" : base::RanksText(ranks);
}

Status TimedOut(const Collective& collective, absl::string_view group,
                const std::vector<int>& missing) {
  Status status = DeadlineExceededError(
      absl::StrCat("timed out after ",
                   absl::FormatDuration(absl::FromChrono(collective.timeout)),
                   " waiting for ", DescribeRanks(missing)));
  SetCulpritRanks(status, missing);
  return Labelled(FailedCall::Of(collective), group, status);
}

}  // namespace muster::dataplane::nccl
