#include "client/groups/call_registry.h"

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
#include "client/control/deadline.h"
#include "client/control/verbs.h"
#include "client/groups/error_resolver.h"

namespace muster::internal {

namespace {

// The state of a rank in a call: it waits, it passed without waiting, it was
// refused, or it left after it learned of a conflict.
constexpr absl::string_view kWaits = "waits";
constexpr absl::string_view kPasses = "passes";
constexpr absl::string_view kRefused = "refused";
constexpr absl::string_view kDisagreed = "quarrelled";

// The kinds of keys: published calls, questions to ranks, and conflicts.
constexpr char kCalls[] = "calls";
constexpr char kQuestions[] = "questions";
constexpr char kDisagreements[] = "quarrels";

// The first polls read all entries, later only one of kLaterPolls: other ranks
// compare calls when they come themselves.
constexpr int64_t kFirstPolls = 4;
constexpr int64_t kLaterPolls = 8;

Deadline AnswerDeadline() {
  return Deadline::After(std::chrono::seconds(1), "1s for other ranks' calls");
}

// How long questions and conflicts stay for their readers.
constexpr std::chrono::minutes kMessageTime(1);

// How many entries of calls without a wait each rank keeps.
constexpr int64_t kPassed = 16;

// No rank makes more groups within the lease of a stopped rank.
constexpr size_t kComeToMax = 4096;

std::string MakePassedKey(const SharedCall& call) {
  if (call.number == 0) return absl::StrCat("by-", call.series);
  const std::string number = absl::StrCat(call.number % kPassed);
  // The number wraps, so that entries about ended groups do not pile up.
  return call.series.empty()
             ? number
             : absl::StrCat(call.series.substr(0, 1), "-", number);
}

// The published form: names may be long and have any characters.
SharedCall Canonical(SharedCall call) {
  if (call.instance.empty()) call.instance = call.place;
  for (std::string* const name : {&call.place, &call.series, &call.instance}) {
    if (!name->empty()) *name = StableHash(*name);
  }
  return call;
}

std::string NewId() {
  return absl::StrCat(absl::Hex(std::random_device()(), absl::kZeroPad8));
}

bool IsSameCall(const SharedCall& one, const SharedCall& other) {
  return one.number == other.number && one.series == other.series &&
         (one.number > 0 || !one.series.empty());
}

}  // namespace

struct CallRegistry::Told {
  std::string stand;
  int rank = -1;
  // Identifies a refusal or a conflict in all entries.
  std::string id = {};
  // Canonical. In kDisagreed the meaning is the text of the conflict.
  SharedCall call = {};

  std::string Encode() const {
    return absl::StrCat(stand, "\n", rank, "\n", id, "\n", call.series, "\n",
                        call.number, "\n", call.place, "\n", call.instance,
                        "\n", absl::StrJoin(call.ranks, ","), "\n",
                        call.meaning);
  }

  static std::optional<Told> Decode(absl::string_view text) {
    const std::vector<std::string> fields =
        absl::StrSplit(text, absl::MaxSplits('\n', 8));
    Told told;
    if (fields.size() != 9 || !absl::SimpleAtoi(fields[1], &told.rank) ||
        !absl::SimpleAtoi(fields[4], &told.call.number)) {
      return std::nullopt;
    }
    told.stand = fields[0];
    told.id = fields[2];
    told.call.series = fields[3];
    told.call.place = fields[5];
    told.call.instance = fields[6];
    for (const absl::string_view rank :
         absl::StrSplit(fields[7], ',', absl::SkipEmpty())) {
      if (!absl::SimpleAtoi(rank, &told.call.ranks.emplace_back())) {
        return std::nullopt;
      }
    }
    told.call.meaning = fields[8];
    return told;
  }
};

std::string StableHash(absl::string_view text) {
  // FNV-1a.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

std::string CallRegistry::MakeKey(absl::string_view kind,
                                  const Entry& entry) const {
  return absl::StrCat(options_.key_prefix, kind, "/", entry.rank, "/",
                      entry.place, "/", entry.key);
}

std::optional<CallRegistry::Told> CallRegistry::Read(absl::string_view kind,
                                                     const Entry& entry) const {
  const auto told = TryGetKey(options_.session->stream(), MakeKey(kind, entry),
                              AnswerDeadline());
  if (!told.ok() || !told->has_value()) return std::nullopt;
  return Told::Decode((*told)->value);
}

bool CallRegistry::Write(absl::string_view kind, const Entry& entry,
                         const Told& told, const SetOptions& options) const {
  return SetKey(options_.session->stream(), MakeKey(kind, entry), told.Encode(),
                options, AnswerDeadline())
      .ok();
}

// Publishes an entry for ranks that come to the call later.
void CallRegistry::Leave(Told told) const {
  told.rank = options_.rank;
  Write(kCalls, {.rank = options_.rank, .key = MakePassedKey(told.call)}, told,
        {.ephemeral = true});
}

void CallRegistry::Pass(const SharedCall& call) const {
  Leave({.stand = std::string(kPasses), .call = Canonical(call)});
}

void CallRegistry::Refuse(SharedCall call, const std::string& why) const {
  call.meaning = absl::StrCat("was refused: ", why);
  Leave({.stand = std::string(kRefused),
         .id = NewId(),
         .call = Canonical(std::move(call))});
}

std::vector<CallRegistry::Entry> CallRegistry::Entries() const {
  const std::string prefix = absl::StrCat(options_.key_prefix, kCalls, "/");
  const auto keys =
      ListKeys(options_.session->stream(), prefix, AnswerDeadline());
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

// Whether the calls meet at different places, and not only because ranks are
// gone.
bool CallRegistry::MeetElsewhere(const SharedCall& call,
                                 const SharedCall& other) const {
  if (call.place == other.place) return false;
  std::vector<int> difference;
  std::set_symmetric_difference(call.ranks.begin(), call.ranks.end(),
                                other.ranks.begin(), other.ranks.end(),
                                std::back_inserter(difference));
  return difference.empty() ||
         !std::all_of(difference.begin(), difference.end(), options_.is_gone);
}

// Whether `other`, in which its rank waits, needs this rank to complete, as far
// as this rank knows.
bool CallRegistry::WaitsForThisRank(const SharedCall& other) const {
  if (!std::binary_search(other.ranks.begin(), other.ranks.end(),
                          options_.rank)) {
    return false;
  }
  MutexLock lock(mutex_);
  return std::find(come_to_.begin(), come_to_.end(), other.instance) ==
         come_to_.end();
}

std::string CallRegistry::GetName(int rank) const {
  for (const Seat& seat : options_.seats) {
    if (seat.rank != rank) continue;
    return DescribeMember({.rank = rank, .host = seat.host, .pid = seat.pid},
                          /*in_world=*/true);
  }
  return absl::StrCat("rank ", rank);
}

Status CallRegistry::LookAt(const SharedCall& call, const Entry& other,
                            const std::vector<Entry>& entries) {
  const std::optional<Told> told = Read(kCalls, other);
  // The other rank has gone on meanwhile.
  if (!told.has_value()) return OkStatus();
  const bool same = IsSameCall(call, told->call);
  if (told->stand == kRefused || told->stand == kDisagreed) {
    return same && !HasHeard(*told) ? TellDisagreement(call, *told, entries)
                                    : OkStatus();
  }
  if (!MeetElsewhere(call, told->call)) return OkStatus();
  if (same && call.number > 0) return TellDisagreement(call, *told, entries);
  if (told->stand == kWaits && WaitsForThisRank(told->call)) {
    Write(kQuestions, other,
          {.stand = std::string(kWaits), .rank = options_.rank, .call = call},
          {.ttl = kMessageTime});
  }
  return OkStatus();
}

// Answers a rank that waits in another call for this rank, and asks whether
// this rank has come to that call.
Status CallRegistry::Answer(const SharedCall& call, const Told& asker) {
  if (!MeetElsewhere(call, asker.call) || !WaitsForThisRank(asker.call)) {
    return OkStatus();
  }
  return TellDisagreement(call, asker, Entries());
}

Status CallRegistry::TellDisagreement(const SharedCall& call, const Told& other,
                                      const std::vector<Entry>& entries) {
  Told disagreement = {.stand = std::string(kDisagreed),
                       .rank = options_.rank,
                       .id = other.id.empty() ? NewId() : other.id};
  disagreement.call.meaning =
      other.stand == kDisagreed
          ? other.call.meaning
          : absl::StrCat("ranks do not mean the same by one call: ",
                         GetName(other.rank), " ", other.call.meaning, ", ",
                         GetName(options_.rank), " ", call.meaning);
  for (const Entry& entry : entries) {
    const bool concerned =
        entry.place == call.place ||
        (other.stand == kWaits && entry.place == other.call.place);
    if (concerned && entry.rank != options_.rank) {
      Write(kDisagreements, entry, disagreement, {.ttl = kMessageTime});
    }
  }
  return ReadConflict(call, disagreement);
}

Status CallRegistry::ReadConflict(const SharedCall& call,
                                  const Told& disagreement) {
  {
    MutexLock lock(mutex_);
    heard_.insert(disagreement.id);
  }
  Told left = disagreement;
  left.call.number = call.number;
  left.call.series = call.series;
  Leave(std::move(left));
  return InvalidArgumentError(disagreement.call.meaning);
}

bool CallRegistry::HasHeard(const Told& disagreement) const {
  MutexLock lock(mutex_);
  return heard_.contains(disagreement.id);
}

CallRegistry::Waiting::Waiting(CallRegistry* const registry, SharedCall call)
    : registry_(*registry),
      call_(Canonical(std::move(call))),
      own_{.rank = registry->options_.rank,
           .place = call_.place,
           .key = NewId()} {
  MutexLock lock(registry_.mutex_);
  registry_.come_to_.push_back(call_.instance);
  if (registry_.come_to_.size() > kComeToMax) registry_.come_to_.pop_front();
}

CallRegistry::Waiting::~Waiting() {
  if (!succeeded_) {
    MutexLock lock(registry_.mutex_);
    std::erase(registry_.come_to_, call_.instance);
  }
  if (!told_) return;
  DeleteKey(registry_.options_.session->stream(),
            registry_.MakeKey(kCalls, own_), AnswerDeadline())
      .status()
      .IgnoreError();
}

Status CallRegistry::Waiting::Look() {
  // Also repeats a write that failed.
  if (!told_) {
    told_ = registry_.Write(
        kCalls, own_,
        {.stand = std::string(kWaits), .rank = own_.rank, .call = call_},
        {.ephemeral = true});
  }
  const auto disagreement = registry_.Read(kDisagreements, own_);
  if (disagreement.has_value() && !registry_.HasHeard(*disagreement)) {
    return registry_.ReadConflict(call_, *disagreement);
  }
  if (const auto asker = registry_.Read(kQuestions, own_); asker.has_value()) {
    DeleteKey(registry_.options_.session->stream(),
              registry_.MakeKey(kQuestions, own_), AnswerDeadline())
        .status()
        .IgnoreError();
    Status answer = registry_.Answer(call_, *asker);
    if (!answer.ok()) return answer;
  }
  if (++polls_ > kFirstPolls && polls_ % kLaterPolls != 0) {
    return OkStatus();
  }
  const std::vector<Entry> entries = registry_.Entries();
  std::set<int> here = {own_.rank};
  for (const Entry& entry : entries) {
    if (entry.place == own_.place) here.insert(entry.rank);
  }
  for (const Entry& other : entries) {
    if (here.contains(other.rank) ||
        (other.place.empty() && other.key != MakePassedKey(call_)) ||
        !std::binary_search(call_.ranks.begin(), call_.ranks.end(),
                            other.rank)) {
      continue;
    }
    Status seen = registry_.LookAt(call_, other, entries);
    if (!seen.ok()) return seen;
  }
  return OkStatus();
}

}  // namespace muster::internal
