#include "base/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"

namespace muster::base {
namespace {

// Maximum number of differing groups of ranks in a text.
constexpr size_t kDifferingShown = 4;

constexpr char kRefused[] = "refused";

// The names of the properties in which `a` and `b` differ.
std::string Differences(const Fingerprint& a, const Fingerprint& b) {
  std::vector<std::string> names;
  for (const char* const name :
       {"op", "sequence", "dtype", "element bytes", "device", "shape",
        "coalesced sizes", "reduce op", "commutative", "root"}) {
    const auto in_a = a.common.find(name);
    const auto in_b = b.common.find(name);
    const bool has_a = in_a != a.common.end();
    const bool has_b = in_b != b.common.end();
    if (has_a != has_b || (has_a && in_a->second != in_b->second)) {
      names.emplace_back(name);
    }
  }
  return absl::StrJoin(names, ", ");
}

// Fails if any rank refuses the collective.
std::optional<Mismatch> FindRefusals(
    absl::Span<const Fingerprint> fingerprints) {
  std::vector<int> refusing;
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    if (fingerprints[rank].common.contains(kRefused)) {
      refusing.push_back(static_cast<int>(rank));
    }
  }
  if (refusing.empty()) return std::nullopt;
  const Fingerprint& first = fingerprints[static_cast<size_t>(refusing[0])];
  std::string text =
      absl::StrCat("rank ", refusing[0], " refused ", first.description, ": ",
                   first.common.at(kRefused));
  if (refusing.size() > 1) {
    absl::StrAppend(&text, "; so did ",
                    RanksText(absl::MakeConstSpan(refusing).subspan(1)));
  }
  return Mismatch{text, refusing};
}

// Fails if the properties that must be equal on all ranks are not.
std::optional<Mismatch> CompareCommon(
    absl::Span<const Fingerprint> fingerprints) {
  std::map<std::map<std::string, std::string>, std::vector<int>> groups;
  for (size_t rank = 0; rank < fingerprints.size(); ++rank) {
    groups[fingerprints[rank].common].push_back(static_cast<int>(rank));
  }
  if (groups.size() == 1) return std::nullopt;
  // The largest group; if several are equally large, the one with the lowest
  // rank.
  const std::vector<int>* most = nullptr;
  for (const auto& [common, ranks] : groups) {
    if (most == nullptr || ranks.size() > most->size() ||
        (ranks.size() == most->size() && ranks[0] < (*most)[0])) {
      most = &ranks;
    }
  }
  const Fingerprint& model = fingerprints[static_cast<size_t>((*most)[0])];
  std::map<int, const std::vector<int>*> others;
  std::vector<int> differing;
  for (const auto& [common, ranks] : groups) {
    if (&ranks == most) continue;
    others[ranks[0]] = &ranks;
    differing.insert(differing.end(), ranks.begin(), ranks.end());
  }
  // Without a majority all ranks are culprits.
  if (2 * most->size() <= fingerprints.size()) {
    differing.insert(differing.end(), most->begin(), most->end());
  }
  std::sort(differing.begin(), differing.end());
  std::string text =
      absl::StrCat("Detected mismatch between collectives on ranks. ",
                   RanksText(*most), " of ", fingerprints.size(),
                   most->size() == 1 ? " runs " : " run ", model.description);
  size_t shown = 0;
  for (const auto& [first, ranks] : others) {
    if (shown++ == kDifferingShown) {
      absl::StrAppend(&text, "; and ", others.size() - kDifferingShown,
                      " more kinds");
      break;
    }
    const Fingerprint& other = fingerprints[static_cast<size_t>(first)];
    absl::StrAppend(&text, "; ", RanksText(*ranks),
                    ranks->size() == 1 ? " runs " : " run ", other.description,
                    " (different ", Differences(model, other), ")");
  }
  return Mismatch{text, differing};
}

// The indexes of the largest number.
std::vector<int> FindMost(const std::vector<int>& numbers) {
  const int largest = *std::max_element(numbers.begin(), numbers.end());
  std::vector<int> places;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == largest) places.push_back(static_cast<int>(i));
  }
  return places;
}

// Fails if a rank sends another count to a rank than that rank receives from
// it.
std::optional<Mismatch> ComparePairs(
    absl::Span<const Fingerprint> fingerprints) {
  std::string first;
  std::vector<int> disputes(fingerprints.size());
  for (size_t from = 0; from < fingerprints.size(); ++from) {
    const Fingerprint& giver = fingerprints[from];
    // They are a peer's, who may say anything.
    const size_t count = std::min(giver.given.size(), fingerprints.size());
    for (size_t to = 0; to < count; ++to) {
      const Fingerprint& taker = fingerprints[to];
      const int64_t taken = from < taker.taken.size() ? taker.taken[from] : 0;
      if (giver.given[to] == taken) continue;
      ++disputes[from];
      ++disputes[to];
      if (!first.empty()) continue;
      first = absl::StrCat(
          "Detected mismatch between collectives on ranks. rank ", from,
          " gives rank ", to, " ", giver.given[to], " elements, rank ", to,
          " takes ", taken, " (different splits): ", giver.description, " and ",
          taker.description);
    }
  }
  if (first.empty()) return std::nullopt;
  return Mismatch{first, FindMost(disputes)};
}

StatusOr<std::vector<int64_t>> ParseCounts(absl::string_view text) {
  std::vector<int64_t> counts;
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(part, &count)) {
      return DataLossError(absl::StrCat("not a count: ", part));
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

std::string Fingerprint::Serialize() const {
  std::string text = absl::StrCat(description, "\n", absl::StrJoin(given, ","),
                                  "\n", absl::StrJoin(taken, ","));
  for (const auto& [name, value] : common) {
    absl::StrAppend(&text, "\n", name, "=", value);
  }
  return text;
}

StatusOr<Fingerprint> Fingerprint::Parse(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 4) {
    return DataLossError(
        absl::StrCat("not a fingerprint: ", text.size(), " bytes"));
  }
  Fingerprint print;
  print.description = lines[0];
  auto given = ParseCounts(lines[1]);
  auto taken = ParseCounts(lines[2]);
  if (!given.ok()) return given.status();
  if (!taken.ok()) return taken.status();
  print.given = *std::move(given);
  print.taken = *std::move(taken);
  for (size_t i = 3; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> field =
        absl::StrSplit(lines[i], absl::MaxSplits('=', 1));
    print.common.insert(field);
  }
  return print;
}

std::optional<Mismatch> FindMismatch(
    absl::Span<const Fingerprint> fingerprints) {
  std::optional<Mismatch> found = FindRefusals(fingerprints);
  if (!found.has_value()) found = CompareCommon(fingerprints);
  return found.has_value() ? found : ComparePairs(fingerprints);
}

std::optional<Mismatch> FindOdd(const std::map<int, Fingerprint>& fingerprints,
                                int world_size,
                                const std::vector<int>& suspects) {
  // The lowest sequence: ranks with a higher one have completed this
  // collective.
  std::optional<int64_t> sequence;
  const auto sequence_of = [](const Fingerprint& print) {
    const auto found = print.common.find("sequence");
    int64_t number = 0;
    if (found != print.common.end()) {
      static_cast<void>(absl::SimpleAtoi(found->second, &number));
    }
    return number;
  };
  for (const auto& [rank, print] : fingerprints) {
    const int64_t number = sequence_of(print);
    sequence = std::min(sequence.value_or(number), number);
  }
  std::vector<Fingerprint> in_it;
  std::set<int> odd;
  std::map<std::map<std::string, std::string>, std::vector<int>> kinds;
  for (const auto& [rank, print] : fingerprints) {
    if (sequence_of(print) != *sequence) continue;
    in_it.push_back(print);
    odd.insert(rank);
    kinds[print.common].push_back(rank);
  }
  if (in_it.size() == static_cast<size_t>(world_size))
    return FindMismatch(in_it);
  std::string text = absl::StrCat("no more than half of ", world_size,
                                  " ranks are known to run the same");
  bool majority = false;
  for (const auto& [common, ranks] : kinds) {
    if (2 * ranks.size() <= static_cast<size_t>(world_size)) continue;
    majority = true;
    for (const int rank : ranks) odd.erase(rank);
    text = absl::StrCat(RanksText(ranks), " of ", world_size, " run ",
                        fingerprints.at(ranks[0]).description);
    if (!odd.empty()) break;
    // All that have reported agree: the culprit has not reported.
    for (const int rank : suspects) {
      if (!std::binary_search(ranks.begin(), ranks.end(), rank)) {
        odd.insert(rank);
      }
    }
  }
  if (!majority) odd.insert(suspects.begin(), suspects.end());
  if (odd.empty()) return std::nullopt;
  return Mismatch{text, {odd.begin(), odd.end()}};
}

}  // namespace muster::base
