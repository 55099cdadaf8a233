#include "client/control/logging.h"

#include <errno.h>  // program_invocation_short_name

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "base/logging.h"
#include "base/text.h"
#include "glog/logging.h"

namespace muster::internal {

namespace {

constexpr char kLevelVariable[] = "TORCH_CPP_LOG_LEVEL";

std::string Value(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : absl::AsciiStrToUpper(value);
}

// Returns nullopt for other values.
std::optional<int> LevelFromEnv() {
  const std::string value = Value(kLevelVariable);
  if (value.empty()) return google::GLOG_WARNING;
  const std::string names[] = {"INFO", "WARNING", "ERROR", "FATAL"};
  for (int level = google::GLOG_INFO; level <= google::GLOG_FATAL; ++level) {
    if (value == names[level] || value == std::to_string(level)) return level;
  }
  return std::nullopt;
}

int VerbosityFromEnv() {
  if (LevelFromEnv() != google::GLOG_INFO) return 0;
  std::string debug = Value("MUSTER_DEBUG");
  if (debug.empty()) debug = Value("TORCH_DISTRIBUTED_DEBUG");
  return debug == "DETAIL" ? 2 : debug == "INFO" ? 1 : 0;
}

}  // namespace

void EnsureLogging() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (google::IsGoogleLoggingInitialized()) return;
    FLAGS_logtostderr = true;
    if (std::getenv("GLOG_minloglevel") == nullptr) {
      FLAGS_minloglevel = LevelFromEnv().value_or(google::GLOG_WARNING);
    }
    if (std::getenv("GLOG_v") == nullptr) FLAGS_v = VerbosityFromEnv();
    base::InitLogging(program_invocation_short_name);
    LOG_IF(WARNING, !LevelFromEnv().has_value())
        << kLevelVariable
        << " must be INFO, WARNING, ERROR or FATAL, or 0 to 3, but was "
        << base::Quote(Value(kLevelVariable)) << "; it is WARNING";
  });
}

}  // namespace muster::internal
