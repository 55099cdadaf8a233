#include "dataplane/observe/point_to_point_check.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "dataplane/culprit.h"
#include "dataplane/failed_call.h"

namespace muster::dataplane {
namespace {

// The time for which a call to the store may delay an error or the group's end.
constexpr std::chrono::milliseconds kCall{200};

// Added to the backend's own timeouts.
constexpr std::chrono::milliseconds kMargin{1000};

// Maximum number of operations that a rank publishes, and that a text shows.
constexpr size_t kToldMax = 16;
constexpr size_t kShownMax = 4;

std::string MakeKey(int rank) {
  return absl::StrCat("check/point_to_point/", rank);
}

}  // namespace

PointToPointCheck::PointToPointCheck(std::unique_ptr<Backend> inner,
                                     PointToPointCheckOptions options)
    : BackendDecorator(std::move(inner)),
      options_(std::move(options)),
      thread_([this] { Serve(); }) {}

PointToPointCheck::~PointToPointCheck() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  // Before the members: the backend's last completions use them.
  DestroyInner();
}

std::shared_ptr<Work> PointToPointCheck::Start(const Collective& collective) {
  if (!IsPointToPoint(collective.kind)) return inner().Start(collective);
  Operation operation{
      .kind = collective.kind,
      .peer = collective.peer,
      .tag = collective.tag,
      .call = FailedCall::Of(collective),
      .description = collective.Describe(),
      .timeout = collective.timeout,
      .deadline = collective.deadline,
      .due = Clock::now() + std::min(options_.patience, collective.timeout / 4),
  };
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_;
    operations_.emplace(number, std::move(operation));
    changed_.NotifyAll();
  }
  Collective started = collective;
  // This check should fail first, since its error says more. If the store does
  // not answer, the backend does.
  if (started.deadline < Instant::max() - kMargin) started.deadline += kMargin;
  std::shared_ptr<Work> work = inner().Start(started);
  work->OnCompletion([this, number](const Status&) {
    MutexLock lock(mutex_);
    operations_.erase(number);
    if (IsTold(number)) changed_.NotifyAll();
  });
  return work;
}

void PointToPointCheck::Serve() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      for (;;) {
        if (stopping_) return;
        const Instant next = NextLook();
        if (next <= Clock::now()) break;
        if (next == Instant::max()) {
          changed_.Wait(mutex_);
        } else {
          changed_.WaitUntil(mutex_, next);
        }
      }
    }
    Tell();
    if (const auto late = FindLate(); late.has_value()) Fail(*late);
  }
}

Instant PointToPointCheck::NextLook() const {
  Instant next = Instant::max();
  for (const uint64_t number : told_) {
    if (!operations_.contains(number)) return Instant::min();
  }
  for (const auto& [number, operation] : operations_) {
    next = std::min(next, operation.deadline);
    if (told_.size() < kToldMax && !IsTold(number)) {
      next = std::min(next, operation.due);
    }
  }
  return next;
}

bool PointToPointCheck::IsTold(uint64_t number) const {
  return std::find(told_.begin(), told_.end(), number) != told_.end();
}

void PointToPointCheck::Tell() {
  std::vector<Operation> waiting;
  {
    MutexLock lock(mutex_);
    const Instant now = Clock::now();
    std::vector<uint64_t> numbers;
    for (const auto& [number, operation] : operations_) {
      if (operation.due > now || numbers.size() == kToldMax) continue;
      numbers.push_back(number);
      waiting.push_back(operation);
    }
    if (numbers == told_) return;
    told_ = std::move(numbers);
  }
  // If it fails, the other ranks' errors say less.
  options_.store
      ->SetBy(MakeKey(options_.rank), Serialize(waiting), Clock::now() + kCall)
      .IgnoreError();
}

std::optional<uint64_t> PointToPointCheck::FindLate() {
  MutexLock lock(mutex_);
  const Instant now = Clock::now();
  for (const auto& [number, operation] : operations_) {
    if (operation.deadline <= now) return number;
  }
  return std::nullopt;
}

void PointToPointCheck::Fail(uint64_t number) {
  Operation operation;
  {
    MutexLock lock(mutex_);
    const auto found = operations_.find(number);
    if (found == operations_.end()) return;
    operation = found->second;
    // Fails it only once.
    found->second.deadline = Instant::max();
  }
  const bool known = operation.peer != kAnyPeer;
  Status status =
      Labelled(operation.call, options_.group_name,
               DeadlineExceededError(absl::StrCat(
                   "timed out after ",
                   absl::FormatDuration(absl::FromChrono(operation.timeout)),
                   " waiting for ",
                   known ? absl::StrCat("rank ", operation.peer) : "any rank",
                   " with tag ", operation.tag, PeerText(operation))));
  if (known) SetCulpritRank(status, operation.peer);
  {
    MutexLock lock(mutex_);
    // The operation has completed in the meantime.
    if (!operations_.contains(number)) return;
  }
  inner().Abort(status);
}

std::string PointToPointCheck::PeerText(const Operation& operation) {
  if (operation.peer == kAnyPeer || operation.peer == options_.rank) return "";
  const auto told =
      options_.store->Get({MakeKey(operation.peer)}, Clock::now() + kCall);
  if (!told.ok()) return "";
  const std::vector<Operation> theirs = Parse(told->front());
  if (theirs.empty()) return "";
  bool fits = false;
  std::string text = absl::StrCat("; rank ", operation.peer, " waits in ");
  for (size_t i = 0; i < theirs.size(); ++i) {
    const Operation& their = theirs[i];
    fits = fits || (their.kind != operation.kind &&
                    (their.peer == options_.rank || their.peer == kAnyPeer) &&
                    their.tag == operation.tag);
    if (i < kShownMax) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", their.description);
    }
  }
  if (theirs.size() > kShownMax) {
    absl::StrAppend(&text, " and ", theirs.size() - kShownMax, " more");
  }
  if (fits) return text;
  return absl::StrCat(text, theirs.size() == 1
                                ? ", which does not go with it"
                                : ", of which none goes with it");
}

// One line per operation: kind, peer, tag, description.
std::string PointToPointCheck::Serialize(
    const std::vector<Operation>& operations) {
  std::string text;
  for (const Operation& operation : operations) {
    absl::StrAppend(
        &text, operation.kind == CollectiveKind::kSend ? "s " : "r ",
        operation.peer, " ", operation.tag, " ", operation.description, "\n");
  }
  return text;
}

std::vector<PointToPointCheck::Operation> PointToPointCheck::Parse(
    absl::string_view text) {
  std::vector<Operation> operations;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::MaxSplits(' ', 3));
    Operation operation;
    if (words.size() != 4 || !absl::SimpleAtoi(words[1], &operation.peer) ||
        !absl::SimpleAtoi(words[2], &operation.tag)) {
      continue;
    }
    operation.kind =
        words[0] == "s" ? CollectiveKind::kSend : CollectiveKind::kRecv;
    operation.description = std::string(words[3]);
    operations.push_back(std::move(operation));
  }
  return operations;
}

}  // namespace muster::dataplane
