// Who keeps a job from going on: conclusions from what its members last told
// the coordinator, and from whether their processes answer.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSIS_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSIS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// What came of asking a member's own HTTP port.
enum class Answer {
  kAnswers,
  kRefused,      // its host is there, and nobody listens
  kSilent,       // it takes the connection and says nothing: it is stopped
  kUnreachable,  // its host does not answer
};

// By rank. Ranks that were not asked, or serve no HTTP, are not in it.
using Answers = std::map<int, Answer>;

// A rank that others wait for.
struct Culprit {
  int rank = -1;
  std::string host;
  int64_t pid = 0;
  std::string debug_address;
  // One word: dead, stopped, cut_off, silent, slow, user_code, other_group,
  // in_collective, point_to_point (it waits in a send or a receive), unknown
  // (what it last told is too old, or it has told nothing).
  std::string state;
  // For people, after "rank 2 (host-b, pid 7) ".
  std::string what;
};

// A group in which a collective runs for too long, or a send or receive: one
// for each of the two kinds. And one for each barrier that is open for so long.
struct StuckGroup {
  std::string group;
  // Of the collective, the send or the receive; 0: a barrier.
  int64_t sequence = 0;
  std::string collective;  // for people, as a rank that is in it tells it
  // How long the first of those that wait has been in it.
  std::chrono::milliseconds running_for{0};
  std::vector<int> waiting;  // ranks
  std::vector<Culprit> culprits;
  // Where nobody is behind: what may be wrong then.
  std::string note;
};

struct Diagnosis {
  std::vector<StuckGroup> groups;  // the one that is stuck for longest first
  // Others that tell nothing any more, though nobody is known to wait for them.
  std::vector<Culprit> silent;
  // The rendezvous, the end of the generation: a line each.
  std::vector<std::string> also;
  // Nothing waits for longer than it may.
  bool healthy() const {
    return groups.empty() && silent.empty() && also.empty();
  }
};

struct DiagnosisOptions {
  // A collective or barrier that takes longer than this is stuck. A collective
  // takes an eighth of the lease at least: who waits for less may wait for one
  // that has come since its last heartbeat.
  std::chrono::milliseconds stuck_after = std::chrono::seconds(5);
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

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSIS_H_
