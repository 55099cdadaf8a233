#!/usr/bin/env python3
"""Measures how soon the other workers detect a lost worker, and train on.

Three workers train, each on a host of its own (a network namespace). One is
killed or stopped (SIGSTOP), or its host is cut off, or its muster-run killed.

detect   until every other rank has the error that names the culprit
recover  until the training has a group again and continues

    recovery_bench.py MUSTER_COORDINATOR MUSTER_RUN TRAIN_FASHION_MNIST
        [--rounds=20] [--lease=10s] [--what=kill,stop,cut,agent]
        [--how=shrink,all,rank] [--json=FILE]
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

WORKERS = 3
# Longer than any step: leases of 10 s, and muster-run's graces of 15 s.
HANG_S = 90
# So long that it does not end during a round.
TRAINING = ("--epochs=1000", "--global_batch=48", "--hidden_units=32",
            "--checkpoint_steps=10")

# Disturbances of everything on a host.
ONE_HOST = ("cut", "agent")

# Recoveries: options of muster-run and of the training, and whether each worker
# has a host of its own.
HOWS = {
    "shrink": (("--restart=none",), "--on_failure=shrink", True,
               "in process with fewer ranks (--restart=none)"),
    "all": (("--max-restarts=9",), "--on_failure=exit", True,
            "all ranks started again (--restart=all)"),
    "rank": (("--restart=rank", "--max-restarts=9"), "--on_failure=reform",
             False, "that rank started again (--restart=rank)"),
}


class Lines:
    """The lines of several programs, with their times."""

    def __init__(self):
        self.lines = []  # (when, program, text)
        self.changed = threading.Condition()

    def read(self, whose, process):
        threading.Thread(target=self._read, args=(whose, process),
                         daemon=True).start()

    def _read(self, whose, process):
        for line in process.stdout:
            now = time.monotonic()
            with self.changed:
                self.lines.append((now, whose, line))
                self.changed.notify_all()

    def when(self, pattern, since, of):
        """The time of the first line with `pattern` after `since` from one of
        the programs `of`."""
        regex = re.compile(pattern)
        end = time.monotonic() + HANG_S
        seen = 0
        with self.changed:
            while True:
                for when, whose, line in self.lines[seen:]:
                    if when >= since and whose in of and regex.search(line):
                        return when
                seen = len(self.lines)
                left = end - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f"no {pattern!r} in {HANG_S} s:\n"
                                       f"{self.text()}")
                self.changed.wait(left)

    def text(self):
        return "".join(f"host {whose}: {line}"
                       for _, whose, line in self.lines[-60:])


class Round:
    """One training with one disturbance."""

    def __init__(self, options, how):
        run, on_failure, self.spread, _ = HOWS[how]
        hosts = WORKERS if self.spread else 1
        self.lab = laboratory.Laboratory(hosts + 1)
        address = self.lab.start_coordinator(options.programs[0],
                                             f"--lease={options.lease}")
        self.checkpoint = os.path.join(self.lab.folder, "checkpoint")
        if self.spread:
            run += ("--nnodes=3" if how == "shrink" else "--nnodes=2:3",
                    "--rdzv-conf=last_call_timeout=1")
        else:
            run += (f"--nproc-per-node={WORKERS}",)
        self.lines = Lines()
        self.agents = {}  # by host
        for number, host in enumerate(self.lab.hosts[1:], 1):
            self.agents[number] = host.start(
                [options.programs[1], f"--rdzv-endpoint={address}",
                 "--rdzv-id=train", *run, "--", options.programs[2], *TRAINING,
                 f"--checkpoint={self.checkpoint}", on_failure],
                stderr=subprocess.STDOUT)
            self.lines.read(number, self.agents[number])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lab.__exit__()

    def await_training(self, number):
        """Waits until that many checkpoints were written."""
        end, last = time.monotonic() + HANG_S, None
        pause = threading.Event()
        while number > 0:
            try:
                now = os.stat(self.checkpoint).st_mtime_ns
            except FileNotFoundError:
                now = None
            if now != last:
                number, last = number - 1, now
            if time.monotonic() > end:
                raise RuntimeError("the training does not begin:\n" +
                                   self.lines.text())
            pause.wait(0.005)

    def ranks(self):
        """{rank: (host, pid)}."""
        ranks = {}
        for host, agent in self.agents.items():
            with open(f"/proc/{agent.pid}/task/{agent.pid}/children",
                      encoding="utf-8") as file:
                children = file.read().split()
            for child in children:
                with open(f"/proc/{child}/environ", "rb") as file:
                    found = re.search(rb"\0RANK=(\d+)\0", file.read())
                if found:
                    ranks[int(found[1])] = host, int(child)
        return ranks

    def measure(self, what, rank):
        """Seconds to detect and to recover."""
        self.await_training(3)
        ranks = self.ranks()
        host, pid = ranks.pop(rank)
        began = time.monotonic()
        if what == "cut":
            self.lab.hosts[host].cut()
        else:
            os.kill(self.agents[host].pid if what == "agent" else pid,
                    signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        detected = max(
            self.lines.when(
                rf"^\[{other}\]: .*group failed: .* culprits={rank} ", began,
                of=[of]) for other, (of, _) in ranks.items())
        recovered = self.lines.when(r"^\[\d+\]: going on after ", began,
                                    of=set(self.agents) - (
                                        {host} if what in ONE_HOST else set()))
        return detected - began, recovered - began


def figure(name, values, unit="s"):
    return [{"name": f"{name}, {which}", "value": value, "unit": unit,
             "reference": None, "reference_value": None, "ratio": None,
             "target": None, "met": None}
            for which, value in (("median", statistics.median(values)),
                                 ("largest", max(values)))]


def parse_options():
    parser = argparse.ArgumentParser(
        prog="./dev bench recovery", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=20,
                        help="of each case (default: %(default)s)")
    parser.add_argument("--lease", default="10s",
                        help="of the coordinator (default: %(default)s)")
    parser.add_argument("--what", default="kill,stop,cut,agent",
                        help="happens to a worker (default: %(default)s)")
    parser.add_argument("--how", default=",".join(HOWS),
                        help="the others go on (default: %(default)s)")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    options.programs = [os.path.abspath(p) for p in options.programs]
    options.what = options.what.split(",")
    options.how = options.how.split(",")
    return options


def main():
    options = parse_options()
    laboratory.inside(options.rounds * len(options.what) * len(options.how) *
                      2 * HANG_S)
    figures = []
    print(f"lease {options.lease}, {options.rounds} rounds, seconds: median "
          "(largest)")
    print(f"{'':6}{'recovers by':58}{'detect':>16}{'recover':>16}")
    for how in options.how:
        for what in options.what:
            if what in ONE_HOST and not HOWS[how][2]:
                continue  # There is no other host.
            detect, recover = [], []
            for number in range(options.rounds):
                with Round(options, how) as one:
                    times = one.measure(what, number % WORKERS)
                detect.append(times[0])
                recover.append(times[1])
            row = "".join(f"{statistics.median(v):8.2f} ({max(v):.2f})"
                          .rjust(16) for v in (detect, recover))
            print(f"{what:6}{HOWS[how][3]:58}{row}", flush=True)
            name = f"a worker, {what}, lease {options.lease}"
            figures += figure(f"{name}: every other rank has the error", detect)
            figures += figure(f"{name}: training goes on, {HOWS[how][3]}",
                              recover)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
