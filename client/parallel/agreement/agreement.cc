#include "client/parallel/agreement/agreement.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "client/control/throw.h"
#include "client/groups/device_copies.h"
#include "client/groups/group_state.h"
#include "muster/objects.h"

namespace muster::internal {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Texts as one, each after its length, because they may have any character.
std::string Pack(const std::vector<std::string>& texts) {
  std::string packed;
  for (const std::string& text : texts) {
    absl::StrAppend(&packed, text.size(), ":", text);
  }
  return packed;
}

std::vector<std::string> Unpack(const std::string& packed) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < packed.size();) {
    const size_t colon = packed.find(':', at);
    const size_t size = std::stoull(packed.substr(at, colon - at));
    texts.push_back(packed.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return texts;
}

// FNV-1a, 64 bits.
uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = 14695981039346656037U;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 1099511628211U;
  }
  return hash;
}

// Whether all ranks have `mine`, and none has a fault. The answer is the same
// on all ranks.
bool IsSameOnAllRanks(const std::string& mine, bool has_fault,
                      const std::vector<Group>& groups) {
  constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
  const uint64_t hash = HashBytes(mine);
  // The largest hash and, by its bits, the smallest.
  std::array<uint64_t, 2> bounds = {hash, ~hash};
  if (has_fault) bounds = {kAll, kAll};
  for (const Group& group : groups) {
    // Groups on devices reduce no memory of the host.
    if (group->state()->is_cuda_only()) return false;
    group->AllReduce(Tensor(bounds.data(), {2}), {.op = ReduceOp::kMax});
  }
  return bounds[0] == ~bounds[1];
}

// A rank says it, and others may repeat it.
struct Statement {
  // The statement with the highest weight counts, then that of the lowest rank.
  int64_t weight = 0;
  // The global rank that said it first.
  int64_t rank = 0;
  // As many on every rank.
  std::vector<std::string> texts;
};

// Every rank gets the statement that counts among those of all ranks. Along the
// second dimension of a mesh each line has the same statements, and so on.
Statement FindFirst(Statement statement, const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    std::array<int64_t, 2> mine = {-statement.weight, statement.rank};
    std::vector<std::array<int64_t, 2>> all(static_cast<size_t>(group->size()));
    DeviceCopies copies(*group);
    copies.End(group->AllGatherIntoTensor(
        copies.Out(Tensor(all[0].data(), {2 * group->size()})),
        copies.In(Tensor(mine.data(), {2}))));
    const auto first = std::min_element(all.begin(), all.end());
    statement.weight = -(*first)[0];
    statement.rank = (*first)[1];
    BroadcastObjectList(
        statement.texts, std::nullopt,
        {.group = group, .group_src = static_cast<int>(first - all.begin())});
  }
  return statement;
}

// The texts have the name and the value of the argument at an index of each
// list, if it has one there.
std::string Describe(const std::vector<std::string>& texts, size_t at) {
  return at < texts.size() ? absl::StrCat(texts[at], " ", texts[at + 1])
                           : "nothing more";
}

// Says how two calls differ.
std::string FindDifference(const std::string& call, int64_t rank,
                           const std::string& first_call, int64_t first_rank) {
  const std::vector<std::string> texts = Unpack(call);
  const std::vector<std::string> firsts = Unpack(first_call);
  if (texts[0] != firsts[0]) {
    return absl::StrCat("rank ", rank, " calls ", texts[0], ", rank ",
                        first_rank, " calls ", firsts[0]);
  }
  size_t at = 1;
  while (at < texts.size() && at < firsts.size() && texts[at] == firsts[at] &&
         texts[at + 1] == firsts[at + 1]) {
    at += 2;
  }
  const bool same_name =
      at < texts.size() && at < firsts.size() && texts[at] == firsts[at];
  return absl::StrCat(
      texts[0], ": ", same_name ? absl::StrCat(texts[at], ": ") : "", "rank ",
      rank, " has ", same_name ? texts[at + 1] : Describe(texts, at), ", rank ",
      first_rank, " has ", same_name ? firsts[at + 1] : Describe(firsts, at));
}

MemberInfo FindMember(int rank, const std::vector<Group>& groups) {
  for (const Group& group : groups) {
    const std::vector<int> ranks = group->ranks();
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    if (at == ranks.end()) continue;
    return group->state()->GetMember(static_cast<int>(at - ranks.begin()));
  }
  return {.rank = rank};
}

// Finds the rank to blame. `mine` are this rank's arguments, as one text,
// and `fault` is what is wrong with them alone. No rank is to blame if the
// weight is 0.
Statement FindWorst(const std::string& call, const std::string& mine,
                    const Status& fault, const std::vector<Group>& groups) {
  if (IsSameOnAllRanks(mine, !fault.ok(), groups)) return {};
  const int rank = groups[0]->ranks()[static_cast<size_t>(groups[0]->rank())];
  const Statement first = FindFirst({.rank = rank, .texts = {mine}}, groups);
  Status failure = OkStatus();
  int64_t weight = 0;
  if (!fault.ok()) {
    failure = Status(fault.code(), absl::StrCat(call, ": rank ", rank, ": ",
                                                fault.message()));
    weight = 2;
  } else if (mine != first.texts[0]) {
    failure = InvalidArgumentError(
        FindDifference(mine, rank, first.texts[0], first.rank));
    weight = 1;
  }
  return FindFirst({.weight = weight,
                    .rank = rank,
                    .texts = {absl::StrCat(static_cast<int>(failure.code())),
                              failure.message()}},
                   groups);
}

}  // namespace

void Agreement::AddNumber(std::string argument, double value) {
  // The shortest text that gives the same number.
  std::array<char, 32> text;
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  Add(std::move(argument), std::string(text.data(), end));
}

void Agreement::AddAtLeast(const std::string& argument, int64_t value,
                           int64_t least) {
  Add(argument, absl::StrCat(value));
  if (value >= least) return;
  AddFault(InvalidArgumentError(
      absl::StrCat(argument, " must be at least ", least, " but was ", value)));
}

std::string Agreement::ToText() const {
  std::vector<std::string> texts = {call_};
  for (const auto& [name, value] : arguments_) {
    texts.push_back(name);
    texts.push_back(value);
  }
  return Pack(texts);
}

uint64_t Agreement::ComputeHash() const { return HashBytes(ToText()); }

void Agreement::Check(const std::vector<Group>& groups) const {
  Statement worst;
  try {
    worst = FindWorst(call_, ToText(), fault_, groups);
  } catch (const DistError& error) {
    // A rank of another group of the mesh must not wait for this one.
    if (groups.size() > 1) {
      for (const Group& group : groups) group->Abort(error.what());
    }
    throw;
  }
  if (worst.weight == 0) return;
  Throw(ErrorSource::kControl,
        WithCulprits(Status(static_cast<StatusCode>(std::stoi(worst.texts[0])),
                            worst.texts[1]),
                     {{FindMember(static_cast<int>(worst.rank), groups)}}));
}

}  // namespace muster::internal
