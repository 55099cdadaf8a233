// How every program of ours, and the SDK in a user's program, sets up glog.

#ifndef MUSTER_BASE_LOGGING_H_
#define MUSTER_BASE_LOGGING_H_

#include <cstdint>
#include <ctime>
#include <string>

#include "absl/strings/string_view.h"

namespace muster::base {

// google::InitGoogleLogging, with lines that begin like this, in UTC:
// `W 2026-11-27T15:07:25.123456Z 4711 server.cc:288] `. `program` must outlive
// the process's last line. Call it once a process.
void InitLogging(const char* program);

// That beginning, without the blank at its end.
std::string LogPrefix(absl::string_view severity, std::time_t second,
                      int32_t microsecond, int thread, absl::string_view file,
                      int line);

}  // namespace muster::base

#endif  // MUSTER_BASE_LOGGING_H_
