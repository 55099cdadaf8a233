#include "coordinator/server/ops/start_checks.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <future>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/base/status.h"

namespace muster::coordinator {
namespace {

// About twenty threads, and more on more than two processors, each take a stack
// and a part of the heap.
constexpr uint64_t AddressSpaceMin(int64_t processors) {
  return static_cast<uint64_t>(832 +
                               96 * std::clamp<int64_t>(processors, 2, 32))
         << 20;
}

// The descriptors of gRPC and of a few connections.
constexpr uint64_t kDescriptorsMin = 24;

}  // namespace

Status CheckAddressSpace(uint64_t limit_bytes, int64_t processors) {
  const uint64_t needed = AddressSpaceMin(processors);
  if (limit_bytes >= needed) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "this process may have ", limit_bytes >> 10,
      " KiB of address space (ulimit -v), and a coordinator's threads need ",
      needed >> 10));
}

Status CheckDescriptors(uint64_t limit, uint64_t open) {
  // The Listener keeps the last 128 free of connections, or half of a small
  // limit.
  const uint64_t used = open + kDescriptorsMin;
  const uint64_t needed = used + std::min<uint64_t>(used, 128);
  if (limit >= needed) return OkStatus();
  return ResourceExhaustedError(absl::StrCat(
      "this process may have ", limit, " file descriptors (ulimit -n) and has ",
      open, " open; a coordinator needs at least ", needed,
      ", and one more for each connection"));
}

Status CheckThreads(int64_t processors) {
  const auto needed =
      static_cast<size_t>(20 + 4 * std::clamp<int64_t>(processors, 2, 32));
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  std::vector<std::thread> threads;
  try {
    while (threads.size() < needed) {
      threads.emplace_back([ended] { ended.wait(); });
    }
  } catch (const std::system_error&) {
    // The limit is reached.
  }
  end.set_value();
  for (std::thread& thread : threads) thread.join();
  if (threads.size() == needed) return OkStatus();
  rlimit limit = {};
  getrlimit(RLIMIT_NPROC, &limit);
  return ResourceExhaustedError(absl::StrCat(
      "a coordinator needs ", needed, " threads, and this process can start ",
      threads.size(), " (ulimit -u is ",
      limit.rlim_cur == RLIM_INFINITY ? "unlimited"
                                      : absl::StrCat(limit.rlim_cur),
      "; a control group may have another limit, pids.max)"));
}

uint64_t AddressSpaceLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_AS, &limit);
  return limit.rlim_cur;
}

}  // namespace muster::coordinator
