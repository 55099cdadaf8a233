#include "client/control/channel.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/process_limits.h"
#include "grpc/grpc.h"
#include "muster/base/status.h"

namespace muster::internal {
namespace {

using std::chrono::milliseconds;

// Coordinators close connections with more than one ping per second.
constexpr milliseconds kIntervalMin{1'200};

int64_t Processors() {
  return std::clamp<int64_t>(sysconf(_SC_NPROCESSORS_CONF), 2, 32);
}

// Each thread takes a stack and a part of the heap. gRPC starts one for each
// processor, 2 to 32. Programs hung with 390 MiB on two processors and with
// 1,560 on 16, and none with 490 and 1,760.
uint64_t AddressSpaceMin() {
  return static_cast<uint64_t>(320 + 96 * Processors()) << 20;
}

// The threads of gRPC and a session, and a few more.
int ThreadsMin() { return static_cast<int>(8 + 2 * Processors()); }

// The descriptors of gRPC and a connection, and a few more.
constexpr uint64_t kDescriptorsMin = 12;

struct Keepalive {
  milliseconds interval;  // silence before a ping
  milliseconds timeout;   // of the ping's answer
};

Keepalive MakeKeepalive(milliseconds silence_max) {
  if (silence_max.count() == 0) {
    return {milliseconds(20'000), milliseconds(10'000)};
  }
  // Most of the time is for the answer: short network failures do not count.
  const milliseconds interval = std::max(kIntervalMin, silence_max / 4);
  return {interval, std::max(kIntervalMin, silence_max - interval)};
}

grpc::ChannelArguments MakeArguments(milliseconds silence_max) {
  const auto [interval, timeout] = MakeKeepalive(silence_max);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5'000);
  // Detects a host that vanished, even when nothing is being sent. The timeout
  // also applies to sent data (TCP_USER_TIMEOUT).
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                   static_cast<int>(interval.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                   static_cast<int>(timeout.count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return arguments;
}

}  // namespace

Status CheckProcessLimits() {
  if (grpc_is_initialized() != 0) return OkStatus();
  const uint64_t left = AddressSpaceLeft();
  const uint64_t needed = AddressSpaceMin();
  if (left < needed) {
    return ResourceExhaustedError(
        absl::StrCat("the threads of a client need ", needed >> 10,
                     " KiB of address space, and this process has ", left >> 10,
                     " KiB left of its limit (ulimit -v)"));
  }
  const uint64_t descriptors = DescriptorsLeft();
  if (descriptors < kDescriptorsMin) {
    return ResourceExhaustedError(absl::StrCat(
        "a client needs ", kDescriptorsMin,
        " file descriptors, and this process has ", descriptors,
        " left of its limit of ", DescriptorLimit(), " (ulimit -n)"));
  }
  // There are no limits.
  const std::string limits = ThreadLimitsText();
  if (limits.empty()) return OkStatus();
  const int threads = ThreadsMin();
  const int started = StartableThreads(threads);
  if (started == threads) return OkStatus();
  return ResourceExhaustedError(
      absl::StrCat("a client needs ", threads,
                   " threads, and this process can start ", started, limits));
}

std::shared_ptr<grpc::Channel> NewChannel(const Endpoint& endpoint,
                                          const ConnectionSecurity& security,
                                          milliseconds silence_max,
                                          size_t turn) {
  grpc::ChannelArguments arguments = MakeArguments(silence_max);
  Endpoint dialed = endpoint;
  std::string server_name = security.server_name();
  if (turn > 0) {
    std::vector<Endpoint> all = NumericEndpoints(endpoint);
    if (all.size() > 1) {
      dialed = std::move(all[turn % all.size()]);
      if (server_name.empty()) server_name = endpoint.host;
    }
  }
  if (!server_name.empty()) arguments.SetSslTargetNameOverride(server_name);
  // gRPC decodes `%` escapes, so the one in fe80::1%eth0 is escaped.
  const std::string target =
      absl::StrReplaceAll(dialed.ToString(), {{"%", "%25"}});
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", target),
                                   security.credentials(), arguments);
}

std::shared_ptr<grpc::Channel> NewUnixChannel(const std::string& target,
                                              milliseconds silence_max) {
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(),
                                   MakeArguments(silence_max));
}

}  // namespace muster::internal
