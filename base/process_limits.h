#ifndef MUSTER_BASE_PROCESS_LIMITS_H_
#define MUSTER_BASE_PROCESS_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace muster::base {

// A control group (cgroups(7)) that contains this process, or an ancestor of
// one.
struct ControlGroup {
  std::string folder;      // the folder of its files
  std::string path;        // "/" is the root
  bool is_second = false;  // cgroup version 2
};

// Finds the control groups that have `controller` ("memory", "pids"); those of
// each version are ordered from the innermost outwards. `root` replaces the
// root of the file system in tests.
std::vector<ControlGroup> FindControlGroups(const std::string& controller,
                                            const std::string& root = "");

// The CPU quota of a control group, in processors.
struct ProcessorQuota {
  double processors = 0;
  // A number that is equal for all processes of this host that share the quota;
  // not 0.
  uint64_t group = 0;
};

// The smallest quota among the control groups that contain this process and
// their ancestors. `root` is as for FindControlGroups.
std::optional<ProcessorQuota> FindProcessorQuota(const std::string& root = "");

// The number of processors that this process may keep busy: those of its
// affinity mask, or the whole processors of its quota if these are fewer; at
// least 1.
int UsableProcessors(const std::string& root = "");

// The bytes of address space that this process may still map (RLIMIT_AS), or
// the largest number if there is no limit.
uint64_t AddressSpaceLeft();

// The number of file descriptors that this process may have (RLIMIT_NOFILE),
// and the number that it may still open; the largest number if there is no
// limit.
uint64_t DescriptorLimit();
uint64_t DescriptorsLeft();

// The number of threads, up to `wanted`, that this process can start in
// addition to those that it has. Starts them briefly to find out, so that it
// also accounts for threads of other processes of the same user or control
// group.
int StartableThreads(int wanted);

// A suffix for the error of a failed allocation: "; RLIMIT_AS (ulimit -v) is
// 1048576 bytes" if this process has such a limit, else "".
std::string AddressSpaceLimitText();

// A suffix for the error of a thread that did not start. Names the limits that
// this process has: on address space, on the user's threads (RLIMIT_NPROC), and
// the smallest pids.max of its control groups. `root` replaces the root of the
// file system in tests.
std::string ThreadLimitsText(const std::string& root = "");

// Whether `error` means that a thread could not be started.
bool IsOfThread(const std::system_error& error);

// The text of `error`. For a thread that did not start, adds those limits.
std::string DescribeSystemError(const std::system_error& error);

}  // namespace muster::base

namespace muster {

// Used so often that they need no prefix.
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
