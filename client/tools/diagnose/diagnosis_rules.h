// Determines why a rank that others wait for does not arrive.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "client/tools/diagnose/rank_progress.h"
#include "client/tools/diagnose/waits.h"
#include "muster/v1/admin.pb.h"

namespace muster::tools {

// The result of a request to a member's own HTTP port.
enum class Answer {
  kAnswers,
  kRefused,      // its host answers, but nothing listens
  kSilent,       // it accepts the connection and sends nothing: it is stopped
  kUnreachable,  // its host does not answer
};

// By rank. Without ranks that were not asked or serve no HTTP.
using Answers = std::map<int, Answer>;

// A rank that others wait for.
struct Culprit {
  int rank = -1;
  std::string host;  // empty: not known
  int64_t pid = 0;   // 0: not known
  std::string debug_address;
  // One word: dead, stopped, cut_off, silent, slow, user_code, other_group,
  // in_collective, point_to_point (in a send or receive), connecting (in the
  // call that makes this group, of which it is a member), new_group (in a group
  // that forms), barrier (in a monitored one), store (waits for a key),
  // not_joined (not in the rendezvous), unregistered (no process has registered
  // as this rank), unknown (its last report is too old, or there is none).
  std::string state;
  // For people, after "rank 2 (host-b, pid 7) ".
  std::string what;
};

// A culprit with rank, host and process alone.
Culprit ToCulprit(const v1::MemberInfo& member);

// For a member that is gone: `is gone: it was lost: no heartbeat for 11s`.
std::string GoneText(const v1::MemberInfo& member);

// The call for which the ranks of a group wait.
struct Awaited {
  std::string group;
  // Number of the collective; 0: something else.
  int64_t sequence = 0;
  // The culprit's omission: "has not called #42".
  std::string omission;
};

// Thread-compatible. The arguments must outlive it.
class DiagnosisRules {
 public:
  // `earlier` may be null.
  DiagnosisRules(const v1::GetJobResponse& job,
                 const v1::GetJobResponse* earlier, const Answers& answers)
      : waits_(job),
        earlier_(earlier),
        answers_(answers),
        silent_after_(SilentAfter(job)) {}

  Culprit Blame(const RankProgress& place, const Awaited& awaited) const;

  // Whether the process itself has a problem, wherever it is in the group.
  bool IsIll(const RankProgress& place) const;
  bool IsSilent(const RankProgress& place) const;

  // Whether its last report probably holds now.
  static bool IsSure(const RankProgress& place);

 private:
  using Words = std::pair<std::string, std::string>;

  Words State(const RankProgress& place, const Awaited& awaited) const;
  Words Elsewhere(const RankProgress& place, const Awaited& awaited) const;
  Words Illness(const RankProgress& place) const;

  const Waits waits_;
  const v1::GetJobResponse* const earlier_;
  const Answers& answers_;
  const std::chrono::milliseconds silent_after_;
};

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_
