#ifndef MUSTER_CLIENT_CONTROL_LOGGING_H_
#define MUSTER_CLIENT_CONTROL_LOGGING_H_

namespace muster::internal {

// Sets up the log, to standard error, unless the program has done so. The SDK
// calls it before its first line: glog would say otherwise that nobody did. The
// least level is TORCH_CPP_LOG_LEVEL's (INFO, WARNING, ERROR, FATAL, or 0 to 3;
// WARNING without it); with INFO and MUSTER_DEBUG or TORCH_DISTRIBUTED_DEBUG,
// INFO of these is verbosity 1 and DETAIL is 2. GLOG_minloglevel and GLOG_v go
// before that.
// Thread-safe. A program that calls google::InitGoogleLogging does so before it
// uses the SDK, because glog ends a process that does it twice.
void EnsureLogging();

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_CONTROL_LOGGING_H_
