// A simulated job: a coordinator, its members, and a network that loses,
// repeats, reorders and delays messages, all on a virtual clock.

#ifndef MUSTER_TESTS_SIMULATION_SIM_WORLD_H_
#define MUSTER_TESTS_SIMULATION_SIM_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/coordinator.h"
#include "tests/simulation/sim_checker.h"
#include "tests/simulation/sim_member.h"
#include "tests/simulation/sim_message.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

// Counts of events in a run, to show that runs cover them.
struct SimStatistics {
  int64_t steps = 0;
  int64_t requests = 0;
  int64_t lost_messages = 0;
  int64_t member_crashes = 0;
  int64_t coordinator_restarts = 0;
  int64_t generations = 0;
  int64_t barriers_released = 0;
  int64_t barriers_failed = 0;
  int64_t events = 0;
  int64_t silences = 0;  // several hosts together
};

// SimWorld is one run. The seed decides everything, even how hostile the run
// is: some have a perfect network, in some nothing ever arrives at once.
class SimWorld {
 public:
  // With `trace` the run prints its steps as a golden transcript
  // (coordinator/core/testing/testdata).
  SimWorld(uint64_t seed, bool trace);

  // Returns the violated invariant; none: all hold.
  std::optional<std::string> Run();

  const SimStatistics& statistics() const { return statistics_; }
  const SimChecker::Seen& seen() const { return checker_.seen(); }

 private:
  using Action = std::function<void()>;

  // Drawn from the seed.
  struct Trouble {
    double loss = 0;
    double duplication = 0;
    int64_t delay_ms_max = 1;
    double clog = 0;               // chance that a link clogs, per step
    double cut = 0;                // that all links clog, per step of a member
    double member_crash = 0;       // per step of a member
    double silent_crash = 0;       // share of crashes with an open connection
    double disconnect = 0;         // per step of a member
    double cancel = 0;             // per step of a member
    double coordinator_crash = 0;  // per step of a member
    bool durable = false;          // a crash loses only state in memory
    int64_t tick_late_ms_max = 0;
  };

  void DrawTrouble();
  core::CoordinatorOptions OptionsOfCoordinator() const;
  void StartCoordinator();
  void ResumeCoordinator();
  void Store();
  void At(core::Instant when, Action action);
  bool RunUntil(core::Instant end, const std::function<bool()>& done);
  void AdvanceTo(core::Instant when);
  void Tick();

  void StepMember(size_t index);
  void HaveAccidents(size_t index);
  void CrashMember(size_t index);
  void Disconnect(size_t index);
  void Send(size_t index, const Request& request);
  void Transmit(size_t index, const Action& deliver);
  void Handle(size_t index, Request request);
  void Dispatch(const Request& request, core::Outbox& out);
  void Deliver(core::Outbox& out, bool ticked = false);
  void Count(const core::Outbox& out);

  bool AllReleased(int64_t barriers) const;
  bool Closed() const;
  void Heal();
  void CheckLiveness();
  void CheckEmptiness();
  void Trace(const std::string& line);

  Random random_;
  const bool trace_;
  Trouble trouble_;
  MemberHabits habits_;
  SimStatistics statistics_;
  SimChecker checker_;

  core::Instant now_;
  core::Instant traced_at_;
  std::map<std::pair<core::Instant, uint64_t>, Action> queue_;
  uint64_t next_event_ = 1;
  uint64_t next_waiter_ = 1;
  uint64_t epoch_ = 0;
  // The number of the coordinator's process. Connections end with it.
  uint64_t life_ = 0;
  std::map<std::string, std::string> disk_;

  std::unique_ptr<core::Coordinator> coordinator_;
  std::vector<SimMember> members_;
  std::vector<bool> up_;
  std::vector<core::Instant> clogged_until_;

  // The caller to which an answer goes.
  struct ReplyTarget {
    size_t index = 0;
    uint64_t operation = 0;
    core::Incarnation incarnation;
  };
  std::map<core::WaiterId, ReplyTarget> reply_targets_;
};

}  // namespace muster::simulation

#endif  // MUSTER_TESTS_SIMULATION_SIM_WORLD_H_
