#ifndef MUSTER_BASE_PROCESS_USAGE_H_
#define MUSTER_BASE_PROCESS_USAGE_H_

namespace muster::base {

// The resources that this process uses. 0: the system does not say.
struct ProcessUsage {
  double cpu_seconds = 0;  // in user mode and in the kernel, of all threads
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double open_fds = 0;
  double max_fds = 0;             // the limit at which no more are given out
  double start_time_seconds = 0;  // since 1970
};

ProcessUsage ReadProcessUsage();

}  // namespace muster::base

#endif  // MUSTER_BASE_PROCESS_USAGE_H_
