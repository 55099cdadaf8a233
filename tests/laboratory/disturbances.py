"""Draws the disturbances of a training and their times from a seed."""

import dataclasses
import random

LEASE_S = 2
# Pauses in which no lease ends, and in which one does.
SHORT_S = (0.2, 0.8)
LONG_S = (LEASE_S + 1, LEASE_S + 2)


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """One disturbance."""
    step: int  # of the training, before the disturbance
    what: str  # kill, hang, stop, cut
    whom: str  # rank, agent, host, coordinator
    host: int = 0  # of the rank or agent, from 1
    local_rank: int = 0
    pause_s: float = 0  # until it continues or is started again

    @property
    def is_failure(self):
        """Whether it counts towards --max-restarts."""
        return self.whom == "rank" and (self.what != "stop" or
                                        self.pause_s > LEASE_S)

    def __str__(self):
        place = {"rank": f" {self.local_rank} of host {self.host}",
                 "agent": f" of host {self.host}",
                 "host": f" {self.host}"}.get(self.whom, "")
        pause = "" if self.what == "hang" else f", {self.pause_s:.1f} s"
        return (f"after step {self.step}: {self.what} {self.whom}{place}"
                f"{pause}")


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to run and to recover."""
    name: str
    hosts: int
    nproc: int
    run: tuple  # options of muster-run
    train: tuple  # options of the training
    deck: tuple  # possible disturbances
    # A killed muster-run is restarted, like a pod.
    comes_back: bool = True
    # The number of ranks is always the same afterwards.
    same_world: bool = True


EVERYTHING = (("kill", "rank"), ("hang", "rank"), ("stop", "rank"), ("kill", "agent"),
              ("stop", "agent"), ("cut", "host"), ("kill", "coordinator"),
              ("stop", "coordinator"), ("cut", "coordinator"))
ONE_HOST = tuple(card for card in EVERYTHING
                 if card[1] in ("rank", "coordinator"))

WAYS = {way.name: way for way in (
    Way("restart", hosts=2, nproc=2, run=("--nnodes=2",),
        train=("--on_failure=exit",), deck=EVERYTHING),
    Way("elastic", hosts=3, nproc=2,
        run=("--nnodes=1:3", "--rdzv-conf=last_call_timeout=0.5"),
        train=("--on_failure=exit",), deck=EVERYTHING, same_world=False),
    Way("reform", hosts=1, nproc=4,
        run=("--restart=rank",),
        train=("--on_failure=reform",), deck=ONE_HOST),
    Way("shrink", hosts=3, nproc=2, run=("--nnodes=3", "--restart=none"),
        train=("--on_failure=shrink",), deck=EVERYTHING,
        comes_back=False, same_world=False),
)}


class Plan:
    """Draws disturbances for a way. Iterate over it once."""

    def __init__(self, way, seed, number, steps):
        self.way = way
        self.random = random.Random(f"{way.name} {seed}")
        self.steps = [int(steps * (0.1 + 0.7 * (i + self.random.random()) /
                                   number)) for i in range(number)]
        self.cards = []
        # Ranks without a disturbance so far: in a way in which nobody comes
        # back, some must stay.
        self.whole = {(host, local) for host in range(1, way.hosts + 1)
                      for local in range(way.nproc)}

    def __iter__(self):
        for step in self.steps:
            yield self.draw(step)

    def draw(self, step):
        while True:
            if not self.cards:
                self.cards = list(self.way.deck)
                self.random.shuffle(self.cards)
            what, whom = self.cards.pop()
            host, local = self.random.choice(sorted(self.whole))
            pause_s = self.random.uniform(*self.random.choice(
                (SHORT_S, LONG_S)))
            if self.spends(what, whom, host, local):
                return Disturbance(step, what, whom, host, local, pause_s)

    def spends(self, what, whom, host, local):
        """Whether enough ranks are left after it; if so, counts it."""
        if self.way.comes_back or whom == "coordinator":
            return True
        if (what, whom) == ("stop", "agent"):
            return True
        gone = ({(host, local)} if whom == "rank" else
                {rank for rank in self.whole if rank[0] == host})
        if len(self.whole - gone) < 2:
            return False
        self.whole -= gone
        return True
