#include "dataplane/decorators/recording.h"

#include <memory>
#include <new>
#include <utility>

namespace muster::dataplane {

namespace {

FlightRecorder::Group WithStates(FlightRecorder::Group group,
                                 const Backend& backend) {
  group.communicators = [&backend] { return backend.communicator_states(); };
  return group;
}

}  // namespace

Recording::Recording(std::unique_ptr<Backend> inner,
                     std::shared_ptr<FlightRecorder> recorder,
                     FlightRecorder::Group group,
                     std::function<void(const absl::Status&)> on_failure)
    : BackendDecorator(std::move(inner)),
      recorder_(std::move(recorder)),
      group_(recorder_->AddGroup(
          WithStates(std::move(group), BackendDecorator::inner()))),
      on_failure_(std::move(on_failure)) {}

Recording::~Recording() { recorder_->RemoveGroup(group_); }

std::shared_ptr<Work> Recording::Start(const Collective& collective) {
  const int64_t record = recorder_->Add(group_, collective);
  std::shared_ptr<Work> work = inner().Start(collective);
  work->OnCompletion([recorder = recorder_, group = group_,
                      record](const absl::Status& status) {
    recorder->Complete(group, record, status, Clock::now());
  });
  return work;
}

Ending Recording::Run(const Collective& collective, ReleasableLock& order) {
  int64_t record = -1;
  const auto add = [&] {
    try {
      record = recorder_->Add(group_, collective);
    } catch (const std::bad_alloc&) {
      // Then it has none.
    }
  };
  order.BeforeRelease(add);
  Ending ending;
  try {
    ending = inner().Run(collective, order);
  } catch (...) {
    // Nobody may call it any more.
    order.CallLast();
    throw;
  }
  order.CallLast();
  recorder_->Complete(group_, record, ending.status, ending.at);
  return ending;
}

void Recording::Abort(absl::Status cause) {
  // Destroying a group in peace is no failure.
  if (!absl::IsCancelled(cause) && !failed_.exchange(true) && on_failure_) {
    on_failure_(cause);
  }
  inner().Abort(std::move(cause));
}

}  // namespace muster::dataplane
