#include "client/control/group_name.h"

#include "absl/strings/str_cat.h"

namespace muster::internal {
namespace {

constexpr absl::string_view kSplit = ":split:";
constexpr absl::string_view kShrink = ":shrink:";

// Returns the position after the last `mark`; 0 if there is none.
size_t FindEnd(absl::string_view mark, absl::string_view name) {
  const size_t found = name.rfind(mark);
  return found == absl::string_view::npos ? 0 : found + mark.size();
}

}  // namespace

std::string NameOfSplit(absl::string_view parent, int64_t call, int part) {
  return absl::StrCat(parent, kSplit, call, ":", part);
}

std::string NameOfShrunk(absl::string_view parent, absl::string_view excluded) {
  return absl::StrCat(parent, kShrink, excluded);
}

std::string GetMaker(absl::string_view group_name) {
  const size_t split = FindEnd(kSplit, group_name);
  const size_t shrink = FindEnd(kShrink, group_name);
  if (split == shrink) return "new_group";
  return split > shrink ? "split_group" : "shrink_group";
}

}  // namespace muster::internal
