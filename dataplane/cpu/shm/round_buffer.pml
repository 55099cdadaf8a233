/* A model for spin(1) of round_buffer.h. In every interleaving of a few ranks
 * and rounds, a rank sees only the round that it awaits, data that is being
 * read is not overwritten, and no rank sleeps for ever. Each rank may await any
 * others. With -DRING=5, a round's data may be in the slot (note) or in a ring
 * of so many cells, of which it takes one or two.
 *
 * Steps of different ranks are sequential here. On processors they are, as far
 * as it matters: a slot's round is stored with release and loaded with acquire.
 * One store matters that a processor may hold back while its rank goes on: that
 * of the round, in front of the check for sleepers. Each processor holds back
 * up to HOLDS of them and lets them out in order: at any time, but before its
 * rank wakes another or checks for the last time before its nap (a fence), and
 * before the end of another rank's nap if it held them when that nap began.
 * With -DHOLDS=0 nothing is held back, and more rounds can be checked.
 *
 * A sleeping rank sleeps until it is woken: no wake-up may depend on the check
 * that RoundBuffer makes each second.
 *
 * With -DLEAVES=1 any rank may fail before any of its rounds, and leave; so
 * does a rank that sees that another has left. A rank that sees this knows of
 * the failure, and does not see it in place of a round that was posted before.
 * A rank that sees data that another has written after it left knows of the
 * failure, too. With -DDIES=1 any rank may end silently before any of its
 * rounds, as a killed process does, and each rank is woken (Wake) at some time.
 *
 * Each of -DBREAK=1 to 15 leaves out a step. Spin must find the error.
 */
#ifndef RANKS
#define RANKS 3
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef BREAK
#define BREAK 0
#endif

#ifndef NOTES
#define NOTES 2
#endif

#ifndef RING
#define RING 0
#endif

#ifndef HOLDS
#define HOLDS 1
#endif

#ifndef LEAVES
#define LEAVES 0
#endif

#ifndef DIES
#define DIES 0
#endif

#define NOTE(rank, round) ((rank) * NOTES + (round) % NOTES)
#define CELL(rank, place) ((rank) * RING + (place))
#define CELLS(rank, round) (1 + ((rank) + (round)) % 2)
#define HERE 7
#define WRITING 255

byte posted[RANKS * NOTES]; /* the round of a note, times 8, + place */
byte noted[RANKS * NOTES];  /* the round whose data it has */
#if RING
byte kept[RANKS * RING];    /* the round whose data a cell has */
#endif
byte stored[RANKS * NOTES]; /* `posted`, as its rank's processor sees it */
byte last[RANKS];           /* the last round that a rank has stored */
byte out[RANKS];            /* the last one that is visible to others */
byte asleep[RANKS]; /* the rank that it waits for, plus 1; 0: awake */
byte sleepers; /* the number of ranks marked as sleeping */
bool rung[RANKS]; /* woken since it last began to sleep */
#if LEAVES
bool left[RANKS];
bool failed[RANKS];  /* a rank has failed and left, as seen by each */
bool spoiled[RANKS]; /* written by a rank that has left */
#define LEFT(peer) left[peer]
#else
#define LEFT(peer) false
#endif
#if DIES
bool woken[RANKS];
#define WOKEN(rank) woken[rank]
#else
#define WOKEN(rank) false
#endif

#define SHOWS(peer, round) (posted[NOTE(peer, round)] >= (round) * 8)
#define FENCE(rank) (out[rank] == last[rank])

/* Makes the stores visible that it holds back. */
proctype Processor(byte rank) {
end:
  do
  :: d_step {
       out[rank] != last[rank] ->
       out[rank]++;
       posted[NOTE(rank, out[rank])] = stored[NOTE(rank, out[rank])]
     }
  od
}

/* Checks when `guard` holds; it then holds for good. */
inline LookWhen(guard, peer, round) {
  atomic {
    guard;
    over = SHOWS(peer, round) || LEFT(peer) || WOKEN(me) || rung[me]
  }
}

/* RoundBuffer::IsOver, if nothing has been posted at the first check. */
inline FindWhetherOver(peer, round) {
#if BREAK == 11 /* checks for leaving after it checks for the post */
  over = SHOWS(peer, round);
  gone = LEFT(peer);
#else
  gone = LEFT(peer);
  over = SHOWS(peer, round);
#endif
  atomic {
    if
    :: over -> gone = false
    :: else ->
#if LEAVES
      assert(!gone || (last[peer] < round && failed[me]));
#endif
      gone = gone || WOKEN(me);
      over = gone
    fi
  }
}

inline SayAsleep(peer) {
#if BREAK != 10
  sleepers++;
#endif
  atomic {
    asleep[me] = (peer) + 1;
    before = last[peer]
  }
}

inline SayAwake() {
  asleep[me] = 0;
  sleepers--
}

/* RoundBuffer::Await. Spinning is the loop's first choice. `gone`: the wait
 * ended otherwise. */
inline Await(peer, round) {
  do
  :: SHOWS(peer, round) -> break
  :: else ->
#if LEAVES || DIES
    FindWhetherOver(peer, round);
    if
    :: over ->
      over = false;
      break
    :: else
    fi;
#endif
    rung[me] = false; /* `rings` is read */
#if BREAK != 1 /* marks itself as sleeping after its last check */
    SayAsleep(peer);
#endif
    LookWhen(FENCE(me), peer, round);
    if
    :: over
    :: else ->
      /* the nap */
#if BREAK == 9 /* a signal ends it */
      LookWhen(true, peer, round);
#else
      LookWhen(rung[me] || out[peer] >= before, peer, round);
#endif
#if BREAK == 7 /* not marked between nap and sleep, but checks again */
      SayAwake();
      SayAsleep(peer);
      LookWhen(FENCE(me), peer, round);
#endif
      if
#if BREAK != 4 /* no check after the nap */
      :: over
#endif
      :: else ->
#if BREAK == 1
        SayAsleep(peer);
#endif
#if BREAK == 10 /* counted after its last check */
        sleepers++;
#endif
#if BREAK == 8 /* reads `rings` after its last check */
        rung[me] = false;
#endif
        rung[me] /* FUTEX_WAIT */
      fi
    fi;
    atomic {
      SayAwake();
      before = 0;
      over = false
    }
  od
}

inline Look(peer, round, place) {
  if
  :: place == HERE -> assert(noted[NOTE(peer, round)] == round)
#if RING
  :: else ->
    assert(kept[CELL(peer, place)] == round);
    assert(kept[CELL(peer, place + CELLS(peer, round) - 1)] == round)
#endif
  fi
}

inline Write(to, value) {
  to = WRITING;
  to = value
}

/* RoundBuffer::TakeOfRing */
#if RING
inline TakeOfRing() {
  if
  :: taken % RING + CELLS(me, round) > RING ->
    taken = taken + RING - taken % RING
  :: else
  fi;
  place = taken % RING;
  taken = taken + CELLS(me, round);
#if BREAK != 6 /* the ring is used as if it was a note */
  other = (needed > 1 -> needed : 1);
  do
  :: taken_before[other % NOTES] + RING < taken ->
    other++;
    needed = other
  :: else -> break
  od;
  other = 0
#endif
}
#endif

/* Wakes the ranks that sleep for this rank. */
inline RingSleepers() {
  for (peer : 0 .. RANKS - 1) {
    if
    :: peer != me && asleep[peer] == me + 1 ->
      atomic {
        FENCE(me);
        rung[peer] = true
      }
    :: else
    fi
  }
}

#if LEAVES
inline SayThatItFailed() {
  for (peer : 0 .. RANKS - 1) {
    failed[peer] = true
  }
}

/* RoundBuffer::Leave, and the owner's later writes. */
inline Leave() {
#if BREAK != 12 /* announces the failure after it has left */
  SayThatItFailed();
#endif
#if BREAK == 14 /* checks for sleepers before others see that it left */
  RingSleepers();
#endif
  atomic {
    FENCE(me);
    left[me] = true
  }
#if BREAK == 12
  SayThatItFailed();
#endif
#if BREAK != 13 && BREAK != 14 /* wakes no rank */
  RingSleepers();
#endif
  spoiled[me] = true
}
#endif

#if DIES
/* RoundBuffer::Wake */
proctype Waker(byte rank) {
#if BREAK == 15 /* wakes before `woken` is set */
  rung[rank] = true;
#endif
  woken[rank] = true;
#if BREAK != 15
  rung[rank] = true
#endif
}
#endif

proctype Rank(byte me) {
  byte round = 1;
  byte peer;
  byte place;
  byte needed;
  bool over;
  bool gone;
  byte before; /* the last round that its peer had stored before its nap */
#if RING
  byte taken = 0;
  byte taken_before[NOTES]; /* `taken` when the round began */
  byte other;
#endif
  do
  :: round > ROUNDS -> break
#if LEAVES
  :: round <= ROUNDS -> goto leave
#endif
#if DIES
  :: round <= ROUNDS -> goto done
#endif
  :: round <= ROUNDS ->
    /* Open */
    atomic {
#if BREAK == 5 /* a note is reused one round too early */
      needed = (round < NOTES + 1 -> 0 : round - NOTES);
#else
      needed = (round < NOTES -> 0 : round - NOTES + 1);
#endif
#if RING
      taken_before[round % NOTES] = taken;
#endif
      if
      :: place = HERE
#if RING
      :: true -> TakeOfRing()
#endif
      fi
    }
#if BREAK != 2 /* writes without waiting */
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer != me && needed > 0 ->
        Await(peer, needed)
#if LEAVES || DIES
        ;
        if
        :: gone -> goto leave
        :: else
        fi
#endif
      :: else
      fi
    }
#endif
#if BREAK == 3 /* the number is stored before the data */
    posted[NOTE(me, round)] = round * 8 + place;
#endif
    if
    :: place == HERE -> Write(noted[NOTE(me, round)], round)
#if RING
    :: else ->
      Write(kept[CELL(me, place)], round);
      Write(kept[CELL(me, place + CELLS(me, round) - 1)], round)
#endif
    fi;
    /* Post */
    atomic {
#if HOLDS == 0
      posted[NOTE(me, round)] = round * 8 + place;
#else
      last[me] - out[me] < HOLDS ->
      stored[NOTE(me, round)] = round * 8 + place;
      last[me] = round;
#endif
      place = 0;
      needed = 0
    }
    if
    :: sleepers > 0 -> RingSleepers()
    :: else
    fi;
    /* Await of any peers */
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer != me ->
        Await(peer, round);
#if LEAVES || DIES
        if
        :: gone -> goto leave
        :: else
        fi;
#endif
        atomic {
          place = posted[NOTE(peer, round)] % 8;
          Look(peer, round, place)
        }
        /* the data is still there after any steps of others */
        Look(peer, round, place);
        place = 0;
#if LEAVES
        over = spoiled[peer];
        assert(!over || failed[me]);
        over = false
#endif
      :: true
      fi
    }
    round++
  od
#if LEAVES || DIES
  ;
  goto done;
leave:
#if LEAVES
  Leave();
#endif
done:
  skip
#endif
}

init {
  byte rank;
  atomic {
    for (rank : 0 .. RANKS - 1) {
#if DIES
      run Waker(rank);
#endif
      run Processor(rank);
      run Rank(rank)
    }
  }
}
