#include "dataplane/backends/shm/hosts.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace muster::dataplane::shm_internal {

Hosts::Hosts(const std::vector<uint64_t>& identities, int rank) : rank_(rank) {
  std::map<uint64_t, int> numbers;
  for (const uint64_t identity : identities) {
    const int host = numbers.emplace(identity, static_cast<int>(numbers.size()))
                         .first->second;
    if (host == count()) ranks_.emplace_back();
    place_of_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(static_cast<int>(host_of_.size()));
    host_of_.push_back(host);
  }
  fewest_ = identities.size();
  for (const std::vector<int>& ranks : ranks_) {
    fewest_ = std::min(fewest_, ranks.size());
    most_ = std::max(most_, ranks.size());
  }
}

}  // namespace muster::dataplane::shm_internal
