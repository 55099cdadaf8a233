#ifndef MUSTER_CLIENT_INTERNAL_LOGGING_H_
#define MUSTER_CLIENT_INTERNAL_LOGGING_H_

namespace muster::internal {

// Sets up the log, to standard error, unless the program has done so. The SDK
// calls it before its first line: glog would say otherwise that nobody did.
// Thread-safe. A program that calls google::InitGoogleLogging does so before it
// uses the SDK, because glog ends a process that does it twice.
void EnsureLogging();

}  // namespace muster::internal

#endif  // MUSTER_CLIENT_INTERNAL_LOGGING_H_
