// The names of groups that are made from another group.

#ifndef MUSTER_CLIENT_CONTROL_GROUP_NAME_H_
#define MUSTER_CLIENT_CONTROL_GROUP_NAME_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::internal {

// A name shows how its group was made: PARENT:split:CALL:PART or
// PARENT:shrink:EXCLUDED (the last such suffix counts). All other names are
// from users. PARENT is "world" for the default group.
std::string NameOfSplit(absl::string_view parent, int64_t call, int part);
std::string NameOfShrunk(absl::string_view parent, absl::string_view excluded);

// Returns the function that makes such a group, in which its ranks wait for
// each other: "split_group", "shrink_group", else "new_group".
std::string GetMaker(absl::string_view group_name);

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_GROUP_NAME_H_
