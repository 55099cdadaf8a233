/* What board.h promises, for spin(1) to check in every interleaving of a few
 * ranks and rounds: nobody is shown anything but the round that he awaits,
 * nothing that is being read is written, and nobody sleeps for ever. Who awaits
 * whom is any choice.
 *
 * Steps of different ranks come one after the other here. On processors they do
 * so as far as it matters: a slot's round is stored with release and loaded
 * with acquire. One store matters that a processor may hold back while it goes
 * on: that of the round, in front of the look at who sleeps. It is out before
 * that if who posts has a fence there; else who is about to sleep sees to it,
 * on all processors (membarrier(2)), with -DSLEEPERS_FENCE=1.
 *
 * -DBREAK=1 to 4 leaves out something that must then be found missing.
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

#define SLOT(rank, round) ((rank) * 2 + (round) % 2)
#define WRITING 255

byte posted[RANKS * 2]; /* the round in front of a slot */
byte shown[RANKS * 2];  /* whose contents it has */
byte held[RANKS]; /* a round that its processor has not let out; 0: none */
bool asleep[RANKS];
bool rung[RANKS]; /* since it last began to sleep */

inline LetOut(rank) {
  if
  :: held[rank] > 0 ->
    posted[SLOT(rank, held[rank])] = held[rank];
    held[rank] = 0
  :: else
  fi
}

/* Board::AwaitRound; looking for a while is the loop's first choice. */
inline Await(peer, round) {
  do
  :: posted[SLOT(peer, round)] >= round -> break
  :: else ->
    rung[me] = false;
#if BREAK == 1 /* says that it sleeps after its last look */
    if
    :: posted[SLOT(peer, round)] >= round
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
    :: posted[SLOT(peer, round)] >= round
    :: else -> rung[me] /* FUTEX_WAIT */
    fi;
#endif
    asleep[me] = false
  od
}

proctype Rank(byte me) {
  byte round = 1;
  byte peer;
  byte other;
  do
  :: round > ROUNDS -> break
  :: else ->
    /* Open */
#if BREAK != 2 /* writes without waiting */
    for (peer : 0 .. RANKS - 1) {
      Await(peer, round - 1)
    }
#endif
    shown[SLOT(me, round)] = WRITING;
#if BREAK == 3 /* the number before the contents */
    posted[SLOT(me, round)] = round;
    shown[SLOT(me, round)] = round;
#else
    shown[SLOT(me, round)] = round;
    /* Post */
    atomic {
      held[me] = round;
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
        assert(shown[SLOT(peer, round)] == round);
        /* and still, after any step of others */
        assert(shown[SLOT(peer, round)] == round)
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
