#include "worker/launcher/numa.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "muster/base/status.h"

namespace muster::worker {
namespace {

namespace fs = std::filesystem;

std::string ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> ReadNumber(const fs::path& path) {
  int number = 0;
  if (!absl::SimpleAtoi(ReadLine(path), &number)) return std::nullopt;
  return number;
}

// Parses the kernel's form `0-3,8`.
std::vector<int> ReadCpuList(const fs::path& path) {
  std::vector<int> cpus;
  for (const absl::string_view part :
       absl::StrSplit(ReadLine(path), ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last)) {
      continue;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

// Returns the names in `folder`, sorted; none if it does not exist.
std::vector<std::string> Names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int LastLevelCache(const fs::path& cpu_folder, int cpu) {
  int level = 0;
  int first = cpu;
  for (const std::string& name : Names(cpu_folder / "cache")) {
    const fs::path cache = cpu_folder / "cache" / name;
    const int this_level = ReadNumber(cache / "level").value_or(0);
    const std::vector<int> shared = ReadCpuList(cache / "shared_cpu_list");
    if (this_level <= level || shared.empty()) continue;
    level = this_level;
    first = shared.front();
  }
  return first;
}

// Returns the distinct values of `field`, ordered by their first CPU.
std::vector<int> Distinct(const std::vector<Cpu>& cpus, int Cpu::*field) {
  std::vector<int> values;
  for (const Cpu& cpu : cpus) {
    if (std::find(values.begin(), values.end(), cpu.*field) == values.end()) {
      values.push_back(cpu.*field);
    }
  }
  return values;
}

std::vector<Cpu> With(const std::vector<Cpu>& cpus, int Cpu::*field,
                      int value) {
  std::vector<Cpu> found;
  for (const Cpu& cpu : cpus) {
    if (cpu.*field == value) found.push_back(cpu);
  }
  return found;
}

std::vector<int> Numbers(const std::vector<Cpu>& cpus) {
  std::vector<int> numbers;
  for (const Cpu& cpu : cpus) numbers.push_back(cpu.cpu);
  return numbers;
}

struct Gpu {
  std::string uuid;  // "GPU-..."
  int node = -1;
};

// Ordered by PCI address.
std::vector<Gpu> AllGpus(const std::string& root) {
  const fs::path folder = root + "/proc/driver/nvidia/gpus";
  std::vector<Gpu> gpus;
  for (const std::string& bus : Names(folder)) {
    Gpu gpu;
    gpu.node =
        ReadNumber(fs::path(root + "/sys/bus/pci/devices") / bus / "numa_node")
            .value_or(-1);
    std::ifstream information(folder / bus / "information");
    for (std::string line; std::getline(information, line);) {
      absl::string_view rest = line;
      if (!absl::ConsumePrefix(&rest, "GPU UUID:")) continue;
      gpu.uuid = std::string(absl::StripAsciiWhitespace(rest));
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

// Returns the node of the device `name` of CUDA_VISIBLE_DEVICES; nullopt if
// there is no such device.
std::optional<int> NodeOfDevice(const std::vector<Gpu>& gpus,
                                absl::string_view name) {
  size_t number = 0;
  if (absl::SimpleAtoi(name, &number)) {
    if (number >= gpus.size()) return std::nullopt;
    return gpus[number].node;
  }
  // A part of a GPU; the name does not tell which.
  if (absl::StartsWith(name, "MIG-")) return -1;
  if (!absl::StartsWith(name, "GPU-")) return std::nullopt;
  for (const Gpu& gpu : gpus) {
    if (absl::StartsWith(gpu.uuid, name)) return gpu.node;
  }
  return std::nullopt;
}

// Returns the node of each rank.
std::vector<int> NodesOfRanks(int nproc, const Topology& topology) {
  const std::vector<int> nodes = Distinct(topology.cpus, &Cpu::node);
  std::vector<int> of_ranks;
  for (int rank = 0; rank < nproc; ++rank) {
    const size_t place =
        static_cast<size_t>(rank) * nodes.size() / static_cast<size_t>(nproc);
    int node = nodes[place];
    const size_t gpu = static_cast<size_t>(rank);
    if (topology.gpu_nodes.size() >= static_cast<size_t>(nproc) &&
        std::count(nodes.begin(), nodes.end(), topology.gpu_nodes[gpu]) != 0) {
      node = topology.gpu_nodes[gpu];
    }
    of_ranks.push_back(node);
  }
  return of_ranks;
}

}  // namespace

std::set<int> AllowedCpus() {
  std::set<int> allowed;
  // More than 1024 CPUs need a larger set than cpu_set_t.
  for (int count = 1024; allowed.empty() && count <= 65536; count *= 4) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(count));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(count));
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int cpu = 0; cpu < count; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) {
          allowed.insert(cpu);
        }
      }
    }
    CPU_FREE(set);
  }
  return allowed;
}

std::vector<int> GpuNodes(
    const std::string& root,
    const std::map<std::string, std::string>& environment) {
  const std::vector<Gpu> gpus = AllGpus(root);
  std::vector<int> nodes;
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  if (visible == environment.end()) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (const absl::string_view name : absl::StrSplit(visible->second, ',')) {
    const std::optional<int> node =
        NodeOfDevice(gpus, absl::StripAsciiWhitespace(name));
    if (!node.has_value()) break;
    nodes.push_back(*node);
  }
  return nodes;
}

Topology ReadTopology(const std::string& root, const std::set<int>& allowed,
                      const std::map<std::string, std::string>& environment) {
  Topology topology;
  const fs::path system = fs::path(root + "/sys/devices/system");
  std::map<int, int> node_of;
  for (const std::string& name : Names(system / "node")) {
    absl::string_view number = name;
    int node = 0;
    if (!absl::ConsumePrefix(&number, "node") ||
        !absl::SimpleAtoi(number, &node)) {
      continue;
    }
    for (const int cpu : ReadCpuList(system / "node" / name / "cpulist")) {
      node_of[cpu] = node;
    }
  }
  for (const int cpu : allowed) {
    const fs::path folder = system / "cpu" / absl::StrCat("cpu", cpu);
    const std::vector<int> siblings =
        ReadCpuList(folder / "topology/thread_siblings_list");
    topology.cpus.push_back(
        {.cpu = cpu,
         .node = node_of.count(cpu) != 0 ? node_of[cpu] : 0,
         .socket =
             ReadNumber(folder / "topology/physical_package_id").value_or(0),
         .core = siblings.empty() ? cpu : siblings.front(),
         .complex = LastLevelCache(folder, cpu)});
  }
  topology.gpu_nodes = GpuNodes(root, environment);
  return topology;
}

StatusOr<std::vector<std::vector<int>>> BindRanks(const std::string& binding,
                                                  int nproc,
                                                  const Topology& topology) {
  std::vector<std::vector<int>> bound;
  const std::vector<int> nodes = NodesOfRanks(nproc, topology);
  for (int rank = 0; rank < nproc; ++rank) {
    const int node = nodes[static_cast<size_t>(rank)];
    const std::vector<Cpu> cpus = With(topology.cpus, &Cpu::node, node);
    // This rank's index among the node's ranks.
    const auto mine = nodes.begin() + rank;
    const size_t place =
        static_cast<size_t>(std::count(nodes.begin(), mine, node));
    const size_t neighbours =
        static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
    if (binding == "node") {
      bound.push_back(Numbers(cpus));
    } else if (binding == "socket") {
      bound.push_back(
          Numbers(With(topology.cpus, &Cpu::socket, cpus.front().socket)));
    } else if (binding == "core-complex") {
      const std::vector<int> complexes = Distinct(cpus, &Cpu::complex);
      bound.push_back(Numbers(
          With(cpus, &Cpu::complex, complexes[place % complexes.size()])));
    } else {
      const std::vector<int> cores = Distinct(cpus, &Cpu::core);
      if (cores.size() < neighbours) {
        return FailedPreconditionError(absl::StrCat(
            "--numa-binding=exclusive: NUMA node ", node, " has ", cores.size(),
            " cores that may be used, for ", neighbours, " ranks"));
      }
      std::vector<int> share;
      for (size_t i = cores.size() * place / neighbours;
           i < cores.size() * (place + 1) / neighbours; ++i) {
        for (const Cpu& cpu : With(cpus, &Cpu::core, cores[i])) {
          share.push_back(cpu.cpu);
        }
      }
      bound.push_back(std::move(share));
    }
  }
  return bound;
}

}  // namespace muster::worker
