#include "muster/debug.h"

#include <chrono>
#include <cstdint>
#include <string>

#include "client/c/convert.h"
#include "client/c/error.h"
#include "client/c/handles.h"
#include "muster/muster.h"

using muster::c::Guard;
using muster::c::GuardHandle;
using muster::c::Need;

static_assert(MUSTER_DEBUG_OFF == static_cast<int>(muster::DebugLevel::kOff));
static_assert(MUSTER_DEBUG_INFO == static_cast<int>(muster::DebugLevel::kInfo));
static_assert(MUSTER_DEBUG_DETAIL ==
              static_cast<int>(muster::DebugLevel::kDetail));

muster_status muster_get_debug_level(muster_debug_level* level) {
  return Guard(__func__, [&] {
    Need(level, "level") =
        static_cast<muster_debug_level>(muster::GetDebugLevel());
  });
}

muster_status muster_set_debug_level(muster_debug_level level) {
  return Guard(__func__, [&] {
    if (level < MUSTER_DEBUG_OFF || level > MUSTER_DEBUG_DETAIL) {
      muster::c::ThrowArgument("level",
                               std::to_string(level) + " does not exist");
    }
    muster::SetDebugLevel(static_cast<muster::DebugLevel>(level));
  });
}

muster_status muster_set_debug_level_from_env(void) {
  return Guard(__func__, [] { muster::SetDebugLevelFromEnv(); });
}

muster_status muster_flight_recorder_json(muster_strings** json) {
  return GuardHandle(__func__, json, "json", [] {
    return muster::c::MakeStrings(muster::FlightRecorderJson());
  });
}

muster_status muster_dump_flight_recorder(const char* path) {
  return Guard(__func__, [&] {
    Need(path, "path");
    muster::DumpFlightRecorder(path);
  });
}

muster_status muster_breakpoint(int32_t rank, muster_group* group,
                                int64_t timeout_ms) {
  return Guard(__func__, [&] {
    muster::BreakpointOptions options;
    options.group = muster::c::ToGroup(group);
    options.timeout = muster::c::ToMilliseconds(timeout_ms, options.timeout);
    muster::Breakpoint(rank, options);
  });
}
