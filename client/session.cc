#include "muster/session.h"

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/deadline.h"
#include "client/control/fork_guard.h"
#include "client/control/logging.h"
#include "client/control/stream_session.h"
#include "client/control/throw.h"
#include "client/control/verbs.h"

namespace muster {

using internal::Deadline;
using internal::ErrorSource;

std::shared_ptr<Session> Session::Connect(SessionOptions options) {
  internal::EnsureLogging();
  return std::shared_ptr<Session>(
      new Session(internal::ValueOrThrow(
          ErrorSource::kControl,
          internal::StreamSession::Connect(std::move(options)))),
      internal::DeleteAtHome<Session>());
}

Session::Session(std::unique_ptr<internal::StreamSession> stream)
    : stream_(std::move(stream)) {}

Session::~Session() {
  // A process that ends with an exception does not leave in peace: the others
  // see it as lost.
  if (std::uncaught_exceptions() == 0) Leave("session destroyed");
  Close();
}

Formation Session::Join(const JoinOptions& options) {
  Formation formation = internal::ValueOrThrow(
      ErrorSource::kControl, internal::Join(*stream_, options));
  MutexLock lock(mutex_);
  place_ = {formation.generation, formation.rank};
  return formation;
}

void Session::CloseRendezvous(const std::string& reason) {
  internal::ThrowIfFailed(
      ErrorSource::kControl,
      internal::CloseRendezvous(
          *stream_, reason,
          Deadline::After(stream_->options().connect_timeout,
                          stream_->options().connect_timeout_name)));
}

Session::FormedRank Session::RequireRank(const std::string& caller) {
  internal::ThrowIfFailed(ErrorSource::kControl, stream_->CheckIsHere());
  {
    MutexLock lock(mutex_);
    if (place_.rank >= 0) return place_;
  }
  internal::Throw(ErrorSource::kControl,
                  FailedPreconditionError(
                      absl::StrCat(caller, ": member ", base::Quote(member()),
                                   " has no rank before Session::Join")));
}

std::vector<int> Session::RegisterGroups(
    const std::vector<GroupDefinition>& groups) {
  const FormedRank place = RequireRank("groups");
  return internal::ValueOrThrow(
      ErrorSource::kControl,
      internal::RegisterGroups(
          *stream_, place.generation, groups, /*call=*/std::nullopt,
          Deadline::After(stream_->options().connect_timeout,
                          stream_->options().connect_timeout_name)));
}

void Session::AwaitBarrier(const SessionBarrierOptions& options) {
  const FormedRank place =
      RequireRank(absl::StrCat("barrier ", base::Quote(options.name)));
  internal::ThrowIfFailed(
      ErrorSource::kControl,
      internal::AwaitBarrier(
          *stream_, options.group, options.name, place.generation, place.rank,
          options.wait_all_ranks,
          Deadline::After(options.timeout, "SessionBarrierOptions::timeout")));
}

void Session::ReportFailure(const std::string& error) {
  internal::ThrowIfFailed(
      ErrorSource::kControl,
      internal::ReportFailure(
          *stream_, error,
          Deadline::After(stream_->options().connect_timeout,
                          stream_->options().connect_timeout_name)));
}

void Session::Leave(const std::string& reason,
                    std::chrono::milliseconds timeout) {
  if (stream_->has_left() || !stream_->status().ok()) return;
  stream_->set_left();
  // A coordinator that does not answer sees the connection close.
  internal::Leave(*stream_, reason, Deadline::After(timeout, "Session::Leave"))
      .IgnoreError();
  stream_->Close();
}

void Session::Close() { stream_->Close(); }

const std::string& Session::address() const {
  return stream_->options().address;
}

const std::string& Session::job() const { return stream_->options().job; }

const std::string& Session::member() const { return stream_->options().member; }

uint64_t Session::incarnation() const { return stream_->incarnation(); }

uint64_t Session::coordinator_epoch() const { return stream_->epoch(); }

Status Session::status() const { return stream_->status(); }

}  // namespace muster
