// A status as ranks tell it to each other, and the error that all of them
// throw.

#ifndef MUSTER_CLIENT_PARALLEL_CHECKPOINT_MESSAGES_H_
#define MUSTER_CLIENT_PARALLEL_CHECKPOINT_MESSAGES_H_

#include <algorithm>
#include <string>
#include <vector>

#include "client/control/throw.h"
#include "client/groups/group_state.h"
#include "muster/base/status.h"
#include "muster/process_group.h"
#include "nlohmann/json.hpp"

namespace muster::internal {

// Texts may have any bytes.
inline std::string ToBytes(const nlohmann::json& object) {
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

inline nlohmann::json ToJson(const Status& status) {
  return {{"code", static_cast<int>(status.code())},
          {"message", status.message()}};
}

inline Status StatusFromJson(const nlohmann::json& object) {
  return {static_cast<StatusCode>(object.at("code").get<int>()),
          object.at("message")};
}

// Throws DistError unless the status is OK. `ranks` are the global ranks of the
// group that are to blame.
inline void ThrowWithCulprits(const Status& status,
                              const std::vector<int>& ranks,
                              const ProcessGroup& group) {
  if (status.ok()) return;
  const std::vector<int> all = group.ranks();
  Culprits culprits;
  for (const int rank : ranks) {
    const auto at = std::find(all.begin(), all.end(), rank) - all.begin();
    culprits.members.push_back(group.state()->GetMember(static_cast<int>(at)));
  }
  Throw(ErrorSource::kControl, WithCulprits(status, culprits));
}

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_PARALLEL_CHECKPOINT_MESSAGES_H_
