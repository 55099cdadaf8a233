/* What board.h promises, for spin(1) to check in every interleaving of a few
 * ranks and rounds: nobody is shown anything but the round that he awaits,
 * nothing that is being read is written, and nobody sleeps for ever. Who awaits
 * whom is any choice; so is, with -DSLOTS=1, whether a round's contents go to
 * the note or to a slot.
 *
 * Steps of different ranks come one after the other here. On processors they do
 * so as far as it matters: a note's round is stored with release and loaded
 * with acquire. One store matters that a processor may hold back while it goes
 * on: that of the round, in front of the look at who sleeps. It is out before
 * that if who posts has a fence there; else who is about to sleep sees to it,
 * on all processors (membarrier(2)), with -DSLEEPERS_FENCE=1.
 *
 * -DBREAK=1 to 6 leaves out something that must then be found missing.
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

#ifndef SLEEPERS_FENCE
#define SLEEPERS_FENCE 0
#endif

#ifndef NOTES
#define NOTES 2
#endif

#ifndef SLOTS
#define SLOTS 0
#endif

#define NOTE(rank, round) ((rank) * NOTES + (round) % NOTES)
#define SLOT(rank, place) ((rank) * 2 + (place))
#define HERE 2
#define WRITING 255

byte posted[RANKS * NOTES]; /* the round in front of a note, times 4, + place */
byte noted[RANKS * NOTES];  /* whose contents it has */
byte kept[RANKS * 2];       /* whose contents a slot has */
byte held[RANKS]; /* what its processor has not let out of `posted`; 0: nothing */
bool asleep[RANKS];
bool rung[RANKS]; /* since it last began to sleep */

inline LetOut(rank) {
  if
  :: held[rank] > 0 ->
    posted[NOTE(rank, held[rank] / 4)] = held[rank];
    held[rank] = 0
  :: else
  fi
}

/* Board::AwaitRound; looking for a while is the loop's first choice. */
inline Await(peer, round) {
  do
  :: posted[NOTE(peer, round)] >= (round) * 4 -> break
  :: else ->
    rung[me] = false;
#if BREAK == 1 /* says that it sleeps after its last look */
    if
    :: posted[NOTE(peer, round)] >= (round) * 4
    :: else -> asleep[me] = true; rung[me]
    fi;
#else
    asleep[me] = true;
#if SLEEPERS_FENCE && BREAK != 4 /* nobody has a fence */
    atomic {
      for (other : 0 .. RANKS - 1) {
        LetOut(other)
      }
    }
#endif
    if
    :: posted[NOTE(peer, round)] >= (round) * 4
    :: else -> rung[me] /* FUTEX_WAIT */
    fi;
#endif
    asleep[me] = false
  od
}

inline Look(peer, round, place) {
  if
  :: place == HERE -> assert(noted[NOTE(peer, round)] == round)
  :: else -> assert(kept[SLOT(peer, place)] == round)
  fi
}

inline Write(to, value) {
  to = WRITING;
  to = value
}

proctype Rank(byte me) {
  byte round = 1;
  byte peer;
  byte other;
  byte place;
  byte needed;
#if SLOTS
  byte next_slot = 0;
  byte last[2]; /* the round that a slot was used in */
#endif
  do
  :: round > ROUNDS -> break
  :: else ->
    /* Open */
    atomic {
#if BREAK == 5 /* a note is written again one round too early */
      needed = (round < NOTES + 1 -> 0 : round - NOTES);
#else
      needed = (round < NOTES -> 0 : round - NOTES + 1);
#endif
      if
      :: place = HERE
#if SLOTS
      :: place = next_slot;
#if BREAK != 6 /* a slot is taken as if it was a note */
        if
        :: last[place] > 0 && last[place] + 1 > needed ->
          needed = last[place] + 1
        :: else
        fi;
#endif
        last[place] = round;
        next_slot = 1 - next_slot
#endif
      fi
    }
#if BREAK != 2 /* writes without waiting */
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer != me && needed > 0 -> Await(peer, needed)
      :: else
      fi
    }
#endif
#if BREAK == 3 /* the number before the contents */
    posted[NOTE(me, round)] = round * 4 + place;
#endif
    if
    :: place == HERE -> Write(noted[NOTE(me, round)], round)
    :: else -> Write(kept[SLOT(me, place)], round)
    fi;
#if BREAK != 3
    /* Post */
    atomic {
      held[me] = round * 4 + place;
      place = 0;
      needed = 0;
#if !SLEEPERS_FENCE
      LetOut(me)
#endif
    }
#endif
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer != me && asleep[peer] -> rung[peer] = true
      :: else
      fi
    }
    atomic {
      LetOut(me)
    }
    /* Await, of any of them */
    for (peer : 0 .. RANKS - 1) {
      if
      :: peer != me ->
        Await(peer, round);
        place = posted[NOTE(peer, round)] % 4;
        Look(peer, round, place);
        /* and still, after any step of others */
        Look(peer, round, place);
        place = 0
      :: true
      fi
    }
    round++
  od
}

init {
  byte rank;
  atomic {
    for (rank : 0 .. RANKS - 1) {
      run Rank(rank)
    }
  }
}
