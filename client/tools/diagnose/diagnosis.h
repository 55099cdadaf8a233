// Finds the ranks that block a job, from the last reports of its members to the
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

// A group whose collective, or whose send or receive, runs for too long (one
// entry for each of the two), a barrier that is open for too long, or a group
// that forms or connects for too long.
struct StuckGroup {
  std::string group;
  // Number of the collective, send or receive; 0: something else.
  int64_t sequence = 0;
  std::string collective;  // for people, as a waiting rank reports it
  // How long the first of the waiting ranks has been in it.
  std::chrono::milliseconds running_for{0};
  std::vector<int> waiting;  // ranks
  std::vector<Culprit> culprits;
  // If no rank is behind: what may be wrong.
  std::string note;
};

// A key that no member sets, or a queue that gets no item, and its waiters.
struct AwaitedKey {
  std::string what;  // for people: `key "k"`
  std::string key;   // the beginning of the key
  bool queue = false;
  struct Waiter {
    int rank = -1;  // -1: not a rank
    std::string member;
    std::string host;
    int64_t pid = 0;
    std::chrono::milliseconds waiting_for{0};
  };
  std::vector<Waiter> waiters;  // longest wait first
};

// A rank for which others wait, but not long enough to be stuck.
struct Straggler {
  std::string group;
  std::string collective;
  Culprit culprit;
  int waiting = 0;  // how many ranks wait for it
  std::chrono::milliseconds waiting_for{0};
};

struct Diagnosis {
  std::vector<StuckGroup> groups;  // longest wait first
  std::vector<AwaitedKey> keys;    // longest wait first
  // Further members that send no heartbeats, though no rank is known to wait
  // for them.
  std::vector<Culprit> silent;
  // Ranks that wait for each other in different groups, the rendezvous, the end
  // of the generation, what cannot be known: one line each.
  std::vector<std::string> also;
  // The ranks that are missing in the rendezvous.
  std::vector<Culprit> absent;
  // Only for a healthy job: ranks that are late in a group.
  std::vector<Straggler> stragglers;
  // Nothing waits for longer than `stuck_after`.
  bool healthy() const {
    return groups.empty() && keys.empty() && silent.empty() && also.empty();
  }
};

struct DiagnosisOptions {
  // A collective or barrier that takes longer than this is stuck. For
  // collectives it is at least an eighth of the lease: a rank may have arrived
  // since its last heartbeat.
  std::chrono::milliseconds stuck_after = std::chrono::seconds(5);
  // Host by rank, for ranks that have not registered.
  std::map<int, std::string> hosts = {};
};

// Diagnoses one snapshot of the job. `earlier`, an older snapshot, shows which
// ranks move; it may be null. Reports that are older than the heartbeats allow,
// or that are of members that are gone, are marked as such and prove nothing.
Diagnosis Diagnose(const v1::GetJobResponse& job,
                   const v1::GetJobResponse* earlier, const Answers& answers,
                   const DiagnosisOptions& options = {});

// The ranks whose answer would matter: those that Diagnose blames without any
// answers.
std::vector<int> RanksToAsk(const v1::GetJobResponse& job,
                            const v1::GetJobResponse* earlier,
                            const DiagnosisOptions& options = {});

// One screen for people. Escapes names that members chose.
std::string DiagnosisText(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis);
std::string DiagnosisJson(const v1::GetJobResponse& job,
                          const Diagnosis& diagnosis);

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_H_
