/* What mail.h and point_to_point.h promise of mail, for spin(1) to check in
 * every interleaving: nobody waits for ever for what has come. One rank leaves
 * another one messages; threads of that one start to receive them and wait for
 * their ends, looking for mail for a while or not at all; its postman looks from
 * time to time, and sleeps where it can do without.
 *
 * Steps of different threads come one after the other here. On processors a
 * store may come after a later load; where that matters mail.h has a fence.
 * -DBREAK=1 to 7 is what could happen without one of them, or without something
 * else, which must then be found.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef WAITERS
#define WAITERS 2
#endif
#ifndef BREAK
#define BREAK 0
#endif

byte put;                /* how many have come */
byte taken;              /* how many of them were taken */
byte awaited[WAITERS];   /* which one a thread has started to receive */
bool complete[WAITERS];  /* it has been told of its end */
byte running;            /* how many have been started and not taken */
bool left;               /* ends that somebody else shall tell of */
byte started;
bool wants;
bool asleep;
bool rung;  /* since the postman began to doze */
bool rests; /* the postman sleeps until he is rung for */
byte lookers;

inline TakePut() {
  taken = put;
  running = 0;
  for (i : 0 .. WAITERS - 1) {
    if
    :: awaited[i] > taken -> running++
    :: else
    fi
  }
  if
  :: running == 0 -> wants = false
  :: else
  fi;
  i = 0
}

/* PointToPoint::TakeMail, under its lock. */
inline Take(has_come) {
  atomic {
    has_come = (taken < put) || left;
    if
    :: taken < put -> TakePut()
    :: else
    fi;
    left = false;
    for (i : 0 .. WAITERS - 1) {
      complete[i] = awaited[i] <= taken
    }
    i = 0
  }
}

/* PointToPoint::WantMail, under the lock. */
inline WantMail() {
  atomic {
    if
    :: running > 0 -> wants = true
    :: else
    fi
  }
}

/* PointToPoint::Start, under the lock. */
inline Start(next) {
  atomic {
    awaited[me] = next;
    complete[me] = false;
    running++;
    TakePut();
    /* HaveProgressThreadLook */
    if
    :: running > 0 ->
#if BREAK != 5 /* the postman does not learn of it */
      started++;
#endif
#if BREAK != 6 /* nor is he woken */
      if
      :: rests ->
        rests = false;
        rung = true
      :: else
      fi
#endif
    :: else
    fi;
    /* LeaveToOthers */
    for (i : 0 .. WAITERS - 1) {
      if
      :: awaited[i] <= taken && !complete[i] ->
        if
        :: i == me -> complete[i] = true
        :: else -> left = true
        fi
      :: else
      fi
    }
    i = 0;
    if
    :: left ->
      started++;
#if BREAK != 7 /* leaves it to nobody */
      if
      :: wants || rests -> rung = true
      :: else
      fi;
#endif
      rests = false
    :: else
    fi
  }
}

inline Ring() {
  if
  :: wants ->
    if
    :: asleep ->
      if
      :: lookers == 0 -> rung = true
      :: else
      fi
    :: else
    fi
  :: else
  fi
}

proctype Sender() {
  do
  :: put == MESSAGES -> break
  :: else ->
#if BREAK == 1 /* looks who sleeps before the message is out */
    Ring();
    put++
#else
    put++;
    Ring()
#endif
  od
}

proctype Waiter(byte me) {
  byte i;
  byte next = me + 1;
  bool has_come;
  do
  :: next > MESSAGES -> break
  :: else ->
    Start(next);
    if
    :: lookers++;
      do
      :: complete[me] -> break
      :: lookers--;
        Take(has_come);
        lookers++
      :: !complete[me] ->
#if BREAK == 2 /* wants mail after it has looked for it */
        Take(has_come);
#endif
        WantMail();
        break
      od;
      lookers--;
#if BREAK != 2 && BREAK != 3 /* does not look behind itself */
      Take(has_come)
#endif
    :: true
    fi;
    complete[me]; /* waits for its end */
    next = next + WAITERS
  od
}

proctype Postman() {
  byte i;
  byte seen;
  bool has_come;
  do
  :: true ->
#if BREAK == 4 /* sleeps after its last look */
    WantMail();
    Take(has_come);
    rung = false;
    asleep = true;
#else
    rung = false;
    asleep = true;
    WantMail();
    Take(has_come);
#endif
    if
    :: has_come
    :: else ->
      atomic {
        if
        :: started == seen -> rests = true
        :: true
        fi;
        seen = started
      }
      if
      :: rests ->
end:    rung /* FUTEX_WAIT */
      :: else /* for a while */
      fi;
      asleep = false
    fi
  od
}

init {
  byte waiter;
  atomic {
    for (waiter : 0 .. WAITERS - 1) {
      complete[waiter] = true
    }
    run Sender();
    run Postman();
    for (waiter : 0 .. WAITERS - 1) {
      run Waiter(waiter)
    }
  }
}
