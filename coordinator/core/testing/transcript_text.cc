#include "coordinator/core/testing/transcript_text.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "coordinator/core/instant.h"
#include "coordinator/core/payload.h"

namespace muster::coordinator::core {

std::string Ranks(const std::vector<MissingRank>& missing) {
  return absl::StrJoin(missing, ",", [](std::string* out, const auto& rank) {
    absl::StrAppend(out, rank.rank.value());
  });
}

std::string Ranks(const std::vector<Rank>& ranks) {
  return absl::StrJoin(ranks, ",", [](std::string* out, Rank rank) {
    absl::StrAppend(out, rank.value());
  });
}

namespace {

std::string Quoted(const Value& value) {
  return value == nullptr ? "(absent)" : base::Quote(*value);
}

absl::string_view ChangeName(ChangeKind kind) {
  switch (kind) {
    case ChangeKind::kPut:
      return "put";
    case ChangeKind::kDeleted:
      return "deleted";
    case ChangeKind::kExpired:
      return "expired";
    case ChangeKind::kOrphaned:
      return "orphaned";
  }
  return "unknown";
}

std::string FailureText(const GroupFailure& failure) {
  const FailureReport& error = failure.error;
  std::string text = absl::StrCat(
      " group ", base::Quote(failure.group), failure.instance,
      failure.error.verdict.ok() ? " has trouble: " : " failed: ", error.text);
  if (error.culprits == nullptr) return text;
  return absl::StrCat(text, " culprits=", Ranks(error.culprits->missing),
                      error.culprits->others.empty() ? "" : ",...");
}

struct Describe {
  std::string operator()(std::monostate) { return ""; }
  std::string operator()(const RevisionReply& reply) {
    return absl::StrCat(" r", reply.revision);
  }
  std::string operator()(const ValueReply& reply) {
    return absl::StrCat(" ", Quoted(reply.value), " r", reply.revision);
  }
  std::string operator()(const ValuesReply& reply) {
    std::string text;
    for (const ValueReply& value : reply.values) text += (*this)(value);
    return text;
  }
  std::string operator()(const NumberReply& reply) {
    return absl::StrCat(" ", reply.number, " r", reply.revision);
  }
  std::string operator()(const FlagReply& reply) {
    return absl::StrCat(reply.flag ? " true" : " false", " r", reply.revision);
  }
  std::string operator()(const CompareSetReply& reply) {
    return absl::StrCat(" ", Quoted(reply.value),
                        reply.stored ? " stored" : " kept", " r",
                        reply.revision);
  }
  std::string operator()(const KeysReply& reply) {
    return absl::StrCat(" ", absl::StrJoin(reply.keys, ","),
                        reply.more ? ",..." : "");
  }
  std::string operator()(const WatchReply& reply) {
    std::string text;
    for (const auto& change : reply.changes) {
      absl::StrAppend(&text, " ", ChangeName(change->kind), " ", change->key);
      if (change->value != nullptr) {
        absl::StrAppend(&text, "=", Quoted(change->value));
      }
      absl::StrAppend(&text, " r", change->revision, ";");
    }
    return absl::StrCat(text, " through r", reply.revision);
  }
  std::string operator()(const RegisterReply& reply) {
    std::string text = absl::StrCat(" epoch=", reply.epoch.value(),
                                    " lease=", FormatDuration(reply.lease),
                                    " generation=", reply.generation.value(),
                                    reply.generation_running ? " running" : "");
    if (reply.rank.has_value()) {
      absl::StrAppend(&text, " rank=", reply.rank->value());
    }
    if (reply.waiting > 0) absl::StrAppend(&text, " waiting=", reply.waiting);
    return text;
  }
  std::string operator()(const HeartbeatReply& reply) {
    return absl::StrCat(
        " generation=", reply.generation.value(),
        reply.generation_running ? " running" : "",
        reply.waiting > 0 ? absl::StrCat(" waiting=", reply.waiting) : "");
  }
  std::string operator()(const FormationReply& reply) {
    return absl::StrCat(
        " generation=", reply->generation.value(), " world=",
        absl::StrJoin(
            reply->world, ",", [](std::string* out, const Seat& seat) {
              absl::StrAppend(out, seat.member.value(), "/",
                              seat.incarnation.value(), "@", seat.address);
            }));
  }
  std::string operator()(const GroupFailureReply& reply) {
    return reply == nullptr ? " no verdict yet" : FailureText(*reply);
  }
  // The error's text names the absent ranks.
  std::string operator()(const AbsenceReply&) { return ""; }
  std::string operator()(const GroupsReply& reply) {
    return absl::StrCat(" registered=", absl::StrJoin(reply.registered, ","));
  }
  std::string operator()(const BarrierReply& reply) {
    std::string text = absl::StrCat(" #", reply->instance, " ", reply->arrived,
                                    "/", reply->expected);
    if (!reply->missing.empty()) {
      absl::StrAppend(&text, " missing=", Ranks(reply->missing));
    }
    return text;
  }
};

}  // namespace

std::string ToText(const Reply& reply) {
  return absl::StrCat(
      "reply w", reply.waiter.value(), " ",
      reply.status.ok() ? "ok" : StatusCodeToString(reply.status.code()),
      std::visit(Describe(), reply.payload), reply.status.ok() ? "" : " ",
      reply.status.message(), "\n");
}

std::string ToText(const Publication& publication) {
  const Event& event = publication.event;
  const std::string audience = absl::StrJoin(
      *publication.audience, ",", [](std::string* out, const MemberId& id) {
        absl::StrAppend(out, id.value());
      });
  if (event.group_failure != nullptr) {
    return absl::StrCat("event to ", audience, ":",
                        FailureText(*event.group_failure), "\n");
  }
  std::string text =
      absl::StrCat("event to ", audience, ": ", event.member.value(), "/",
                   event.incarnation.value(), " ", EventKindName(event.kind));
  if (event.rank.has_value()) {
    absl::StrAppend(&text, ", rank ", event.rank->value(), " of");
  }
  absl::StrAppend(&text, event.rank.has_value() ? "" : ",", " generation ",
                  event.generation.value(),
                  event.generation_over ? " (over)" : "", ", ", event.host,
                  " pid ", event.pid, ": ", event.cause);
  if (event.together != nullptr) {
    absl::StrAppend(&text, " (", event.together->count,
                    " together: ", absl::StrJoin(event.together->ranks, ","),
                    ")");
  }
  if (event.waiting > 0) absl::StrAppend(&text, " (", event.waiting, " wait)");
  absl::StrAppend(&text, "\n");
  if (!event.last_progress.empty()) {
    absl::StrAppend(&text, "  last seen: ", event.last_progress, "\n");
  }
  return text;
}

}  // namespace muster::coordinator::core
