#ifndef MUSTER_BASE_PROCESS_LIMITS_H_
#define MUSTER_BASE_PROCESS_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace muster::base {

// A control group (cgroups(7)) that this process is in, or one above it.
struct ControlGroup {
  std::string folder;      // where its files are
  std::string path;        // "/" is the top
  bool is_second = false;  // of version 2
};

// Those that have `controller` ("memory", "pids"), of each version the lowest
// one first. `root` is where the system's files are, for tests.
std::vector<ControlGroup> FindControlGroups(const std::string& controller,
                                            const std::string& root = "");

// How much processor time a control group may have, in processors: its CPU
// quota.
struct ProcessorQuota {
  double processors = 0;
  // The same for all processes of this host that share the quota; not 0.
  uint64_t group = 0;
};

// The least one of the control groups that this process is in and of those
// above them. `root` is as for FindControlGroups.
std::optional<ProcessorQuota> FindProcessorQuota(const std::string& root = "");

// How many processors this process may keep busy: those of its affinity mask,
// or the whole ones of its quota where these are fewer; at least 1.
int UsableProcessors(const std::string& root = "");

// How much more address space this process may map (RLIMIT_AS), or the largest
// number.
uint64_t AddressSpaceLeft();

// How many file descriptors this process may have (RLIMIT_NOFILE), and how many
// more it may open; or the largest number.
uint64_t DescriptorLimit();
uint64_t DescriptorsLeft();

// How many threads, up to `wanted`, this process can have beside those that it
// has. Starts them for a moment: what others of the same user or the same
// control group have counts, too.
int StartableThreads(int wanted);

// For errors of who got no memory: "; RLIMIT_AS (ulimit -v) is 1048576 bytes"
// where this process has such a limit, else "".
std::string AddressSpaceLimitText();

// The same for a thread that did not start, with the limits that this process
// has: of address space, of the user's threads (RLIMIT_NPROC), and the least
// one of its control groups (pids.max). `root` is where the system's files are,
// for tests.
std::string ThreadLimitsText(const std::string& root = "");

// It is of a thread that did not start.
bool IsOfThread(const std::system_error& error);

// What it says; of a thread that did not start, with those limits.
std::string DescribeSystemError(const std::system_error& error);

}  // namespace muster::base

namespace muster {

// So common that they go without the prefix.
using base::AddressSpaceLeft;
using base::AddressSpaceLimitText;
using base::ControlGroup;
using base::DescribeSystemError;
using base::DescriptorLimit;
using base::DescriptorsLeft;
using base::FindControlGroups;
using base::FindProcessorQuota;
using base::IsOfThread;
using base::ProcessorQuota;
using base::StartableThreads;
using base::ThreadLimitsText;
using base::UsableProcessors;

}  // namespace muster

#endif  // MUSTER_BASE_PROCESS_LIMITS_H_
