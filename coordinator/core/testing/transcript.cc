#include "coordinator/core/testing/transcript.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fingerprint.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/testing/transcript_text.h"

namespace muster::coordinator::core {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::vector<std::string> Split(const std::string& text, char separator) {
  if (text.empty()) return {};
  return absl::StrSplit(text, separator);
}

int64_t Number(const std::string& text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : 0;
}

// `1500ms` or `30s`.
Duration ParseDuration(const std::string& text) {
  const size_t unit = text.find_first_not_of("0123456789");
  const int64_t count = Number(text.substr(0, unit));
  if (unit != std::string::npos && text.substr(unit) == "ms") {
    return milliseconds(count);
  }
  return seconds(count);
}

std::string Text(const std::string& word) {
  return absl::StrReplaceAll(word, {{"+", " "}});
}

// An RPC of verbs.inc.
struct Verb {
  bool mutates = false;
  bool may_wait = false;
};

// By name.
const std::map<std::string, Verb>& Verbs() {
  static const auto& verbs = *new std::map<std::string, Verb>{
#define MUSTER_OPERATION(service, name, field, role, mutates, may_wait, \
                         takes_long)                                    \
  {#name, {mutates, may_wait}},
#define MUSTER_RPC(service, name, role) {#name, {}},
#include "proto/muster/v1/verbs.inc"
  };
  return verbs;
}

// Player runs commands on one coordinator and writes down what comes out.
class Player {
 public:
  std::string Play(const std::string& line) {
    words_ = Split(line, ' ');
    verb_ = words_[0];
    arguments_.clear();
    for (size_t i = 1; i < words_.size(); ++i) {
      const std::pair<std::string, std::string> argument =
          absl::StrSplit(words_[i], absl::MaxSplits('=', 1));
      arguments_[argument.first] = argument.second;
    }
    log_.clear();
    if (!PlayTime() && !PlayMutation() && !PlayRead() && !PlayMember()) {
      return absl::StrCat("unknown command ", line, "\n");
    }
    Flush();
    Store();
    const muster::Status invariants = coordinator_->CheckInvariants();
    if (!invariants.ok()) absl::StrAppend(&log_, invariants.ToString(), "\n");
    return log_.empty() ? "-\n" : std::exchange(log_, "");
  }

 private:
  const std::string& Argument(const std::string& name) {
    return arguments_[name];
  }

  std::vector<std::string> Keys() { return Split(Argument("k"), ','); }

  Duration Timeout() { return ParseDuration(Argument("t")); }

  // `b/2`.
  static std::pair<MemberId, Incarnation> ParseMember(const std::string& word) {
    const std::vector<std::string> parts = Split(word, '/');
    if (parts.size() != 2) return {};
    return {MemberId(parts[0]),
            Incarnation(static_cast<uint64_t>(Number(parts[1])))};
  }

  Call NewCall() {
    Call call;
    std::tie(call.member, call.incarnation) =
        ParseMember(words_.size() > 1 ? words_[1] : "-");
    call.waiter = WaiterId(++waiter_);
    call.sequence =
        SequenceNumber(static_cast<uint64_t>(Number(Argument("seq"))));
    call.acknowledged_through =
        SequenceNumber(static_cast<uint64_t>(Number(Argument("ack"))));
    for (const std::string& number : Split(Argument("open"), ',')) {
      call.unanswered.emplace_back(static_cast<uint64_t>(Number(number)));
    }
    absl::StrAppend(&log_, "w", waiter_, "\n");
    return call;
  }

  WaiterId NamedWaiter() {
    return WaiterId(words_.size() > 1
                        ? static_cast<uint64_t>(Number(words_[1].substr(1)))
                        : 0);
  }

  bool PlayTime() {
    if (verb_ == "advance") {
      Advance(ParseDuration(words_.at(1)));
    } else if (verb_ == "cancel") {
      coordinator_->CancelWaiter(NamedWaiter(), out_);
    } else if (verb_ == "detach") {
      coordinator_->DetachWaiter(NamedWaiter(), out_);
    } else if (verb_ == "disconnect") {
      const auto [member, incarnation] = ParseMember(words_.at(1));
      coordinator_->Disconnected(member, incarnation, now_, out_);
    } else if (verb_ == "status") {
      Status();
    } else if (verb_ == "restart") {
      Restart();
    } else {
      return false;
    }
    return true;
  }

  // By verb.
  using StoreCalls =
      std::map<std::string,
               std::function<void(StoreEngine& store, const Call& call)>>;

  bool PlayOnStore(const StoreCalls& calls) {
    const auto found = calls.find(verb_);
    if (found == calls.end()) return false;
    const Verb& verb = Verbs().at(verb_);
    const Call call = NewCall();
    const auto run = [&](StoreEngine& store) { found->second(store, call); };
    if (!verb.mutates) {
      coordinator_->Read(call, now_, out_, run);
    } else if (verb.may_wait) {
      coordinator_->MutateAndPark(call, verb_, now_, out_, run);
    } else {
      coordinator_->Mutate(call, verb_, now_, out_, run);
    }
    return true;
  }

  bool PlayMutation() {
    const auto& key = Argument("k");
    return PlayOnStore({
        {"Set",
         [&](StoreEngine& store, const Call& call) {
           store.Set(call, key, Argument("v"), Options(), now_, out_);
         }},
        {"Append",
         [&](StoreEngine& store, const Call& call) {
           store.Append(call, key, Argument("v"), out_);
         }},
        {"Add",
         [&](StoreEngine& store, const Call& call) {
           store.Add(call, key, Number(Argument("by")), out_);
         }},
        {"CompareSet",
         [&](StoreEngine& store, const Call& call) {
           store.CompareSet(call, key, Argument("old"), Argument("new"), out_);
         }},
        {"CompareAndSet",
         [&](StoreEngine& store, const Call& call) {
           store.CompareAndSet(call, key, Number(Argument("at")), Argument("v"),
                               Options(), now_, out_);
         }},
        {"Delete", [&](StoreEngine& store,
                       const Call& call) { store.DeleteKey(call, key, out_); }},
        {"MultiSet",
         [&](StoreEngine& store, const Call& call) {
           store.MultiSet(call, Keys(), Split(Argument("v"), ','), out_);
         }},
        {"DeletePrefix",
         [&](StoreEngine& store, const Call& call) {
           store.DeletePrefix(call, Argument("prefix"), out_);
         }},
        {"QueuePush",
         [&](StoreEngine& store, const Call& call) {
           store.QueuePush(call, key, Argument("v"), out_);
         }},
        {"QueuePop",
         [&](StoreEngine& store, const Call& call) {
           store.QueuePop(call, key, OptionalDuration("t"), now_, out_);
         }},
    });
  }

  bool PlayRead() {
    const auto& key = Argument("k");
    return PlayOnStore({
        {"Get",
         [&](StoreEngine& store, const Call& call) {
           store.Get(call, key, Timeout(), now_, out_);
         }},
        {"TryGet", [&](StoreEngine& store,
                       const Call& call) { store.TryGet(call, key, out_); }},
        {"Check", [&](StoreEngine& store,
                      const Call& call) { store.Check(call, Keys(), out_); }},
        {"Wait",
         [&](StoreEngine& store, const Call& call) {
           store.Wait(call, Keys(), Timeout(), now_, out_);
         }},
        {"MultiGet",
         [&](StoreEngine& store, const Call& call) {
           store.MultiGet(call, Keys(), Timeout(), now_, out_);
         }},
        {"QueueLen",
         [&](StoreEngine& store, const Call& call) {
           store.QueueLen(call, key, out_);
         }},
        {"Watch",
         [&](StoreEngine& store, const Call& call) {
           store.Watch(call, Watched(), now_, out_);
         }},
        {"NumKeys", [&](StoreEngine& store,
                        const Call& call) { store.NumKeys(call, out_); }},
        {"ListKeys",
         [&](StoreEngine& store, const Call& call) {
           store.ListKeys(call, Argument("prefix"), Argument("after"),
                          Number(Argument("max")), out_);
         }},
    });
  }

  std::optional<Duration> OptionalDuration(const std::string& name) {
    if (!arguments_.contains(name)) return std::nullopt;
    return ParseDuration(Argument(name));
  }

  SetOptions Options() {
    return {.ttl = OptionalDuration("ttl"),
            .ephemeral = Argument("ephemeral") == "1"};
  }

  WatchRequest Watched() {
    WatchRequest request;
    request.selector.prefix = arguments_.contains("prefix");
    request.selector.key = Argument(request.selector.prefix ? "prefix" : "k");
    if (arguments_.contains("after")) request.after = Number(Argument("after"));
    request.timeout = Timeout();
    return request;
  }

  bool PlayMember() {
    const std::map<std::string, std::function<void(const Call& call)>> calls = {
        {"Register",
         [&](const Call& call) {
           coordinator_->Register(
               call,
               {.host = "host-" + call.member.value(),
                .pid = 100 * static_cast<int64_t>(call.incarnation.value())},
               now_, out_);
         }},
        {"Heartbeat",
         [&](const Call& call) {
           coordinator_->Heartbeat(call, Progress(), now_, out_);
         }},
        {"Leave",
         [&](const Call& call) {
           coordinator_->Leave(call, Text(Argument("why")), now_, out_);
         }},
        {"ReportFailure",
         [&](const Call& call) {
           coordinator_->ReportFailure(call, {.text = Text(Argument("why"))},
                                       now_, out_);
         }},
        {"ReportGroupFailure",
         [&](const Call& call) { ReportGroupFailure(call); }},
        {"Join", [&](const Call& call) { Join(call); }},
        {"CloseRendezvous",
         [&](const Call& call) {
           coordinator_->CloseRendezvous(call, Text(Argument("why")), now_,
                                         out_);
         }},
        {"RegisterGroups", [&](const Call& call) { RegisterGroups(call); }},
        {"AwaitBarrier", [&](const Call& call) { AwaitBarrier(call); }},
    };
    const auto found = calls.find(verb_);
    if (found == calls.end() || !Verbs().contains(verb_)) return false;
    found->second(NewCall());
    return true;
  }

  // `kind=timeout why=TEXT blames=1,2 group=NAME ran=OP:SHAPE late=1
  // over=10ms wait=1s`.
  void ReportGroupFailure(const Call& call) {
    static const auto* const kKinds =
        new std::map<std::string, GroupFailureKind>{
            {"symptom", GroupFailureKind::kSymptom},
            {"timeout", GroupFailureKind::kTimeout},
            {"mismatch", GroupFailureKind::kMismatch},
            {"decision", GroupFailureKind::kDecision}};
    GroupFailureReport report;
    report.generation = Generation(Number(Argument("generation")));
    report.group = Argument("group");
    report.instance = Argument("instance");
    report.kind = kKinds->at(Argument("kind"));
    report.error.text = Text(Argument("why"));
    report.error.verdict = AbortedError("");
    report.culprits = ParseRanks(Argument("blames"));
    report.call = "all_reduce #5";
    if (const std::vector<std::string> ran = Split(Argument("ran"), ':');
        ran.size() == 2) {
      const base::Fingerprint print = {
          .common = {{"op", ran[0]}, {"sequence", "5"}, {"shape", ran[1]}},
          .description = absl::StrCat(ran[0], " #5 ", ran[1])};
      report.fingerprint = print.Serialize();
    }
    report.wait = OptionalDuration("wait").value_or(seconds(2));
    report.overtime = OptionalDuration("over").value_or(Duration::zero());
    report.late = Argument("late") == "1";
    coordinator_->ReportGroupFailure(call, std::move(report), now_, out_);
  }

  void Join(const Call& call) {
    JoinRequest request;
    if (arguments_.contains("rank")) request.rank = ParseRank();
    request.world_size = static_cast<int32_t>(Number(Argument("world")));
    request.min_world_size = static_cast<int32_t>(Number(Argument("min")));
    request.max_world_size = static_cast<int32_t>(Number(Argument("max")));
    request.last_call = OptionalDuration("last");
    request.address = "at-" + call.member.value();
    request.timeout = Timeout();
    coordinator_->Join(call, std::move(request), now_, out_);
  }

  Rank ParseRank() {
    return Rank(static_cast<int32_t>(Number(Argument("rank"))));
  }

  // `group:enqueued:completed:current`.
  std::vector<GroupProgress> Progress() {
    const std::vector<std::string> parts = Split(Argument("progress"), ':');
    if (parts.size() != 4) return {};
    return {{.group = parts[0],
             .last_enqueued = Number(parts[1]),
             .last_completed = Number(parts[2]),
             .current = Text(parts[3])}};
  }

  std::vector<Rank> ParseRanks(const std::string& words) {
    std::vector<Rank> ranks;
    for (const std::string& rank : Split(words, ',')) {
      ranks.push_back(Rank(static_cast<int32_t>(Number(rank))));
    }
    return ranks;
  }

  // `waits=new:1:0,1 does=makes+x`.
  std::optional<GroupCall> ParseGroupCall() {
    static const auto* const kStates =
        new std::map<std::string, GroupCallState>{
            {"waits", GroupCallState::kWaits},
            {"still", GroupCallState::kStillWaits},
            {"passes", GroupCallState::kPasses},
            {"refused", GroupCallState::kRefused},
            {"gave_up", GroupCallState::kGaveUp}};
    for (const auto& [word, state] : *kStates) {
      const std::vector<std::string> parts = Split(Argument(word), ':');
      if (parts.empty()) continue;
      GroupCall call{
          .series = parts.at(0),
          .number = Number(parts.at(1)),
          .state = state,
          .callers = static_cast<int32_t>(Number(Argument("callers"))),
          .arguments = Text(Argument("does"))};
      if (parts.size() > 2) call.ranks = ParseRanks(parts.at(2));
      // As a client's hash, which need not be a good one.
      for (const char c : call.arguments) {
        call.arguments_hash =
            call.arguments_hash * 31 + static_cast<uint8_t>(c);
      }
      return call;
    }
    return std::nullopt;
  }

  // `of=tp0:0,1;dp0:0,2 left=pp0,pp1`.
  void RegisterGroups(const Call& call) {
    GroupsRequest request = {
        .generation = Generation(Number(Argument("generation"))),
        .left = Split(Argument("left"), ','),
        .call = ParseGroupCall()};
    for (const std::string& word : Split(Argument("of"), ';')) {
      const std::vector<std::string> parts = Split(word, ':');
      request.groups.push_back(
          {parts.at(0), ParseRanks(parts.at(1)), Text(Argument("about"))});
    }
    coordinator_->RegisterGroups(call, std::move(request), now_, out_);
  }

  void AwaitBarrier(const Call& call) {
    BarrierRequest request;
    request.generation = Generation(Number(Argument("generation")));
    request.group = Argument("group");
    request.barrier = Argument("name");
    request.ranks = ParseRanks(Argument("ranks"));
    request.rank = ParseRank();
    request.timeout = Timeout();
    request.wait_all_ranks = Argument("all") == "1";
    coordinator_->Arrive(call, request, now_, out_);
  }

  void Advance(Duration duration) {
    const Instant end = now_ + duration;
    while (true) {
      const std::optional<Instant> due = coordinator_->NextDeadline();
      const Instant beat = now_ + seconds(1);
      now_ = std::max(now_, std::min({end, beat, due.value_or(end)}));
      // Heartbeats due at the same time as a deadline come before it.
      Outbox beats;
      for (const std::string& word : Split(Argument("alive"), ',')) {
        Call call;
        std::tie(call.member, call.incarnation) = ParseMember(word);
        coordinator_->Heartbeat(call, {}, now_, beats);
      }
      coordinator_->Tick(now_, out_);
      Flush();
      if (now_ >= end) return;
    }
  }

  // The new coordinator begins with every change so far, applied in order.
  void Restart() {
    Store();
    std::vector<Record> records;
    for (const auto& [name, record] : stored_) records.push_back(record);
    coordinator_ = NewCoordinator();
    coordinator_->Restore(std::move(records), now_);
  }

  void Store() {
    for (Record& record : coordinator_->TakeChanges()) {
      const std::string name = std::visit(NameVisitor(), record);
      if (IsErased(record)) {
        stored_.erase(name);
      } else {
        stored_.insert_or_assign(name, std::move(record));
      }
    }
  }

  static std::unique_ptr<Coordinator> NewCoordinator() {
    CoordinatorOptions options;
    options.durable = true;
    options.membership.reconnect_grace = std::chrono::seconds(1);
    return std::make_unique<Coordinator>(CoordinatorEpoch(7), options);
  }

  struct NameVisitor {
    std::string operator()(const JobRecord&) { return "job"; }
    std::string operator()(const EntryRecord& of) { return "key " + of.key; }
    std::string operator()(const ItemRecord& of) {
      return absl::StrCat("item ", of.number, " of ", of.key);
    }
    std::string operator()(const StoreRecord&) { return "store"; }
    std::string operator()(const ChangeRecord& of) {
      return absl::StrCat("change ", of.revision, " of ", of.key);
    }
    std::string operator()(const MemberRecord& of) {
      return "member " + of.id.value();
    }
    std::string operator()(const ReplyRecord& of) {
      return absl::StrCat("reply ", of.member.value(), " ",
                          of.sequence.value());
    }
    std::string operator()(const GenerationRecord&) { return "generation"; }
    std::string operator()(const SeriesRecord& of) {
      return absl::StrCat("series ", of.group, " ", of.barrier);
    }
    std::string operator()(const DecisionRecord& of) {
      return absl::StrCat("decision ", of.group, " ", of.barrier, " ",
                          of.instance);
    }
    std::string operator()(const TakenRecord& of) {
      return absl::StrCat("taken ", of.group, " ", of.barrier, " ",
                          of.rank.value());
    }
    std::string operator()(const GroupRecord& of) { return "group " + of.name; }
    std::string operator()(const GroupRankRecord& of) {
      return absl::StrCat("rank ", of.rank.value(), " of ", of.group);
    }
    std::string operator()(const GroupFailureRecord& of) {
      return absl::StrCat("failure ", of.group, " ", of.instance);
    }
  };

  void Status() {
    const JobSnapshot job = coordinator_->Snapshot(now_);
    absl::StrAppend(
        &log_, "generation ", job.generation.value(),
        job.generation_running ? " running" : " over",
        " world=", job.world_size, " joined=", job.joined, "/",
        job.forming_world_size, " keys=", job.keys,
        job.queue_items == 0 ? "" : absl::StrCat(" items=", job.queue_items),
        " bytes=", job.store_bytes, " revision=", job.revision,
        " waiters=", job.waiters, " retained=", job.retained_replies, "\n");
    if (job.last_call_remaining.has_value()) {
      absl::StrAppend(&log_, "last call: from ", job.forming_min_world_size,
                      " on, ends in ", FormatDuration(*job.last_call_remaining),
                      "\n");
    }
    if (!job.rendezvous_closed.empty()) {
      absl::StrAppend(&log_, "closed by ", job.rendezvous_closed, "\n");
    }
    for (const MemberSnapshot& member : job.members) {
      absl::StrAppend(
          &log_, "member ", member.id.value(), "/", member.incarnation.value(),
          " ", MemberStateName(member.state), " rank=",
          member.rank.has_value() ? absl::StrCat(member.rank->value()) : "-",
          " heard=", FormatDuration(member.heard_ago), " ago\n");
    }
    for (const GroupSnapshot& group : job.groups) {
      absl::StrAppend(
          &log_, "group ", group.name, " of ", Ranks(*group.ranks), " ",
          group.registered, "/", group.ranks->size(),
          group.missing.empty() ? "" : " missing=" + Ranks(group.missing),
          group.description.empty() ? "" : ": ", group.description, "\n");
    }
    for (const BarrierSnapshot& barrier : job.barriers) {
      absl::StrAppend(&log_, "barrier ", barrier.barrier, " #",
                      barrier.instance, " ", barrier.arrived, "/",
                      barrier.expected,
                      " remaining=", FormatDuration(barrier.remaining),
                      " missing=", Ranks(barrier.missing), "\n");
    }
  }

  // Appends the contents of the outbox to the log: answers, then events, then
  // notices.
  void Flush() {
    for (const Reply& reply : out_.replies) log_ += ToText(reply);
    for (const Publication& event : out_.events) log_ += ToText(event);
    for (const Notice& notice : out_.notices) {
      absl::StrAppend(&log_, "notice ", NoticeKindName(notice.kind), " ",
                      notice.text, "\n");
    }
    out_.Clear();
  }

  Instant now_{seconds(1000)};
  std::unique_ptr<Coordinator> coordinator_ = NewCoordinator();
  std::map<std::string, Record> stored_;
  Outbox out_;
  uint64_t waiter_ = 0;

  // The current command.
  std::vector<std::string> words_;
  std::string verb_;
  std::map<std::string, std::string> arguments_;
  std::string log_;
};

}  // namespace

std::string Replay(absl::string_view transcript) {
  Player player;
  std::string replayed;
  bool answers = false;  // in the lines that are replaced
  std::string log;
  const std::vector<std::string> lines =
      absl::StrSplit(absl::StripSuffix(transcript, "\n"), '\n');
  for (const std::string& line : lines) {
    if (line.empty()) {
      absl::StrAppend(&replayed, "\n");
      answers = false;
    } else if (line[0] == '#') {
      absl::StrAppend(&replayed, line, "\n");
    } else if (line == "----") {
      absl::StrAppend(&replayed, line, "\n", std::exchange(log, ""));
      answers = true;
    } else if (!answers) {
      absl::StrAppend(&replayed, line, "\n");
      absl::StrAppend(&log, player.Play(line));
    }
  }
  return replayed;
}

}  // namespace muster::coordinator::core
