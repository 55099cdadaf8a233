#include "client/parallel/data/agreement.h"

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

[[noreturn]] void ThrowBlaming(const ProcessGroup& group, size_t rank,
                               StatusCode code, std::string text) {
  Throw(ErrorSource::kControl,
        WithCulprits(Status(code, std::move(text)),
                     {{group.state()->GetMember(static_cast<int>(rank))}}));
}

std::vector<std::string> AllGatherTexts(
    const std::shared_ptr<ProcessGroup>& group, const std::string& mine) {
  std::vector<std::string> all;
  AllGatherObject(all, mine, {.group = group});
  return all;
}

// The first line is the fault's code. Texts have no line breaks: those of names
// are escaped.
std::string Serialize(const Arguments& arguments) {
  if (!arguments.fault.ok()) {
    return absl::StrCat(static_cast<int>(arguments.fault.code()), "\n",
                        arguments.fault.message());
  }
  return absl::StrCat("0\n", absl::StrJoin(arguments.items, "\n"));
}

}  // namespace

void CheckArgumentsAgree(const std::shared_ptr<ProcessGroup>& group,
                         const std::string& name, const Arguments& mine) {
  const std::vector<std::string> all = AllGatherTexts(group, Serialize(mine));
  const std::vector<int> ranks = group->ranks();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const int code = std::atoi(all[rank].c_str());
    if (code == 0) continue;
    ThrowBlaming(*group, rank, static_cast<StatusCode>(code),
                 absl::StrCat(name, ": rank ", ranks[rank], ": ",
                              all[rank].substr(all[rank].find('\n') + 1)));
  }
  const std::vector<std::string> first = absl::StrSplit(all[0], '\n');
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> other = absl::StrSplit(all[rank], '\n');
    size_t at = 0;
    while (at < first.size() && at < other.size() && first[at] == other[at]) {
      ++at;
    }
    const std::string of_first = at < first.size() ? first[at] : "nothing more";
    const std::string of_other = at < other.size() ? other[at] : "nothing more";
    ThrowBlaming(*group, rank, StatusCode::kInvalidArgument,
                 absl::StrCat(name, ": rank ", ranks[0], " has ", of_first,
                              ", rank ", ranks[rank], " has ", of_other));
  }
}

void ThrowOnAllRanks(const std::shared_ptr<ProcessGroup>& group,
                     const std::string& text, const std::string& what) {
  const std::vector<std::string> all = AllGatherTexts(group, what);
  const std::vector<int> ranks = group->ranks();
  std::vector<std::string> parts;
  Culprits culprits;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    culprits.members.push_back(
        group->state()->GetMember(static_cast<int>(rank)));
    if (parts.size() < base::kRanksInTextMax) {
      parts.push_back(absl::StrCat("rank ", ranks[rank], ": ", all[rank]));
    }
  }
  if (culprits.size() > parts.size()) {
    parts.push_back(
        absl::StrCat("and ", culprits.size() - parts.size(), " more ranks"));
  }
  Throw(ErrorSource::kControl,
        WithCulprits(FailedPreconditionError(
                         absl::StrCat(text, ": ", absl::StrJoin(parts, "; "))),
                     culprits));
}

}  // namespace muster::internal
