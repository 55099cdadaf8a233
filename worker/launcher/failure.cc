#include "worker/launcher/failure.h"

#include <algorithm>
#include <csignal>
#include <map>

#include "absl/strings/str_cat.h"

namespace muster::worker {
namespace {

constexpr int kOthersMax = 8;

// Whether its blame counts: it lost a peer, ended by itself, and was not
// restarted.
bool Testifies(const RankExit& exit) {
  return IsWitness(exit) && !exit.told_to_stop && !exit.restarted;
}

bool Names(const std::vector<internal::Culprit>& culprits,
           const RankExit& exit) {
  return std::any_of(
      culprits.begin(), culprits.end(), [&](const internal::Culprit& culprit) {
        if (culprit.rank != exit.rank) return false;
        // Without a pid the current process of the rank is meant.
        return culprit.pid == 0 ? !exit.restarted : culprit.pid == exit.pid;
      });
}

// How likely `exits[i]` is the cause of the others; 0: it is not.
int Weight(const std::vector<RankExit>& exits, size_t i,
           const std::vector<internal::Culprit>& elsewhere) {
  const RankExit& exit = exits[i];
  const bool killed = exit.status.signal == SIGKILL;
  if (IsWitness(exit)) return exit.restarted ? 0 : exit.told_to_stop ? 1 : 2;
  if (exit.told_to_stop || exit.restarted || exit.status.ok()) {
    if (IsBlamed(exits, i, elsewhere)) return 4;
    if (exit.restarted || exit.status.ok()) return 0;
    return killed ? 3 : 1;
  }
  return killed ? 6 : 5;
}

}  // namespace

bool IsWitness(const RankExit& exit) {
  return exit.status.signal == 0 && exit.status.code == kExitPeerFailed;
}

bool IsBlamed(const std::vector<RankExit>& exits, size_t i,
              const std::vector<internal::Culprit>& elsewhere) {
  return Names(elsewhere, exits[i]) ||
         std::any_of(exits.begin(), exits.end(), [&](const RankExit& exit) {
           return Testifies(exit) && Names(exit.blames, exits[i]);
         });
}

bool IsDeserter(const std::vector<RankExit>& exits, size_t i,
                const std::vector<internal::Culprit>& elsewhere) {
  return exits[i].status.ok() && !exits[i].told_to_stop &&
         IsBlamed(exits, i, elsewhere);
}

size_t FirstFailure(const std::vector<RankExit>& exits,
                    const std::vector<internal::Culprit>& elsewhere) {
  size_t first = exits.size();
  int first_weight = 0;
  for (size_t i = 0; i < exits.size(); ++i) {
    const int weight = Weight(exits, i, elsewhere);
    if (weight > first_weight) {
      first = i;
      first_weight = weight;
    }
  }
  return first;
}

std::vector<internal::Culprit> BlamedBeside(const std::vector<RankExit>& exits,
                                            int first_rank, int ranks) {
  std::map<int, internal::Culprit> blamed;
  for (const RankExit& exit : exits) {
    if (!Testifies(exit)) continue;
    for (const internal::Culprit& culprit : exit.blames) {
      if (culprit.rank >= first_rank && culprit.rank - first_rank < ranks) {
        continue;
      }
      blamed.emplace(culprit.rank, culprit);
    }
  }
  std::vector<internal::Culprit> culprits;
  for (const auto& [rank, culprit] : blamed) culprits.push_back(culprit);
  return culprits;
}

size_t FirstWitness(const std::vector<RankExit>& exits) {
  size_t i = 0;
  while (i < exits.size() && (exits[i].restarted || !IsWitness(exits[i]))) ++i;
  return i;
}

std::string DescribeOthers(const std::vector<RankExit>& exits, size_t first) {
  std::string text;
  int others = 0;
  for (size_t i = 0; i < exits.size(); ++i) {
    if (i == first || exits[i].status.ok() || exits[i].restarted) continue;
    if (++others > kOthersMax) continue;
    absl::StrAppend(&text, others == 1 ? "" : "; ", "rank ", exits[i].rank, " ",
                    Describe(exits[i].status),
                    exits[i].told_to_stop ? " when told to stop" : "");
  }
  if (others > kOthersMax) {
    absl::StrAppend(&text, "; and ", others - kOthersMax, " more");
  }
  return text;
}

}  // namespace muster::worker
