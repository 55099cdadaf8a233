#ifndef MUSTER_CLIENT_CONTROL_LOGGING_H_
#define MUSTER_CLIENT_CONTROL_LOGGING_H_

namespace muster::internal {

// Sets up glog to log to standard error, unless the program has done so. The
// SDK calls it before its first line, because glog would otherwise complain.
// The minimum level is TORCH_CPP_LOG_LEVEL (INFO, WARNING, ERROR, FATAL, or 0
// to 3; default WARNING). At INFO, MUSTER_DEBUG or TORCH_DISTRIBUTED_DEBUG sets
// the verbosity: INFO is 1, DETAIL is 2. GLOG_minloglevel and GLOG_v override
// these. Thread-safe. A program that calls google::InitGoogleLogging must do so
// before it uses the SDK, because glog ends a process that initializes it
// twice.
void EnsureLogging();

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_LOGGING_H_
