#include "client/stores/store_watch.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "client/control/canceller.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"
#include "muster/base/status.h"
#include "muster/v1/store.pb.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

KeyChange::Kind ToKind(v1::ChangeKind kind) {
  switch (kind) {
    case v1::CHANGE_KIND_PUT:
      return KeyChange::Kind::kPut;
    case v1::CHANGE_KIND_EXPIRED:
      return KeyChange::Kind::kExpired;
    case v1::CHANGE_KIND_ORPHANED:
      return KeyChange::Kind::kOrphaned;
    default:
      return KeyChange::Kind::kDeleted;
  }
}

class SessionWatch : public StoreWatch {
 public:
  SessionWatch(std::shared_ptr<Session> session, v1::WatchRequest request)
      : session_(std::move(session)),
        request_(std::move(request)),
        revision_(request_.after_revision()) {}

  std::optional<KeyChange> Next(milliseconds timeout) override {
    ThrowIfFailed(ErrorSource::kStore, session_->stream().CheckIsHere());
    const Deadline deadline =
        Deadline::After(timeout, "timeout of StoreWatch::Next");
    while (!canceller_.cancelled()) {
      if (!changes_.empty()) return TakeFirst();
      StatusOr<v1::WatchResponse> response =
          WatchOnce(session_->stream(), request_, deadline, &canceller_);
      if (canceller_.cancelled()) break;
      Keep(ValueOrThrow(ErrorSource::kStore, std::move(response)));
      if (changes_.empty() && deadline.Passed(Clock::now())) break;
    }
    return std::nullopt;
  }

  void Cancel() override {
    if (session_->stream().CheckIsHere().ok()) canceller_.Cancel();
  }

  int64_t revision() const override { return revision_; }

 private:
  void Keep(v1::WatchResponse response) {
    for (v1::KeyChange& change : *response.mutable_changes()) {
      changes_.push_back({.kind = ToKind(change.kind()),
                          .key = std::move(*change.mutable_key()),
                          .value = std::move(*change.mutable_value()),
                          .revision = change.revision()});
    }
    request_.set_after_revision(response.revision());
    if (changes_.empty()) revision_ = response.revision();
  }

  KeyChange TakeFirst() {
    KeyChange change = std::move(changes_.front());
    changes_.pop_front();
    // Several keys may have changed in one revision; it counts with the last.
    revision_ = changes_.empty()
                    ? request_.after_revision()
                    : std::min(change.revision, changes_.front().revision - 1);
    return change;
  }

  const std::shared_ptr<Session> session_;
  Canceller canceller_;

  // The request of Next. Its revision changes.
  v1::WatchRequest request_;
  std::deque<KeyChange> changes_;
  std::atomic<int64_t> revision_;
};

}  // namespace

std::unique_ptr<StoreWatch> NewStoreWatch(std::shared_ptr<Session> session,
                                          absl::string_view key,
                                          const WatchOptions& options,
                                          const Deadline& deadline) {
  v1::WatchRequest request;
  request.mutable_key()->assign(key.data(), key.size());
  request.set_prefix(options.prefix);
  if (options.after_revision.has_value()) {
    request.set_after_revision(*options.after_revision);
  } else {
    const v1::WatchResponse now = ValueOrThrow(
        ErrorSource::kStore, WatchOnce(session->stream(), request, deadline));
    request.set_after_revision(now.revision());
  }
  return std::make_unique<SessionWatch>(std::move(session), std::move(request));
}

}  // namespace muster::internal
