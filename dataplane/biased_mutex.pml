/* What biased_mutex.h promises, for spin(1) to check in every interleaving of a
 * home and others: one of them has it at a time, and nobody waits for ever.
 *
 * Steps come one after the other here. On a processor of x86-64 they do so but
 * for the stores of a thread that it holds back, in their order, while the
 * thread goes on and loads. The home holds back what it says of where it is, up
 * to two of them; at any time some are let out, and all at a fence: its own, an
 * instruction that locks, or one that the system has it pass. (Weaker ones may
 * do more between two fences, and no more than that at one.)
 *
 * It is biased at the home's second locking, and whenever the home has had it
 * without that twice.
 *
 * -DBREAK=1 to 5 leaves out something that must then be found missing.
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
byte holders;
bool sleeps; /* who takes the bias away, until the home wakes it */
byte streak;

/* What the home has stored, and others do not see yet. */
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
  bool entered;
  do
  :: time == HOME_TIMES -> break
  :: else ->
     time++;
     entered = false;
     if
     :: !is_biased
     :: is_biased ->
        held_back!true;
        if
        :: BREAK == 1 -> entered = true
        :: BREAK != 1 && is_biased -> entered = true
        :: BREAK != 1 && !is_biased -> Leave()
        fi
     fi;
     if
     :: entered
     :: !entered ->
        /* A fence, as all that take it. */
        atomic { !bare && FENCE -> bare = true };
        streak++;
        if
        :: streak < 2
        :: else ->
           streak = 0;
           held_back!true;
           entered = true;
           is_biased = true;
           atomic { FENCE -> bare = false }
        fi
     fi;
     Has();
     if
     :: entered -> Leave()
     :: !entered -> atomic { FENCE -> bare = false }
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
           /* The system looks again before it lets the thread sleep. */
           atomic { sleeps = is_inside };
           !sleeps
        od
     fi;
     streak = 0;
     Has();
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
