// Determines why a rank that others wait for does not arrive.

#ifndef MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_
#define MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "client/tools/diagnose/places.h"
#include "client/tools/diagnose/waits.h"
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
  std::string host;  // empty: not known
  int64_t pid = 0;   // 0: not known
  std::string debug_address;
  // One word: dead, stopped, cut_off, silent, slow, user_code, other_group,
  // in_collective, point_to_point (it waits in a send or a receive), connecting
  // (it waits in the call that makes this group, which it is in), new_group
  // (it waits in a group that forms), barrier (in a monitored one), store (for
  // a key), not_joined (it is not in the rendezvous), unregistered (nobody has
  // said to be it), unknown (what it last told is too old, or it has told
  // nothing).
  std::string state;
  // For people, after "rank 2 (host-b, pid 7) ".
  std::string what;
};

// The same as a name: its rank, host and process.
Culprit CulpritOf(const v1::MemberInfo& member);

// Of one that is gone: `is gone: it was lost: no heartbeat for 11s`.
std::string GoneText(const v1::MemberInfo& member);

// What others wait for in a group.
struct Awaited {
  std::string group;
  // A collective; 0: something else.
  int64_t sequence = 0;
  // "has not called #42", of who is to blame.
  std::string omission;
};

// Thread-compatible. What it is given must outlive it.
class DiagnosisRules {
 public:
  // `earlier` may be null.
  DiagnosisRules(const v1::GetJobResponse& job,
                 const v1::GetJobResponse* earlier, const Answers& answers)
      : waits_(job),
        earlier_(earlier),
        answers_(answers),
        silent_after_(SilentAfter(job)) {}

  Culprit Blame(const Place& place, const Awaited& awaited) const;

  // Whether something is wrong with its process, wherever it is in the group.
  bool IsIll(const Place& place) const;
  bool IsSilent(const Place& place) const;

  // Whether what it last told holds now, as far as one can know.
  static bool IsSure(const Place& place);

 private:
  using Words = std::pair<std::string, std::string>;

  Words State(const Place& place, const Awaited& awaited) const;
  Words Elsewhere(const Place& place, const Awaited& awaited) const;
  Words Illness(const Place& place) const;

  const Waits waits_;
  const v1::GetJobResponse* const earlier_;
  const Answers& answers_;
  const std::chrono::milliseconds silent_after_;
};

}  // namespace muster::tools

#endif  // MUSTER_CLIENT_TOOLS_DIAGNOSE_DIAGNOSIS_RULES_H_
