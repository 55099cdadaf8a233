// For LD_PRELOAD: shifts the clock of the date (CLOCK_REALTIME) of one process,
// as if somebody set the clock of its machine. The file SHIFTED_CLOCK has the
// shift, a 64-bit number of nanoseconds, and may change at any time.
//
// Waits until a date follow the shifted clock, too: they look at it again every
// kSlice, by a wakeup without a cause, which callers must expect anyway.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSlice = kSecond / 20;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int RealClock(clockid_t clock, timespec* now) {
  static auto* const real = Next<int(clockid_t, timespec*)>("clock_gettime");
  return real(clock, now);
}

const std::atomic<int64_t>* MapShift() {
  const char* const path = std::getenv("SHIFTED_CLOCK");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const bytes =
      mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return bytes == MAP_FAILED ? nullptr
                             : static_cast<const std::atomic<int64_t>*>(bytes);
}

int64_t Shift() {
  static const std::atomic<int64_t>* const shift = MapShift();
  return shift == nullptr ? 0 : shift->load(std::memory_order_relaxed);
}

int64_t ToNanoseconds(const timespec& time) {
  return time.tv_sec * kSecond + time.tv_nsec;
}

timespec ToTimespec(int64_t nanoseconds) {
  timespec time{};
  time.tv_sec = nanoseconds / kSecond;
  time.tv_nsec = nanoseconds % kSecond;
  if (time.tv_nsec < 0) {
    time.tv_nsec += kSecond;
    --time.tv_sec;
  }
  return time;
}

bool IsDate(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int64_t RealNow(clockid_t clock) {
  timespec now{};
  RealClock(clock, &now);
  return ToNanoseconds(now);
}

// Until the shifted clock shows `date`, but at most kSlice.
int64_t TimeUntil(const timespec& date) {
  const int64_t left = ToNanoseconds(date) - Shift() - RealNow(CLOCK_REALTIME);
  return std::clamp<int64_t>(left, 0, kSlice);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int result = RealClock(clock, now);
  if (result == 0 && IsDate(clock)) {
    *now = ToTimespec(ToNanoseconds(*now) + Shift());
  }
  return result;
}

int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  const timespec shifted = ToTimespec(RealNow(CLOCK_REALTIME) + Shift());
  now->tv_sec = shifted.tv_sec;
  now->tv_usec = shifted.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t seconds = ToTimespec(RealNow(CLOCK_REALTIME) + Shift()).tv_sec;
  if (now != nullptr) *now = seconds;
  return seconds;
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const timespec* until) {
  static auto* const real =
      Next<int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  if (!IsDate(clock)) return real(condition, mutex, clock, until);
  const int64_t left = TimeUntil(*until);
  const timespec end = ToTimespec(RealNow(CLOCK_MONOTONIC) + left);
  const int result = real(condition, mutex, CLOCK_MONOTONIC, &end);
  return result == ETIMEDOUT && left == kSlice ? 0 : result;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, until);
}

// Abseil's waits.
long syscall(long number, ...) noexcept {  // NOLINT(google-runtime-int)
  static auto* const real = Next<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto* const until = reinterpret_cast<const timespec*>(a[3]);
  if (number != SYS_futex || (a[1] & FUTEX_CLOCK_REALTIME) == 0 ||
      until == nullptr) {
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  const int64_t left = TimeUntil(*until);
  const timespec end = ToTimespec(RealNow(CLOCK_REALTIME) + left);
  const long result = real(number, a[0], a[1], a[2], &end, a[4], a[5]);
  if (result == -1 && errno == ETIMEDOUT && left == kSlice) errno = EINTR;
  return result;
}

}  // extern "C"
