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
 * There is one home: in biased_mutex.h the first one stays it.
 *
 * -DBREAK leaves out something that must then be found missing: 1, the home's
 * second look; 2, the fence of who takes the bias away (who only looks, then,
 * and never sleeps); 3, that the home wakes him; 4, its fence before that; 5,
 * that he waits for the home; 6, that the home says how it had it before it
 * leaves, and not after.
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
        /* A fence, as all that take it. */
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
           /* The system looks again before it lets the thread sleep. */
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
