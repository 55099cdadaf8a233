// Determines which ranks of a group are on which host.

#ifndef MUSTER_DATAPLANE_CPU_SHM_TOPOLOGY_H_
#define MUSTER_DATAPLANE_CPU_SHM_TOPOLOGY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "muster/base/status.h"

namespace muster::dataplane::shm {

// Identifies the host that a rank runs on, as the rank tells the others.
struct HostIdentity {
  // Equal for ranks on one host; never 0.
  uint64_t host = 0;
  // Equal for ranks in one pid namespace; 0: unknown.
  uint64_t processes = 0;
};

// Ranks are on one host if they have the same boot of the system and the same
// network namespace, because other parts, too, treat another address as another
// host. `address`, if not empty, must be the same as well. `root` is the
// system's root directory, for tests. Errors: kFailedPrecondition if the system
// does not tell; the text names the file.
StatusOr<HostIdentity> IdentifyHost(absl::string_view address,
                                    const std::string& root = "");

// The assignment of a group's ranks to hosts. Hosts are numbered in the order
// of their first ranks, and the ranks of a host in rank order; the numbers are
// the same on all ranks of the group.
class Topology {
 public:
  // `identities`, by rank: equal for ranks on one host.
  Topology(const std::vector<uint64_t>& identities, int rank);

  int count() const { return static_cast<int>(ranks_.size()); }
  int world_size() const { return static_cast<int>(host_of_.size()); }
  const std::vector<int>& ranks(int host) const { return ranks_[host]; }
  // The rank at `place` of `host`, or -1.
  int At(int host, size_t place) const {
    return place < ranks_[host].size() ? ranks_[host][place] : -1;
  }
  int host_of(int rank) const { return host_of_[rank]; }
  int place_of(int rank) const { return place_of_[rank]; }

  // This rank's host, its place there, and the ranks of that host.
  int own() const { return host_of_[rank_]; }
  int place() const { return place_of_[rank_]; }
  const std::vector<int>& neighbours() const { return ranks_[own()]; }

  // The smallest and the largest number of ranks on a host.
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

// The reason why ranks of one host cannot find each other's memory, by their
// `identities`, by rank; empty if there is none.
std::string DescribeStrangers(const Topology& hosts,
                              const std::vector<HostIdentity>& identities);

}  // namespace muster::dataplane::shm

#endif  // MUSTER_DATAPLANE_CPU_SHM_TOPOLOGY_H_
