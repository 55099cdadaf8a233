#include "client/parallel/shard/call_order.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace muster::internal {
namespace {

// A program that never ends a step must not fill the memory.
constexpr size_t kStepCallsMax = 4096;

// Splitmix64's finalizer: every bit of the result depends on all bits.
uint64_t Mix(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9U;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebU;
  return bits ^ (bits >> 31);
}

std::string GroupName(int group, const std::vector<std::string>& names) {
  const auto index = static_cast<size_t>(group);
  return index < names.size() ? base::Quote(names[index])
                              : absl::StrCat("group ", group);
}

}  // namespace

CallHeader CallOrder::Add(CallKind kind, int group) {
  last_.digest = Mix(last_.digest + 2 * static_cast<uint64_t>(group) +
                     static_cast<uint64_t>(kind) + 1);
  ++last_.number;
  last_.group = group;
  if (step_.size() < kStepCallsMax) step_.push_back({kind, group});
  return last_;
}

std::vector<std::string> CallOrder::ToText(
    const std::vector<std::string>& group_names) const {
  std::vector<std::string> lines;
  lines.reserve(step_.size());
  for (const Call& call : step_) {
    lines.push_back(
        absl::StrCat(call.kind == CallKind::kGather ? "gathered " : "reduced ",
                     GroupName(call.group, group_names)));
  }
  return lines;
}

std::string DescribeDifference(const std::vector<CallHeader>& headers,
                               const std::vector<int>& ranks,
                               const std::vector<std::string>& group_names) {
  size_t i = 1;
  while (i < headers.size() && headers[i] == headers[0]) ++i;
  if (i == headers.size()) return "";
  const auto describe = [&](size_t rank) {
    return absl::StrCat("global rank ", ranks[rank], " gathers ",
                        GroupName(headers[rank].group, group_names),
                        " as call ", headers[rank].number);
  };
  std::string text = absl::StrCat(describe(i), ", ", describe(0));
  if (headers[i].group == headers[0].group) {
    absl::StrAppend(&text, ", after calls that differ");
  }
  return text;
}

}  // namespace muster::internal
