#include "client/internal/call_board.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "client/internal/deadline.h"
#include "client/internal/failure_judge.h"
#include "client/internal/verbs.h"

namespace muster::internal {
namespace {

constexpr absl::string_view kWaits = "waits";
constexpr absl::string_view kPasses = "passes";
constexpr absl::string_view kRefused = "refused";

// Of the keys: what ranks have told, and what they are told.
constexpr char kCalls[] = "calls";
constexpr char kQuarrels[] = "quarrels";

// The others look at the board when they come themselves; what ranks have told
// that do not wait is found later.
constexpr int64_t kFirstLooks = 4;
constexpr int64_t kLaterLooks = 8;

Deadline BoardDeadline() {
  return Deadline::After(std::chrono::seconds(1), "1s for other ranks' calls");
}

// A quarrel is told to the calls that wait, and by place to ranks that may be
// about to.
constexpr char kAnyCall[] = "any";
constexpr std::chrono::minutes kQuarrelTime(1);
constexpr std::chrono::seconds kLateTime(2);

// Of what ranks have told without waiting the last few are kept.
constexpr int64_t kPassed = 16;

std::string PassedKeyOf(const SharedCall& call) {
  const std::string number = absl::StrCat(call.number % kPassed);
  // Few, so that what was told of groups that are over does not pile up.
  return call.series.empty()
             ? number
             : absl::StrCat(call.series.substr(0, 1), "-", number);
}

// As it is told: names may have any characters, and be long.
SharedCall Canonical(SharedCall call) {
  call.place = StableHash(call.place);
  if (!call.series.empty()) call.series = StableHash(call.series);
  return call;
}

std::string Encode(absl::string_view stand, const SharedCall& call) {
  return absl::StrCat(stand, "\n", call.series, "\n", call.number, "\n",
                      call.place, "\n", absl::StrJoin(call.ranks, ","), "\n",
                      call.meaning);
}

std::optional<SharedCall> Decode(absl::string_view text,
                                 std::string* const stand) {
  const std::vector<std::string> fields =
      absl::StrSplit(text, absl::MaxSplits('\n', 5));
  SharedCall call;
  if (fields.size() != 6 || !absl::SimpleAtoi(fields[2], &call.number)) {
    return std::nullopt;
  }
  *stand = fields[0];
  call.series = fields[1];
  call.place = fields[3];
  for (const absl::string_view rank :
       absl::StrSplit(fields[4], ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(rank, &call.ranks.emplace_back())) {
      return std::nullopt;
    }
  }
  call.meaning = fields[5];
  return call;
}

}  // namespace

std::string StableHash(absl::string_view text) {
  // FNV-1a.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

std::string CallBoard::KeyOf(absl::string_view kind, const Entry& entry) const {
  return absl::StrCat(options_.key_prefix, kind, "/", entry.rank, "/",
                      entry.place, "/", entry.key);
}

void CallBoard::Tell(absl::string_view stand, const SharedCall& told) const {
  const SharedCall call = Canonical(told);
  const Entry entry = {.rank = options_.rank, .key = PassedKeyOf(call)};
  SetKey(options_.session->stream(), KeyOf(kCalls, entry), Encode(stand, call),
         {.ephemeral = true}, BoardDeadline())
      .IgnoreError();
}

void CallBoard::Pass(const SharedCall& call) const { Tell(kPasses, call); }

void CallBoard::Refuse(SharedCall call, const std::string& why) const {
  call.meaning = absl::StrCat("was refused: ", why);
  Tell(kRefused, call);
}

std::vector<CallBoard::Entry> CallBoard::Entries() const {
  const std::string prefix = absl::StrCat(options_.key_prefix, kCalls, "/");
  const auto keys =
      ListKeys(options_.session->stream(), prefix, BoardDeadline());
  std::vector<Entry> entries;
  if (!keys.ok()) return entries;
  for (const std::string& key : *keys) {
    const std::vector<std::string> parts =
        absl::StrSplit(absl::string_view(key).substr(prefix.size()), '/');
    Entry entry;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &entry.rank)) continue;
    entry.place = parts[1];
    entry.key = parts[2];
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Whether the other's rank cannot come to `call` as long as this one waits.
bool CallBoard::IsInTheWay(const SharedCall& call, const SharedCall& other,
                           bool waits, bool refused) const {
  const bool mutual =
      waits &&
      std::binary_search(other.ranks.begin(), other.ranks.end(), options_.rank);
  const bool same_number = call.number > 0 && call.number == other.number &&
                           call.series == other.series;
  if (!mutual && !same_number) return false;
  if (refused) return true;
  if (call.place == other.place) return false;
  std::vector<int> difference;
  std::set_symmetric_difference(call.ranks.begin(), call.ranks.end(),
                                other.ranks.begin(), other.ranks.end(),
                                std::back_inserter(difference));
  return difference.empty() ||
         !std::all_of(difference.begin(), difference.end(), options_.is_gone);
}

std::string CallBoard::NameOf(int rank) const {
  for (const Seat& seat : options_.seats) {
    if (seat.rank != rank) continue;
    return DescribeMember({.rank = rank, .host = seat.host, .pid = seat.pid},
                          /*in_world=*/true);
  }
  return absl::StrCat("rank ", rank);
}

absl::Status CallBoard::QuarrelWith(const SharedCall& call, const Entry& other,
                                    const std::vector<Entry>& entries) const {
  StreamSession& stream = options_.session->stream();
  const auto told = TryGetKey(stream, KeyOf(kCalls, other), BoardDeadline());
  // It has gone on meanwhile.
  if (!told.ok() || !told->has_value()) return absl::OkStatus();
  std::string stand;
  const auto theirs = Decode((*told)->value, &stand);
  if (!theirs.has_value() ||
      !IsInTheWay(call, *theirs, stand == kWaits, stand == kRefused)) {
    return absl::OkStatus();
  }
  const std::string text = absl::StrCat(
      "ranks do not mean the same by one call: ", NameOf(other.rank), " ",
      theirs->meaning, ", ", NameOf(options_.rank), " ", call.meaning);
  SpreadTo(call.ranks, call.place, entries, text);
  SpreadTo(theirs->ranks, other.place, entries, text);
  return absl::InvalidArgumentError(text);
}

// To the ranks that wait in one place, and those that are about to.
void CallBoard::SpreadTo(const std::vector<int>& ranks,
                         const std::string& place,
                         const std::vector<Entry>& entries,
                         const std::string& text) const {
  if (place.empty()) return;
  const auto tell = [&](const Entry& entry, std::chrono::milliseconds ttl) {
    SetKey(options_.session->stream(), KeyOf(kQuarrels, entry), text,
           {.ttl = ttl}, BoardDeadline())
        .IgnoreError();
  };
  std::set<int> here = {options_.rank};
  for (const Entry& entry : entries) {
    if (entry.place != place || entry.rank == options_.rank) continue;
    here.insert(entry.rank);
    tell(entry, kQuarrelTime);
  }
  for (const int rank : ranks) {
    if (here.contains(rank)) continue;
    tell({.rank = rank, .place = place, .key = kAnyCall}, kLateTime);
  }
}

CallBoard::Waiting::Waiting(const CallBoard* const board, SharedCall call)
    : board_(*board),
      call_(Canonical(std::move(call))),
      own_{.rank = board->options_.rank,
           .place = call_.place,
           .key = absl::StrCat(
               absl::Hex(std::random_device()(), absl::kZeroPad8))} {}

CallBoard::Waiting::~Waiting() {
  if (looks_ == 0) return;
  DeleteKey(board_.options_.session->stream(), board_.KeyOf(kCalls, own_),
            BoardDeadline())
      .status()
      .IgnoreError();
}

absl::Status CallBoard::Waiting::Look() {
  StreamSession& stream = board_.options_.session->stream();
  if (looks_++ == 0) {
    SetKey(stream, board_.KeyOf(kCalls, own_), Encode(kWaits, call_),
           {.ephemeral = true}, BoardDeadline())
        .IgnoreError();
  }
  Entry late = own_;
  late.key = kAnyCall;
  for (const Entry& entry : {own_, late}) {
    const auto told =
        TryGetKey(stream, board_.KeyOf(kQuarrels, entry), BoardDeadline());
    if (told.ok() && told->has_value()) {
      DeleteKey(stream, board_.KeyOf(kQuarrels, entry), BoardDeadline())
          .status()
          .IgnoreError();
      return absl::InvalidArgumentError((*told)->value);
    }
  }
  if (looks_ > kFirstLooks && looks_ % kLaterLooks != 0) {
    return absl::OkStatus();
  }
  const std::vector<Entry> entries = board_.Entries();
  std::set<int> here = {own_.rank};
  for (const Entry& entry : entries) {
    if (entry.place == own_.place) here.insert(entry.rank);
  }
  for (const Entry& other : entries) {
    if (here.contains(other.rank) ||
        (other.place.empty() && other.key != PassedKeyOf(call_)) ||
        !std::binary_search(call_.ranks.begin(), call_.ranks.end(),
                            other.rank)) {
      continue;
    }
    absl::Status quarrel = board_.QuarrelWith(call_, other, entries);
    if (!quarrel.ok()) return quarrel;
  }
  return absl::OkStatus();
}

}  // namespace muster::internal
