#include "coordinator/server/grpc_log.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "coordinator/server/mutex.h"
#include "glog/logging.h"
#include "grpc/support/log.h"

namespace muster::coordinator {
namespace {

void Log(gpr_log_func_args* args) {
  constexpr std::chrono::seconds kInterval{10};
  static Mutex* const mu = new Mutex;
  static std::chrono::steady_clock::time_point next;
  static int64_t count = 0;
  const absl::string_view message = args->message;
  if (!absl::StrContains(message, "Handshake failed")) {
    LOG(WARNING) << "grpc: " << message;
    return;
  }
  int64_t counted = 0;
  {
    MutexLock lock(*mu);
    ++count;
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + kInterval;
    counted = std::exchange(count, 0);
  }
  LOG(WARNING) << "tls_handshakes_failed: count=" << counted << " last=\""
               << absl::CHexEscape(message) << "\"";
}

}  // namespace

void TakeOverGrpcLog() { gpr_set_log_function(&Log); }

}  // namespace muster::coordinator
