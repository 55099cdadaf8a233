#include "dataplane/failed_call.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "muster/dataplane/collective.h"

namespace muster::dataplane {
namespace {

// The payload is one of these characters, then the label.
constexpr char kOfTwoRanks = 'p';
constexpr char kOfAllRanks = 'c';

}  // namespace

FailedCall FailedCall::Of(const Collective& collective) {
  return {.label = collective.Label(),
          .is_point_to_point = IsPointToPoint(collective.kind)};
}

void SetFailedCall(Status& status, const FailedCall& call) {
  const char kind = call.is_point_to_point ? kOfTwoRanks : kOfAllRanks;
  status.SetPayload(kFailedCallUrl,
                    absl::StrCat(absl::string_view(&kind, 1), call.label));
}

std::optional<FailedCall> FindFailedCall(const Status& status) {
  const auto payload = status.GetPayload(kFailedCallUrl);
  if (!payload.has_value() || payload->empty()) return std::nullopt;
  return FailedCall{.label = payload->substr(1),
                    .is_point_to_point = payload->front() == kOfTwoRanks};
}

std::string MakeLabel(const FailedCall& call, absl::string_view group_name) {
  return absl::StrCat(call.label, " on group ", base::Quote(group_name));
}

Status Labelled(const FailedCall& call, absl::string_view group_name,
                const Status& failure) {
  Status labelled(failure.code(), absl::StrCat(MakeLabel(call, group_name),
                                               ": ", failure.message()));
  failure.ForEachPayload([&](const std::string& url, const std::string& value) {
    labelled.SetPayload(url, value);
  });
  SetFailedCall(labelled, call);
  return labelled;
}

}  // namespace muster::dataplane
