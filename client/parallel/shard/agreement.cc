#include "client/parallel/shard/agreement.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

// A rank says an error that it has or knows of, or its lines.
constexpr char kError = 'E';
constexpr char kLines = 'L';

// Each line with its length before it, because names may have any character.
std::string Pack(const std::vector<std::string>& lines) {
  std::string packed(1, kLines);
  for (const std::string& line : lines) {
    absl::StrAppend(&packed, line.size(), ":", line);
  }
  return packed;
}

std::vector<std::string> Unpack(const std::string& packed) {
  std::vector<std::string> lines;
  for (size_t at = 1; at < packed.size();) {
    const size_t colon = packed.find(':', at);
    const size_t size = std::stoul(packed.substr(at, colon - at));
    lines.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return lines;
}

std::string Difference(int first_rank, const std::string& first, int other_rank,
                       const std::string& other) {
  const auto ours = Unpack(first);
  const auto theirs = Unpack(other);
  size_t i = 0;
  while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) ++i;
  const auto line = [&](const std::vector<std::string>& lines) {
    return i < lines.size() ? lines[i] : "nothing more";
  };
  return absl::StrCat("global rank ", other_rank, " has ", line(theirs),
                      ", global rank ", first_rank, " has ", line(ours));
}

// Gathers what the ranks of `group` say. Returns the first error, or what this
// rank says.
std::string Meet(const std::shared_ptr<ProcessGroup>& group,
                 const std::string& mine) {
  std::vector<std::string> all;
  AllGatherObject(all, mine, {.group = group});
  for (const std::string& one : all) {
    if (one[0] == kError) return one;
  }
  const std::vector<int> ranks = group->ranks();
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i] == all[0]) continue;
    return absl::StrCat(std::string(1, kError),
                        Difference(ranks[0], all[0], ranks[i], all[i]));
  }
  return mine;
}

}  // namespace

void CheckAgreement(const std::string& what, const ShardRanks& ranks,
                    const std::string& error,
                    const std::vector<std::string>& lines) {
  std::string said = Pack(lines);
  if (!error.empty()) {
    const auto rank = static_cast<size_t>(ranks.group->rank());
    said = absl::StrCat(std::string(1, kError), "global rank ",
                        ranks.group->ranks()[rank], ": ", error);
  }
  said = Meet(ranks.group, said);
  if (ranks.replicate_group != nullptr) {
    // The ranks of a line say the same now, so all columns hear the same.
    said = Meet(ranks.replicate_group, said);
  }
  if (said[0] == kError) Invalid(absl::StrCat(what, ": ", said.substr(1)));
}

}  // namespace muster::internal
