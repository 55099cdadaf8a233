#!/usr/bin/env python3
"""Measures a fleet of three coordinators on an etcd of three members: how long
a client waits when its coordinator drains or is killed, what the load of one
job costs the job of another coordinator, and what an operation costs three
coordinators and one.

    fleet_bench.py MUSTER_COORDINATOR MUSTERCTL FLEET_CALLER [--rounds=20]
        [--kills=5] [--lease=5] [--seconds=5] [--only=drain,kill,load,cost]
        [--json=FILE]
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "fault"),
                os.path.join(HERE, "..", "end2end")]
from numbered_fleet import NumberedFleet, shard  # noqa: E402  pylint: disable=C0413
from processes import Processes  # noqa: E402  pylint: disable=C0413

# Targets.
DRAIN_GAP_MS = 300
FAILOVER_MS_BEYOND_LEASE = 1000
LOAD_RATIO = 1.2
COST_RATIO = 1.5
# Rounds of the loads, whose medians are taken.
ROUNDS = 3
# The load of `load`, and that of each job of `cost`.
LOAD_SESSIONS, COST_JOBS, COST_SESSIONS = 16, 12, 4


class Caller:
    """A fleet_caller. Use as a context."""

    def __init__(self, program, fleet, job, sessions=1):
        self.process = subprocess.Popen(
            [program, fleet.endpoint, job, str(sessions)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("fleet_caller does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def take(self):
        """(operations, p50 in us, p99 in us, longest gap in ms) since the last
        call of this."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if len(line) != 4:
            raise RuntimeError("fleet_caller has ended")
        return int(line[0]), *map(float, line[1:])

    def gap_ms(self):
        """The longest gap since the last call, and of the next answers."""
        longest, answers = 0, 0
        while answers < 2:
            operations, _, _, gap = self.take()
            longest = max(longest, gap)
            # The first one may have been given before the call of this.
            answers += operations > 0
            wait(0.05)
        return longest


def wait(seconds):
    threading.Event().wait(seconds)


def figure(name, value, unit, target, reference=None, reference_value=None):
    ratio = value / reference_value if reference_value else None
    judged = value if ratio is None else ratio
    row = {"name": name, "value": value, "unit": unit, "reference": reference,
           "reference_value": reference_value, "ratio": ratio, "target": target,
           "met": judged <= target if target else None}
    beside = "" if ratio is None else f", {ratio:.2f} x {reference}"
    verdict = "" if target is None else "met" if row["met"] else "MISSED"
    wanted = "" if target is None else f" (wanted: at most {target:g})"
    print(f"{verdict:6} {name}: {value:.6g} {unit}{beside}{wanted}", flush=True)
    return row


class Bench:

    def __init__(self, options, processes):
        self.options, self.processes = options, processes
        self.fleet = self.start_fleet(3)

    def start_fleet(self, size):
        return NumberedFleet(self.processes, self.options.coordinator,
                             self.options.musterctl, size=size,
                             lease_s=self.options.lease)

    def caller(self, job, sessions=1, fleet=None):
        return Caller(self.options.caller, fleet or self.fleet, job, sessions)

    def job_of(self, owner):
        owners = self.fleet.owners()
        return next(job for job in map("job{}".format, itertools.count())
                    if owners[shard(job)] == owner)

    def gaps(self, end):
        """The gaps when `end` ends a job's coordinator, again and again."""
        gaps = []
        with self.caller("gaps") as caller:
            while True:
                owner = self.fleet.owner("gaps")
                caller.take()
                end(owner)
                gaps.append(caller.gap_ms())
                yield gaps
                self.fleet.start(owner)
                self.fleet.await_whole()

    def drain(self):
        gaps = next(itertools.islice(self.gaps(self.fleet.drain),
                                     self.options.rounds - 1, None))
        self.restart_all()
        return [figure(f"drain: gap between two answers to a caller, median of "
                       f"{len(gaps)}", statistics.median(gaps), "ms",
                       DRAIN_GAP_MS),
                figure("drain: the longest gap", max(gaps), "ms", None)]

    def kill(self):
        gaps = next(itertools.islice(self.gaps(self.fleet.kill),
                                     self.options.kills - 1, None))
        self.restart_all()
        lease = self.options.lease
        return [figure(f"kill -9 with a lease of {lease} s: the longest of "
                       f"{len(gaps)} gaps between two answers to a caller",
                       max(gaps), "ms",
                       lease * 1000 + FAILOVER_MS_BEYOND_LEASE),
                figure("kill -9: the median gap", statistics.median(gaps), "ms",
                       None)]

    def restart_all(self):
        """Starts those coordinators that have ended."""
        for number, program in enumerate(self.fleet.programs):
            if program.process.poll() is not None:
                self.fleet.start(number)
        self.fleet.await_whole()

    def load(self):
        """A caller of one coordinator while another one has a load, beside a
        caller of a fleet without load on the same machine: the load takes
        processor time and the disk from both alike."""
        other = self.start_fleet(1)
        names = ("p50", "p99")
        seen = {(loaded, whose, name): [] for loaded in (False, True)
                for whose in ("mine", "other") for name in names}
        with self.caller(self.job_of(0)) as mine, \
                self.caller("job", fleet=other) as beside:
            for loaded in [False, True] * ROUNDS:
                load = (self.caller(self.job_of(1), LOAD_SESSIONS) if loaded
                        else None)
                mine.take()
                beside.take()
                wait(self.options.seconds)
                for whose, caller in (("mine", mine), ("other", beside)):
                    _, *latencies, _ = caller.take()
                    for name, value in zip(names, latencies):
                        seen[loaded, whose, name].append(value)
                if load is not None:
                    load.__exit__()
        figures = []
        for name in names:
            median = {key: statistics.median(values)
                      for key, values in seen.items() if key[2] == name}
            figures += [
                figure(f"load: another owner's Set without the load {name}",
                       median[False, "mine", name], "us", None,
                       "the same in another fleet",
                       median[False, "other", name]),
                figure(f"load: another owner's Set beside {LOAD_SESSIONS} "
                       f"callers {name}", median[True, "mine", name], "us",
                       LOAD_RATIO, "the same in another fleet",
                       median[True, "other", name])]
        return figures

    def cost(self):
        alone = self.start_fleet(1)
        owners = self.fleet.owners()
        left = {number: COST_JOBS // 3 for number in range(3)}
        jobs = []
        for job in map("job{}".format, itertools.count()):
            if left[owners[shard(job)]] > 0:
                left[owners[shard(job)]] -= 1
                jobs.append(job)
            if len(jobs) == COST_JOBS:
                break
        costs, rates = {1: [], 3: []}, {1: [], 3: []}
        for _ in range(ROUNDS):
            for size, fleet in ((1, alone), (3, self.fleet)):
                callers = [self.caller(job, COST_SESSIONS, fleet)
                           for job in jobs]
                wait(1)
                for caller in callers:
                    caller.take()
                used = cpu_s(fleet)
                wait(self.options.seconds)
                operations = sum(caller.take()[0] for caller in callers)
                used = cpu_s(fleet) - used
                for caller in callers:
                    caller.__exit__()
                costs[size].append(used * 1e6 / operations)
                rates[size].append(operations / self.options.seconds)
        callers = COST_JOBS * COST_SESSIONS
        return [
            figure(f"cost: processor time of a Set at three coordinators, "
                   f"{callers} callers of {COST_JOBS} jobs",
                   statistics.median(costs[3]), "us", COST_RATIO,
                   "at one coordinator", statistics.median(costs[1])),
            figure("cost: Sets a second at three coordinators",
                   statistics.median(rates[3]), "op/s", None,
                   "at one coordinator", statistics.median(rates[1]))]


def cpu_s(fleet):
    """The processor time that the coordinators have used."""
    ticks = 0
    for program in fleet.programs:
        with open(f"/proc/{program.pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("coordinator", help="the program muster-coordinator")
    parser.add_argument("musterctl", help="the program musterctl")
    parser.add_argument("caller", help="the program fleet_caller")
    parser.add_argument("--rounds", type=int, default=20, help="drains")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--lease", type=int, default=5,
                        help="--etcd_lease, in seconds")
    parser.add_argument("--seconds", type=float, default=5,
                        help="of each round of a load")
    parser.add_argument("--only", default="drain,kill,load,cost",
                        help="what to measure, with commas between")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    for program in ("coordinator", "musterctl", "caller"):
        setattr(options, program, os.path.abspath(getattr(options, program)))
    with Processes() as processes:
        bench = Bench(options, processes)
        figures = []
        for name in options.only.split(","):
            figures += getattr(bench, name)()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=1)


if __name__ == "__main__":
    main()
