// Chooses the CPUs on which the ranks of a host run (--numa-binding).

#ifndef MUSTER_WORKER_LAUNCHER_NUMA_H_
#define MUSTER_WORKER_LAUNCHER_NUMA_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "muster/base/status.h"

namespace muster::worker {

// A logical CPU that this process may use, and its location.
struct Cpu {
  int cpu = 0;
  int node = 0;     // NUMA node
  int socket = 0;   // physical package
  int core = 0;     // lowest CPU of the same core
  int complex = 0;  // lowest CPU with the same last-level cache
};

struct Topology {
  std::vector<Cpu> cpus;       // ascending
  std::vector<int> gpu_nodes;  // as GpuNodes
};

// Returns the NUMA node of each GPU that CUDA offers a process with
// `environment`, in CUDA's order; -1: not known. Without CUDA_VISIBLE_DEVICES
// these are all GPUs of the driver below `root` (empty except in tests), by PCI
// address; else those that it lists, up to the first that does not exist.
std::vector<int> GpuNodes(
    const std::string& root,
    const std::map<std::string, std::string>& environment);

// Returns this host's topology for the CPUs `allowed`, from the kernel's files
// below `root`. Values that are not there are 0, or the CPU itself.
Topology ReadTopology(const std::string& root, const std::set<int>& allowed,
                      const std::map<std::string, std::string>& environment);

// The CPUs that this process may use.
std::set<int> AllowedCpus();

// Returns the CPUs of each of `nproc` ranks, by local rank. Rank K is on the
// NUMA node of GPU K if there are as many GPUs as ranks; else the ranks are
// spread over the nodes, neighbours together. Values of `binding`:
//   node          all CPUs of that node;
//   socket        all CPUs of the socket of that node;
//   exclusive     cores of the node that no other rank has, in equal shares;
//   core-complex  the CPUs of one last-level cache of the node, in turn.
// Errors: FAILED_PRECONDITION (exclusive: fewer cores than ranks on a node; the
//   text has both).
StatusOr<std::vector<std::vector<int>>> BindRanks(const std::string& binding,
                                                  int nproc,
                                                  const Topology& topology);

}  // namespace muster::worker

#endif  // MUSTER_WORKER_LAUNCHER_NUMA_H_
