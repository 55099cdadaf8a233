#include "base/logging.h"

#include <ostream>

#include "absl/strings/str_format.h"
// Debian builds glog with this macro, but users must define it.
#define GLOG_CUSTOM_PREFIX_SUPPORT
#include "glog/logging.h"

namespace muster::base {
namespace {

void WritePrefix(std::ostream& out, const google::LogMessageInfo& message,
                 void* /*data*/) {
  out << LogPrefix(message.severity, message.time.timestamp(),
                   message.time.usec(), message.thread_id, message.filename,
                   message.line_number);
}

}  // namespace

void InitLogging(const char* program) {
  google::InitGoogleLogging(program, &WritePrefix);
}

std::string LogPrefix(absl::string_view severity, std::time_t second,
                      int32_t microsecond, int thread, absl::string_view file,
                      int line) {
  std::tm utc = {};
  gmtime_r(&second, &utc);
  return absl::StrFormat("%s %04d-%02d-%02dT%02d:%02d:%02d.%06dZ %d %s:%d]",
                         severity.substr(0, 1), utc.tm_year + 1900,
                         utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min,
                         utc.tm_sec, microsecond, thread, file, line);
}

}  // namespace muster::base
