// A fast Clock::now(), for callers that read it in every small collective.

#ifndef MUSTER_DATAPLANE_QUICK_CLOCK_H_
#define MUSTER_DATAPLANE_QUICK_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace muster::dataplane {

// Clock::now() in less than half of the time. If the kernel derives the time
// from the processor's cycle counter (x86-64; clock source "tsc", or the one
// that KVM or Hyper-V gives its guests), this reads the counter directly.
// Elsewhere, and in the first milliseconds, it calls Clock::now().
//
// It is wrong by at most about a microsecond and never goes backwards within a
// thread. Two threads may differ by twice that, and a Clock::now() right after
// it may be earlier, so its instants do not order events. If the counter jumps
// or changes its rate, the result may be wrong by a millisecond until the
// counter has counted one; after that it is Clock::now() until the rate is
// known again. A counter that stops would stop it, and Clock::now() too.
//
// A guest's counter jumps when its host stops or moves it. If the counters of
// its processors differ, which can happen if the guest's clock source is not
// "tsc", it also jumps when the thread moves to another processor.
//
// The counter is read without a fence, which is part of the cost of
// Clock::now(): the processor may read it some tens of nanoseconds early or
// late. That does not matter for deadlines, but do not measure a few
// instructions with it.
//
// The first call of a thread in each millisecond calls Clock::now() and costs
// twice as much as that, so callers that call it less often gain nothing.
//
// Any thread may call it, also in forked children, but not a signal handler.
Instant QuickNow();

// Converts one thread's counter to the Clock with an anchor (an instant at
// which both were read) and a rate. There is a new anchor every millisecond, so
// that no error lasts longer.
//
// A Source gives access to both clocks; its functions may be static:
//   bool IsUsable();  // False: use only Time().
//   uint64_t Ticks();
//   Instant Time();
//   std::atomic<uint64_t>& Rate();  // Last one learned; 0: none.
//
// Not thread-safe: each thread has its own.
class QuickClock {
 public:
  template <typename Source>
  Instant Now(Source& source) {
    // Does not read the counter before there is a rate: on a machine whose
    // Clock does not use the counter, reading it may take a microsecond.
    if (span_ticks_ != 0) {
      // If the counter went back, the difference is larger than the span, too.
      const uint64_t ticks = source.Ticks() - anchor_ticks_;
      if (ticks < span_ticks_) {
        return Advance(anchor_time_ +
                       std::chrono::nanoseconds((ticks * rate_) >> kRateBits));
      }
    }
    return AskClock(source);
  }

 private:
  // Rates are nanoseconds per tick, times 2^32. The ticks of a span times the
  // rate are its nanoseconds times 2^32, which fits well into 64 bits.
  static constexpr int kRateBits = 32;

  // Not inlined, to keep Now small.
  template <typename Source>
  [[gnu::noinline]] Instant AskClock(Source& source) {
    if (!source.IsUsable()) return source.Time();
    const uint64_t before = source.Ticks();
    const Instant time = source.Time();
    const uint64_t after = source.Ticks();
    Renew(before, time, after, source.Rate());
    return Advance(time);
  }

  // Makes an anchor of `time` and the middle of the two readings of the counter
  // around it, if they are close enough. Learns the rate from this anchor and
  // the last one, or takes `known_rate`.
  void Renew(uint64_t before, Instant time, uint64_t after,
             std::atomic<uint64_t>& known_rate);

  // After a span with too high a rate, the clock is ahead of the new anchor; it
  // then stands still until the anchor catches up.
  Instant Advance(Instant now) {
    if (now > last_) last_ = now;
    return last_;
  }

  uint64_t anchor_ticks_ = 0;
  uint64_t span_ticks_ = 0;  // How long the anchor is valid; 0: it is not.
  uint64_t rate_ = 0;        // The last one found, trusted or not.
  Instant anchor_time_;
  Instant last_;
};

// Whether the kernel's file at `path` names the cycle counter, or a
// hypervisor's form of it, as the clock source. False if the file cannot be
// read.
bool NamesCycleCounter(const char* path);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_QUICK_CLOCK_H_
