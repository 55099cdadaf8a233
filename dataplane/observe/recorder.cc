#include "dataplane/observe/recorder.h"

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

// Runs `call`. If memory runs out, the record is lost.
template <typename Call>
void IfThereIsMemory(const Call& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

Recorder::Recorder(std::unique_ptr<Backend> inner,
                   std::shared_ptr<FlightRecorder> recorder,
                   FlightRecorder::Group group,
                   std::shared_ptr<Metrics> metrics,
                   std::function<void(const Status&)> on_failure)
    : BackendDecorator(std::move(inner)),
      recorder_(std::move(recorder)),
      group_(recorder_->AddGroup(
          WithStates(std::move(group), BackendDecorator::inner()))),
      metrics_(std::move(metrics)),
      on_failure_(std::move(on_failure)) {}

Recorder::~Recorder() { recorder_->RemoveGroup(*group_); }

inline Metrics::Series& Recorder::GetSeries(CollectiveKind kind) {
  Metrics::Series* const known =
      series_[static_cast<size_t>(kind)].load(std::memory_order_acquire);
  return known != nullptr ? *known : MakeSeries(kind);
}

Metrics::Series& Recorder::MakeSeries(CollectiveKind kind) {
  Metrics::Series& series =
      metrics_->GetSeries(CollectiveKindName(kind), name());
  series_[static_cast<size_t>(kind)].store(&series, std::memory_order_release);
  return series;
}

int64_t Recorder::Record(const Collective& collective) {
  int64_t record = -1;
  IfThereIsMemory([&] { record = recorder_->Add(*group_, collective); });
  return record;
}

std::shared_ptr<Work> Recorder::Start(const Collective& collective) {
  const int64_t record = Record(collective);
  std::shared_ptr<Work> work = inner().Start(collective);
  // The callback may outlive this object.
  work->OnCompletion(
      [recorder = recorder_, group = group_, record, metrics = metrics_,
       series = metrics_ == nullptr ? nullptr : &GetSeries(collective.kind),
       bytes = collective.bytes(),
       started = collective.started](const Status& status) {
        const Instant now = Clock::now();
        IfThereIsMemory(
            [&] { recorder->Complete(*group, record, status, now); });
        if (series == nullptr) return;
        series->Finished(bytes, now - started, status.code());
      });
  return work;
}

Ticket Recorder::Enter(const Collective& collective) {
  Ticket ticket = inner().Enter(collective);
  ticket.record = Record(collective);
  return ticket;
}

Completion Recorder::Run(const Collective& collective, Prepared* prepared,
                         const Ticket& ticket) {
  const int64_t record = ticket.record;
  Completion end = inner().Run(collective, prepared, ticket);
  IfThereIsMemory(
      [&] { recorder_->Complete(*group_, record, end.status, end.at); });
  if (metrics_ == nullptr) return end;
  // Avoids the call of code() for the usual OK.
  GetSeries(collective.kind)
      .Finished(collective.bytes(), end.at - collective.started,
                end.status.ok() ? StatusCode::kOk : end.status.code());
  return end;
}

void Recorder::Abort(Status cause) {
  // An orderly end of the group is not a failure.
  if (!IsCancelled(cause) && !failed_.exchange(true) && on_failure_) {
    on_failure_(cause);
  }
  inner().Abort(std::move(cause));
}

}  // namespace muster::dataplane
