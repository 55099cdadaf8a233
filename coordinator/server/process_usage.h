#ifndef MUSTER_COORDINATOR_SERVER_PROCESS_USAGE_H_
#define MUSTER_COORDINATOR_SERVER_PROCESS_USAGE_H_

namespace muster::coordinator {

// What this process uses of its machine. 0: the system does not tell.
struct ProcessUsage {
  double cpu_seconds = 0;  // in user mode and in the kernel, of all threads
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double open_fds = 0;
  double max_fds = 0;             // the limit at which no more are given out
  double start_time_seconds = 0;  // since 1970
};

ProcessUsage ReadProcessUsage();

}  // namespace muster::coordinator

#endif  // MUSTER_COORDINATOR_SERVER_PROCESS_USAGE_H_
