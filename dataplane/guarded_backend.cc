#include "dataplane/guarded_backend.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exception_guard.h"
#include "base/text.h"
#include "dataplane/failed_call.h"
#include "glog/logging.h"

namespace muster::dataplane {
namespace {

// The text of the exception that a handler has caught.
std::string TextOfCaught() { return StatusOfCaught().message(); }

// Runs `call` and returns the text of its exception, or "".
template <typename Call>
std::string Thrown(const Call& call) {
  try {
    call();
  } catch (...) {
    return TextOfCaught();
  }
  return "";
}

}  // namespace

ExceptionGuard::ExceptionGuard(std::unique_ptr<Backend> inner,
                               std::string group_name)
    : BackendDecorator(std::move(inner)), group_name_(std::move(group_name)) {}

Status ExceptionGuard::Supports(const Collective& collective) const {
  try {
    return BackendDecorator::Supports(collective);
  } catch (...) {
    return InternalError(absl::StrCat("backend ", base::Quote(name()),
                                      ": Supports ", TextOfCaught()));
  }
}

std::shared_ptr<Work> ExceptionGuard::Start(const Collective& collective) {
  std::shared_ptr<Work> work;
  std::string problem = Thrown([&] { work = inner().Start(collective); });
  if (problem.empty() && work == nullptr) problem = "returned no Work";
  if (problem.empty()) return work;
  return MakeFailed(collective, "Start", problem);
}

std::unique_ptr<Backend::Prepared> ExceptionGuard::Prepare(
    const Collective& collective) {
  std::unique_ptr<Prepared> prepared;
  Note("Prepare", Thrown([&] { prepared = inner().Prepare(collective); }));
  return prepared;
}

Ticket ExceptionGuard::Enter(const Collective& collective) {
  try {
    return inner().Enter(collective);
  } catch (...) {
    return {.work = MakeFailed(collective, "Enter", TextOfCaught())};
  }
}

Completion ExceptionGuard::Run(const Collective& collective, Prepared* prepared,
                               const Ticket& ticket) {
  try {
    // The inner backend may not know the work.
    if (ticket.work != nullptr) {
      return Backend::Run(collective, prepared, ticket);
    }
    return inner().Run(collective, prepared, ticket);
  } catch (...) {
    return {MakeError(collective, "Run", TextOfCaught()), Clock::now()};
  }
}

std::shared_ptr<Work> ExceptionGuard::MakeFailed(
    const Collective& collective, absl::string_view call,
    const std::string& problem) const {
  auto failed = std::make_shared<PromisedWork>(collective.Describe());
  failed->Complete(MakeError(collective, call, problem));
  return failed;
}

Status ExceptionGuard::MakeError(const Collective& collective,
                                 absl::string_view call,
                                 const std::string& problem) const {
  return Labelled(FailedCall::Of(collective), group_name_,
                  InternalError(absl::StrCat("backend ", base::Quote(name()),
                                             ": ", call, " ", problem)));
}

void ExceptionGuard::BeginTogether() {
  Note("BeginTogether", Thrown([&] { inner().BeginTogether(); }));
}

void ExceptionGuard::EndTogether() {
  Note("EndTogether", Thrown([&] { inner().EndTogether(); }));
}

void ExceptionGuard::Note(absl::string_view call,
                          const std::string& problem) const {
  if (problem.empty()) return;
  LOG(ERROR) << "backend failed: group=" << base::LogValue(group_name_)
             << " backend=" << base::LogValue(name())
             << " cause=" << base::Quote(absl::StrCat(call, " ", problem));
}

void ExceptionGuard::Refused(const Collective& collective, const Status& why) {
  Note("Refused", Thrown([&] { inner().Refused(collective, why); }));
}

std::shared_ptr<ParentHandle> ExceptionGuard::Split(
    const SplitOptions& options) {
  std::shared_ptr<ParentHandle> parent_handle;
  Note("Split", Thrown([&] { parent_handle = inner().Split(options); }));
  return parent_handle;
}

StatusOr<std::shared_ptr<SymmetricMemory>> ExceptionGuard::AllocateSymmetric(
    const SymmetricOptions& options) {
  StatusOr<std::shared_ptr<SymmetricMemory>> memory = nullptr;
  const std::string problem =
      Thrown([&] { memory = inner().AllocateSymmetric(options); });
  if (problem.empty()) return memory;
  return InternalError(absl::StrCat("backend ", base::Quote(name()),
                                    ": AllocateSymmetric ", problem));
}

void ExceptionGuard::Abort(Status cause) {
  Note("Abort", Thrown([&] { inner().Abort(std::move(cause)); }));
}

}  // namespace muster::dataplane
