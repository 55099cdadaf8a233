#include "client/internal/logging.h"

#include <errno.h>  // program_invocation_short_name

#include <mutex>

#include "glog/logging.h"

namespace muster::internal {

void EnsureLogging() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (google::IsGoogleLoggingInitialized()) return;
    FLAGS_logtostderr = true;
    google::InitGoogleLogging(program_invocation_short_name);
  });
}

}  // namespace muster::internal
