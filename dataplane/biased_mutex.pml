/* The contract of biased_mutex.h, for spin(1) to check in every interleaving of
 * a home and other threads: one thread holds it at a time, and none waits for
 * ever.
 *
 * Steps of all threads are sequential here. That is true on an x86-64 processor
 * except that it delays a thread's stores, in their order, while the thread
 * goes on and loads. The home's stores to is_inside are delayed, at most two at
 * a time. Some become visible at any time, all at a fence: the home's own, a
 * locked instruction, or one that membarrier makes it pass. (Weaker processors
 * may reorder more between two fences, but not across one.)
 *
 * The mutex is biased when the home has locked it twice without the bias.
 *
 * There is one home: in biased_mutex.h the first one is the home for good.
 *
 * -DBREAK leaves out one part, and the check must then fail: 1, the home's
 * second look; 2, the fence of the thread that removes the bias (which then
 * only polls and never sleeps); 3, the home's wake-up of that thread; 4, the
 * home's fence before that; 5, that thread's wait for the home; 6, the order in
 * which the home clears is_entered before it leaves.
 */
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef TIMES
#define TIMES 2
#endif
#ifndef HOME_TIMES
#define HOME_TIMES 6
#endif
#ifndef BREAK
#define BREAK 0
#endif

bool is_biased;
bool is_inside;
bool bare; /* held */
bool is_entered;
byte holders;
bool sleeps; /* the thread that removes the bias, until the home wakes it */
byte streak;

/* The home's stores that other threads do not see yet. */
chan held_back = [2] of { bool };

proctype Processor() {
end:
  do
  :: atomic { held_back?is_inside }
  od
}

#define FENCE empty(held_back)

inline Has() {
  holders++;
  assert(holders == 1);
  holders--
}

inline Leave() {
  held_back!false;
  if
  :: is_biased
  :: !is_biased && BREAK == 3
  :: !is_biased && BREAK != 3 ->
     if
     :: BREAK == 4
     :: BREAK != 4 -> FENCE
     fi;
     sleeps = false
  fi
}

proctype Home() {
  byte time = 0;
  bool has_it;
  do
  :: time == HOME_TIMES -> break
  :: else ->
     time++;
     has_it = false;
     if
     :: !is_biased
     :: is_biased ->
        held_back!true;
        if
        :: BREAK == 1 || is_biased ->
           has_it = true;
           is_entered = true
        :: BREAK != 1 && !is_biased -> Leave()
        fi
     fi;
     if
     :: has_it
     :: !has_it ->
        /* Locking is a fence, as for all threads. */
        atomic { !bare && FENCE -> bare = true };
        streak++;
        if
        :: streak < 2
        :: else ->
           streak = 0;
           held_back!true;
           is_entered = true;
           is_biased = true;
           atomic { FENCE -> bare = false }
        fi
     fi;
     Has();
     if
     :: is_entered ->
        if
        :: BREAK == 6 ->
           Leave();
           is_entered = false
        :: BREAK != 6 ->
           is_entered = false;
           Leave()
        fi
     :: !is_entered -> atomic { FENCE -> bare = false }
     fi
  od
}

proctype Other() {
  byte time = 0;
  do
  :: time == TIMES -> break
  :: else ->
     time++;
     atomic { !bare -> bare = true };
     if
     :: !is_biased
     :: is_biased ->
        is_biased = false;
        if
        :: BREAK == 2
        :: BREAK != 2 -> FENCE
        fi;
        do
        :: !is_inside || BREAK == 5 -> break
        :: is_inside && BREAK != 5 ->
           /* The kernel checks again before it lets the thread sleep. */
           atomic { sleeps = is_inside && BREAK != 2 };
           !sleeps
        od
     fi;
     streak = 0;
     Has();
     assert(!is_entered);
     bare = false
  od
}

init {
  byte each;
  atomic {
    run Processor();
    run Home();
    for (each : 1 .. OTHERS) {
      run Other()
    }
  }
}
