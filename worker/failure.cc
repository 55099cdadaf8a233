#include "worker/failure.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/str_cat.h"

namespace muster::worker {
namespace {

constexpr int kOthersMax = 8;

}  // namespace

bool IsDeserter(const std::vector<RankExit>& exits, size_t i) {
  if (!exits[i].status.ok() || exits[i].told_to_stop) return false;
  return std::any_of(exits.begin(), exits.end(), [&](const RankExit& exit) {
    return exit.status.signal == 0 && exit.status.code == kExitPeerFailed &&
           std::find(exit.blames.begin(), exit.blames.end(), exits[i].rank) !=
               exit.blames.end();
  });
}

size_t FirstFailure(const std::vector<RankExit>& exits) {
  size_t first = exits.size();
  int first_weight = 0;
  for (size_t i = 0; i < exits.size(); ++i) {
    const internal::ExitStatus& status = exits[i].status;
    const bool deserted = IsDeserter(exits, i);
    if (status.ok() && !deserted) continue;
    int weight = 4;
    if (status.signal == SIGKILL) weight = 5;
    if (deserted) weight = 3;
    if (status.signal == 0 && status.code == kExitPeerFailed) weight = 2;
    if (exits[i].told_to_stop) weight = status.signal == SIGKILL ? 3 : 1;
    if (weight > first_weight) {
      first = i;
      first_weight = weight;
    }
  }
  return first;
}

size_t FirstWitness(const std::vector<RankExit>& exits) {
  size_t i = 0;
  while (i < exits.size() && (exits[i].status.signal != 0 ||
                              exits[i].status.code != kExitPeerFailed)) {
    ++i;
  }
  return i;
}

std::string DescribeOthers(const std::vector<RankExit>& exits, size_t first) {
  std::string text;
  int others = 0;
  for (size_t i = 0; i < exits.size(); ++i) {
    if (i == first || exits[i].status.ok()) continue;
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
