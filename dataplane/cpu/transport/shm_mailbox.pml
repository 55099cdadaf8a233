/* A model for spin(1) of the ShmMailbox and PointToPoint: in every
 * interleaving, no thread waits for ever for a message that has come. One rank
 * puts messages into the mailbox of another. Threads of that rank start to
 * receive them and wait for their completion, with or without polling; its
 * mailbox thread (Postman) polls from time to time, and sleeps when it can.
 *
 * Steps of different threads are sequential here. On processors a store may
 * come after a later load; where that matters, shm_mailbox.cc has a fence. Each
 * of -DBREAK=1 to 7 models a missing fence or step, which spin must find.
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

byte put;                /* the number of messages that have come */
byte taken;              /* the number of messages taken */
byte awaited[WAITERS];   /* the message that a thread receives */
bool complete[WAITERS];  /* its receive is complete */
byte running;            /* receives started and not taken */
bool left;               /* completions left to other threads */
byte started;
bool wants;
bool asleep;
bool rung;  /* the mailbox thread was woken since PrepareToSleep */
bool rests; /* the mailbox thread sleeps until it is woken */
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
    /* HaveMailboxThreadLook */
    if
    :: running > 0 ->
#if BREAK != 5 /* the mailbox thread does not see the start */
      started++;
#endif
#if BREAK != 6 /* the mailbox thread is not woken */
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
#if BREAK != 7 /* wakes no thread for it */
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
#if BREAK == 1 /* checks for sleepers before the message is out */
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
#if BREAK == 2 /* asks to be woken after its last poll */
        Take(has_come);
#endif
        WantMail();
        break
      od;
      lookers--;
#if BREAK != 2 && BREAK != 3 /* does not poll once more */
      Take(has_come)
#endif
    :: true
    fi;
    complete[me]; /* waits for its completion */
    next = next + WAITERS
  od
}

proctype Postman() {
  byte i;
  byte seen;
  bool has_come;
  do
  :: true ->
#if BREAK == 4 /* sleeps after its last poll */
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
      :: else /* sleeps for a while */
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
