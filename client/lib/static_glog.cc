// Stands in for gflags and libunwind, which the static glog of libmuster calls:
// libmuster has no flags, and libgcc walks the stack as well.

#include <unwind.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace google {

// glog also takes its flags from GLOG_ variables. They are not registered with
// gflags.
class FlagRegisterer {
 public:
  template <typename T>
  FlagRegisterer(const char* name, const char* help, const char* file,
                 T* current, T* defaults);
};

template <typename T>
FlagRegisterer::FlagRegisterer(const char*, const char*, const char*, T*, T*) {}

template FlagRegisterer::FlagRegisterer(const char*, const char*, const char*,
                                        bool*, bool*);
template FlagRegisterer::FlagRegisterer(const char*, const char*, const char*,
                                        int32_t*, int32_t*);
template FlagRegisterer::FlagRegisterer(const char*, const char*, const char*,
                                        uint32_t*, uint32_t*);
template FlagRegisterer::FlagRegisterer(const char*, const char*, const char*,
                                        std::string*, std::string*);

}  // namespace google

namespace {

// Lies in a cursor of libunwind's, which has 127 words.
struct Frames {
  static constexpr size_t kMax = 100;

  size_t count;
  size_t current;
  uintptr_t addresses[kMax];
};
static_assert(sizeof(Frames) <= 127 * sizeof(uintptr_t));

_Unwind_Reason_Code AddFrame(_Unwind_Context* context, void* to) {
  Frames& frames = *static_cast<Frames*>(to);
  if (frames.count == Frames::kMax) return _URC_END_OF_STACK;
  frames.addresses[frames.count++] = _Unwind_GetIP(context);
  return _URC_NO_REASON;
}

}  // namespace

#if defined(__aarch64__)
#define MUSTER_UNWIND(name) _ULaarch64_##name
#else
#define MUSTER_UNWIND(name) _ULx86_64_##name
#endif

extern "C" {

int _Ux86_64_getcontext(void*) { return 0; }  // NOLINT

// The frames from the caller's on; this function's own is the first.
int MUSTER_UNWIND(init_local)(Frames* cursor, void*) {
  cursor->count = 0;
  cursor->current = 1;
  _Unwind_Backtrace(&AddFrame, cursor);
  return 0;
}

int MUSTER_UNWIND(step)(Frames* cursor) {
  return ++cursor->current < cursor->count ? 1 : 0;
}

// Only asked for the address of the instruction.
int MUSTER_UNWIND(get_reg)(Frames* cursor, int, uintptr_t* value) {
  if (cursor->current >= cursor->count) return -1;
  *value = cursor->addresses[cursor->current];
  return 0;
}

}  // extern "C"
