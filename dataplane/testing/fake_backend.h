#ifndef MUSTER_DATAPLANE_TESTING_FAKE_BACKEND_H_
#define MUSTER_DATAPLANE_TESTING_FAKE_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "muster/base/status.h"
#include "muster/dataplane/backend.h"

namespace muster::dataplane::testing {

// A backend whose works complete when the test completes them. Single-threaded.
class FakeBackend : public Backend {
 public:
  std::string name() const override { return "fake"; }
  std::span<const DeviceType> devices() const override {
    static constexpr DeviceType kDevices[] = {DeviceType::kCpu};
    return kDevices;
  }
  Status Supports(const Collective&) const override { return supports; }
  std::shared_ptr<Work> Start(const Collective& collective) override {
    started.push_back(collective);
    works.push_back(start != nullptr ? start()
                                     : std::make_shared<PromisedWork>(
                                           collective.Describe()));
    return works.back();
  }
  std::unique_ptr<Prepared> Prepare(const Collective& collective) override {
    prepared.push_back(collective);
    return std::make_unique<Prepared>();
  }
  Ticket Enter(const Collective& collective) override {
    if (enter != nullptr) enter();
    started.push_back(collective);
    return {.number = started.size()};
  }
  Completion Run(const Collective&, Prepared* of_run,
                 const Ticket& ticket) override {
    tickets.push_back(ticket.number);
    run_with.push_back(of_run);
    return {run == nullptr ? OkStatus() : run(), Clock::now()};
  }
  void Refused(const Collective& collective, const Status&) override {
    refused.push_back(collective);
  }
  CommunicatorStates communicator_states() const override { return states; }
  void Abort(Status cause) override {
    aborts.push_back(cause);
    for (const auto& work : works) work->Complete(cause);
  }

  Status supports;
  // Makes the handle of the next started collective.
  std::function<std::shared_ptr<PromisedWork>()> start;
  // Called in Enter.
  std::function<void()> enter;
  // Called in Run; returns the result.
  std::function<Status()> run;
  CommunicatorStates states;
  std::vector<Collective> started;
  std::vector<Collective> prepared;
  // The second argument of each Run, and the number on its ticket: how many
  // had been started with it.
  std::vector<Prepared*> run_with;
  std::vector<uint64_t> tickets;
  std::vector<Collective> refused;
  std::vector<std::shared_ptr<PromisedWork>> works;
  std::vector<Status> aborts;
};

}  // namespace muster::dataplane::testing

#endif  // MUSTER_DATAPLANE_TESTING_FAKE_BACKEND_H_
