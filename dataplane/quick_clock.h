// Clock::now() for those who ask it in every small collective.

#ifndef MUSTER_DATAPLANE_QUICK_CLOCK_H_
#define MUSTER_DATAPLANE_QUICK_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace muster::dataplane {

// What Clock::now() says, in less than half of the time: where the kernel tells
// the time by the processor's cycle counter (x86-64; clock source "tsc", or one
// that KVM or Hyper-V has for its guests), the counter is read here without the
// kernel's care around it. Elsewhere, and in the first milliseconds, it is
// Clock::now().
//
// It is about a microsecond off at most, and never goes backwards within a
// thread. Two threads may disagree by twice that, and Clock::now() right after
// it may be earlier: such instants do not order what was done. Should the
// counter jump, or tick at another rate, then it may be a millisecond off until
// the counter has counted one; from there on it is Clock::now() until the rate
// is known again. A counter that stood still would stop it, and Clock::now() as
// well.
//
// A guest's counter jumps when its host stops or moves it; and where those of
// its processors disagree, whenever the thread goes from one to another. That
// may be so where the clock source of a guest is not "tsc".
//
// No fence keeps the reading of the counter in its place, which is a part of
// what Clock::now() costs: the processor may do it some tens of nanoseconds
// early or late, which no deadline notices. Who measures a few instructions
// needs another clock.
//
// A call that is the thread's first in a millisecond asks Clock::now() and
// costs twice as much as that: not for who asks that seldom.
//
// Everybody may call it, in forked children too; a signal handler may not.
Instant QuickNow();

// One thread's conversion of a counter to the Clock, from an anchor, which is
// an instant at which both were read, and a rate. Anchors are a millisecond
// apart, so no error of either lasts longer.
//
// A Source is what there is to read; its functions may be static:
//   bool IsUsable();  // False: the Clock is all there is.
//   uint64_t Ticks();
//   Instant Time();
//   std::atomic<uint64_t>& Rate();  // What its clocks learned last, or 0.
//
// Not thread-safe: one for each thread.
class QuickClock {
 public:
  template <typename Source>
  Instant Now(Source& source) {
    // Not the counter first: a machine whose Clock does not use it may well
    // take a microsecond to read it.
    if (span_ticks_ != 0) {
      // A counter that went back has passed the span as well.
      const uint64_t ticks = source.Ticks() - anchor_ticks_;
      if (ticks < span_ticks_) {
        return Advance(anchor_time_ +
                       std::chrono::nanoseconds((ticks * rate_) >> kRateBits));
      }
    }
    return AskClock(source);
  }

 private:
  // A rate is in nanoseconds per tick, times 2^32. A span's ticks times the
  // rate are a span's nanoseconds times that: far from 64 bits.
  static constexpr int kRateBits = 32;

  // Not inlined, for the sake of those who do not come here.
  template <typename Source>
  [[gnu::noinline]] Instant AskClock(Source& source) {
    if (!source.IsUsable()) return source.Time();
    const uint64_t before = source.Ticks();
    const Instant time = source.Time();
    const uint64_t after = source.Ticks();
    Renew(before, time, after, source.Rate());
    return Advance(time);
  }

  // Makes an anchor of the `time` between the two readings of the counter, if
  // it is one. Learns the rate from it and the last one, or from `known_rate`.
  void Renew(uint64_t before, Instant time, uint64_t after,
             std::atomic<uint64_t>& known_rate);

  // A rate that was too high is ahead of the next anchor: then time stands
  // still until that has caught up.
  Instant Advance(Instant now) {
    if (now > last_) last_ = now;
    return last_;
  }

  uint64_t anchor_ticks_ = 0;
  uint64_t span_ticks_ = 0;  // How long the anchor holds; 0: it does not.
  uint64_t rate_ = 0;        // The last one found, to be trusted or not.
  Instant anchor_time_;
  Instant last_;
};

// Whether the kernel's file at `path` names the cycle counter as its clock
// source, or what a hypervisor makes of it. Not if it cannot be read.
bool NamesCycleCounter(const char* path);

}  // namespace muster::dataplane

#endif  // MUSTER_DATAPLANE_QUICK_CLOCK_H_
