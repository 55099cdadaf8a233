#ifndef MUSTER_DATAPLANE_BACKENDS_SHM_HOSTS_H_
#define MUSTER_DATAPLANE_BACKENDS_SHM_HOSTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::dataplane::shm_internal {

// Which ranks of a group are on which host. Hosts are numbered in the order of
// their first ranks, and the ranks of a host in their own; the same on all
// ranks of the group.
class Hosts {
 public:
  // `identities`, by rank: equal where the host is.
  Hosts(const std::vector<uint64_t>& identities, int rank);

  int count() const { return static_cast<int>(ranks_.size()); }
  int world_size() const { return static_cast<int>(host_of_.size()); }
  const std::vector<int>& ranks(int host) const { return ranks_[host]; }
  // The rank at `place` of `host`; -1: it has none there.
  int At(int host, size_t place) const {
    return place < ranks_[host].size() ? ranks_[host][place] : -1;
  }
  int host_of(int rank) const { return host_of_[rank]; }
  int place_of(int rank) const { return place_of_[rank]; }

  // This rank's.
  int own() const { return host_of_[rank_]; }
  int place() const { return place_of_[rank_]; }
  const std::vector<int>& neighbours() const { return ranks_[own()]; }

  // How many ranks each host has at least, and some host at most.
  size_t fewest() const { return fewest_; }
  size_t most() const { return most_; }

 private:
  const int rank_;
  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_;
  std::vector<int> place_of_;
  size_t fewest_ = 0;
  size_t most_ = 0;
};

}  // namespace muster::dataplane::shm_internal

#endif  // MUSTER_DATAPLANE_BACKENDS_SHM_HOSTS_H_
