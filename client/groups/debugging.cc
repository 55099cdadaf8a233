#include "client/groups/debugging.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "client/control/fork_guard.h"
#include "client/control/throw.h"
#include "glog/logging.h"
#include "muster/base/mutex.h"
#include "muster/base/thread_annotations.h"

namespace muster::internal {
namespace {

using dataplane::FlightRecorder;

constexpr char kBufferVariable[] = "TORCH_FR_BUFFER_SIZE";
constexpr char kFileVariable[] = "TORCH_FR_DUMP_TEMP_FILE";
constexpr int64_t kBufferDefault = 2000;
// About a gigabyte.
constexpr int64_t kBufferMax = 1'000'000;

struct State {
  Mutex mutex;
  std::optional<DebugLevel> level MUSTER_GUARDED_BY(mutex);
  std::shared_ptr<FlightRecorder> recorder MUSTER_GUARDED_BY(mutex);
};

// Never destroyed: groups may end after static objects. A forked child gets a
// new one: the content is the parent's, and its lock may be held.
constinit std::atomic<State*> g_state{nullptr};

void StartAnew() MUSTER_NO_THREAD_SAFETY_ANALYSIS {
  auto* const fresh = new State;
  fresh->level = g_state.load()->level;
  KeepForParent(g_state.exchange(fresh));
}

State& TheState() {
  static const bool begun = [] {
    g_state.store(new State);
    return pthread_atfork(nullptr, nullptr, &StartAnew) == 0;
  }();
  static_cast<void>(begun);
  return *g_state.load(std::memory_order_acquire);
}

const char* Getenv(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

DebugLevel DebugLevelFromEnv() {
  for (const char* const name : {"MUSTER_DEBUG", "TORCH_DISTRIBUTED_DEBUG"}) {
    const char* const value = Getenv(name);
    if (value == nullptr) continue;
    const std::string upper = absl::AsciiStrToUpper(value);
    if (upper == "OFF") return DebugLevel::kOff;
    if (upper == "INFO") return DebugLevel::kInfo;
    if (upper == "DETAIL") return DebugLevel::kDetail;
    Throw(ErrorSource::kControl,
          InvalidArgumentError(absl::StrCat(
              "The value of ", name, " must be OFF, INFO, or DETAIL. It is ",
              base::Quote(value))));
  }
  return DebugLevel::kOff;
}

DebugLevel CurrentDebugLevel() {
  State& state = TheState();
  {
    MutexLock lock(state.mutex);
    if (state.level.has_value()) return *state.level;
  }
  const DebugLevel level = DebugLevelFromEnv();
  MutexLock lock(state.mutex);
  if (!state.level.has_value()) state.level = level;
  return *state.level;
}

void OverrideDebugLevel(DebugLevel level) {
  State& state = TheState();
  MutexLock lock(state.mutex);
  state.level = level;
}

std::shared_ptr<FlightRecorder> Recorder() {
  State& state = TheState();
  MutexLock lock(state.mutex);
  if (state.recorder == nullptr) {
    int64_t capacity = kBufferDefault;
    const char* const value = Getenv(kBufferVariable);
    if (value != nullptr && (!absl::SimpleAtoi(value, &capacity) ||
                             capacity < 0 || capacity > kBufferMax)) {
      Throw(ErrorSource::kControl,
            InvalidArgumentError(
                absl::StrCat(kBufferVariable, " must be a number from 0 to ",
                             kBufferMax, ", but is ", base::Quote(value))));
    }
    state.recorder =
        std::make_shared<FlightRecorder>(static_cast<size_t>(capacity));
  }
  return state.recorder;
}

void DumpAfterFailure(int global_rank) {
  const char* const prefix = Getenv(kFileVariable);
  if (prefix == nullptr) return;
  const std::string path = absl::StrCat(prefix, global_rank);
  const Status written = Recorder()->WriteTo(path);
  if (written.ok()) {
    LOG(WARNING) << "flight recorder written: rank=" << global_rank
                 << " file=" << base::Quote(path);
  } else {
    LOG(WARNING) << "flight recorder not written: rank=" << global_rank
                 << " cause=" << base::Quote(written.message());
  }
}

}  // namespace muster::internal
