// Sets up glog, for every muster program and for the SDK in a user's program.

#ifndef MUSTER_BASE_LOGGING_H_
#define MUSTER_BASE_LOGGING_H_

#include <cstdint>
#include <ctime>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::base {

// Calls google::InitGoogleLogging with a line prefix of this form, in UTC:
//   W 2026-11-27T15:07:25.123456Z 4711 server.cc:288]
// `program` must live until the process's last log line. Call it once per
// process.
void InitLogging(const char* program);

// Returns that prefix without a space at its end.
std::string LogPrefix(absl::string_view severity, std::time_t second,
                      int32_t microsecond, int thread, absl::string_view file,
                      int line);

}  // namespace muster::base

#endif  // MUSTER_BASE_LOGGING_H_
