// Finds the ranks that block a job, from what its members last reported to the
// coordinator and from whether their processes answer.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/tools/diagnose/diagnosis_rules.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// A group in which a collective runs for too long, or a send or receive: one
// for each of the two kinds. And one for each barrier that is open for so long,
// and for each group that forms or connects for so long.
struct StuckGroup {
  std::string group;
  // Of the collective, the send or the receive; 0: something else.
  int64_t sequence = 0;
  std::string collective;  // for people, as a rank that is in it tells it
  // How long the first of those that wait has been in it.
  std::chrono::milliseconds running_for{0};
  std::vector<int> waiting;  // ranks
  std::vector<Culprit> culprits;
  // Where nobody is behind: what may be wrong then.
  std::string note;
};

// A key that nobody sets, or a queue that gets no item, and who waits for it.
struct AwaitedKey {
  std::string what;  // `key "k"`, for people
  std::string key;   // its beginning
  bool queue = false;
  struct Waiter {
    int rank = -1;  // -1: it has none
    std::string member;
    std::string host;
    int64_t pid = 0;
    std::chrono::milliseconds waiting_for{0};
  };
  std::vector<Waiter> waiters;  // who waits for longest first
};

// Whom others wait for, though for less than what counts as stuck.
struct Straggler {
  std::string group;
  std::string collective;
  Culprit culprit;
  int waiting = 0;  // how many ranks wait for it
  std::chrono::milliseconds waiting_for{0};
};

struct Diagnosis {
  std::vector<StuckGroup> groups;  // the one that is stuck for longest first
  std::vector<AwaitedKey> keys;    // for which somebody waits for longest first
  // Others that tell nothing any more, though nobody is known to wait for them.
  std::vector<Culprit> silent;
  // Ranks that wait for each other in different groups, the rendezvous, the end
  // of the generation, what cannot be known: a line each.
  std::vector<std::string> also;
  // Who is missing in the rendezvous.
  std::vector<Culprit> absent;
  // Of a healthy job, in the groups where somebody comes late.
  std::vector<Straggler> stragglers;
  // Nothing waits for longer than it may.
  bool healthy() const {
    return groups.empty() && keys.empty() && silent.empty() && also.empty();
  }
};

struct DiagnosisOptions {
  // A collective or barrier that takes longer than this is stuck. A collective
  // takes an eighth of the lease at least: who waits for less may wait for one
  // that has come since its last heartbeat.
  std::chrono::milliseconds stuck_after = std::chrono::seconds(5);
  // Of ranks that have not said themselves where they are, by rank.
  std::map<int, std::string> hosts = {};
};

// From one look at the job, or two: `earlier`, if it is not null, was some time
// before, and tells who moves. What is older than the heartbeats allow, or of
// who is gone, is told as such and proves nothing.
Diagnosis Diagnose(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, const Answers& answers,
                   const DiagnosisOptions& options = {});

// The ranks whose answer would matter: those that Diagnose blames without
// any.
std::vector<int> RanksToAsk(const v1::GetJobResponse& job,
                            const v1::GetJobResponse* earlier,
                            const DiagnosisOptions& options = {});

// One screen for people; names that members chose are made harmless.
std::string DiagnosisText(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis);
std::string DiagnosisJson(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_H_
