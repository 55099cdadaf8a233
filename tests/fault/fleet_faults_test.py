#!/usr/bin/env python3
"""Client processes use jobs of a fleet of coordinators while these, their etcd
and the network between them fail; then the clients' histories must be
linearizable.

fleet_faults_test.py COORDINATOR MUSTERCTL STORE_CLIENT CHECK_HISTORY
    SHIFTED_CLOCK [--owner_kills=N] [--etcd_kills=N] [--partitions=N]
    [--stops=N] [--clock_jumps=N] [--moves=N] [--drains=N] [--jobs=6]
    [--clients=2] [--seed=1] [--lease_s=2] [--time_s=S] [--limit_s=280]
    [--folder=FOLDER]

Each fault hits the coordinator that owns a random job, and lasts until every
client of every job has had answers since.
"""

import argparse
import collections
import itertools
import math
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "end2end"),
                os.path.join(HERE, "..", "laboratory")]
import laboratory  # noqa: E402  pylint: disable=wrong-import-position
from numbered_fleet import (  # noqa: E402  pylint: disable=C0413
    TO_ETCD, NumberedFleet, shard)
from processes import Processes, wait_until  # noqa: E402  pylint: disable=C0413

COORDINATORS = 3
# A fault has hurt every client when it has had that many answers since.
ANSWERS = 3
# Of a fault, until every client goes on: a busy machine may lose leases again
# and again while it loads the jobs.
HANG_S = 150
# Of each kind, in a run without arguments.
SHORT = {"owner_kills": 2, "etcd_kills": 1, "partitions": 1, "stops": 1,
         "clock_jumps": 1, "moves": 1, "drains": 1}
JUMPS_S = (-10 * 365 * 86400, -86400, -3600, -5, 5, 3600, 86400,
           10 * 365 * 86400)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for program in ("coordinator", "musterctl", "store_client", "check_history",
                    "shifted_clock"):
        parser.add_argument(program, type=os.path.abspath)
    for fault in SHORT:
        parser.add_argument(f"--{fault}", type=int)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--clients", type=int, default=2, help="of each job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease_s", type=int, default=2)
    parser.add_argument("--time_s", type=float, default=math.inf,
                        help="no more faults begin after so long")
    parser.add_argument("--limit_s", type=int, default=280,
                        help="all is killed after so long")
    parser.add_argument("--folder", help="for histories and logs; else they "
                        "are removed")
    options = parser.parse_args()
    if all(getattr(options, fault) is None for fault in SHORT):
        for fault, count in SHORT.items():
            setattr(options, fault, count)
    return options


class Clock:
    """The date of one process, which can be shifted."""

    def __init__(self, path):
        self.path = path
        self.shift_s(0)
        self.environment = {
            "LD_PRELOAD": OPTIONS.shifted_clock, "SHIFTED_CLOCK": path,
            # The sanitizer's runtime library need not be the first.
            "ASAN_OPTIONS": "verify_asan_link_order=0"}

    def shift_s(self, seconds):
        # In place: the process has mapped the file.
        mode = "r+b" if os.path.exists(self.path) else "wb"
        with open(self.path, mode, buffering=0) as file:
            file.write(struct.pack("q", seconds * 10**9))


class Client:
    """A store_client, whose lines go to a file."""

    def __init__(self, fleet, job, number, folder):
        self.path = os.path.join(folder, f"{job}.{number}")
        self.answers, self.read = 0, 0
        self.program = fleet.processes.start(fleet.beside(
            ["sh", "-c", 'exec "$@" > "$0"', self.path, OPTIONS.store_client,
             fleet.endpoint, job, str(number),
             str(OPTIONS.seed * 1000 + number), "0"]))

    def count(self):
        """The number of its answers so far."""
        try:
            with open(self.path, "rb") as lines:
                lines.seek(self.read)
                new = lines.read()
        except FileNotFoundError:
            return 0
        # The last line may be unfinished.
        new = new[:new.rfind(b"\n") + 1]
        self.read += len(new)
        self.answers += new.count(b"\nanswer ") + new.startswith(b"answer ")
        return self.answers

    def last_lines(self):
        with open(self.path, encoding="utf-8") as lines:
            return "".join(lines.readlines()[-3:])


class Load:
    """All clients of all jobs."""

    def __init__(self, fleet, jobs, folder):
        self.clients = {job: [Client(fleet, job, number, folder)
                              for number in range(OPTIONS.clients)]
                        for job in jobs}

    def all(self):
        return list(itertools.chain(*self.clients.values()))

    def await_answers(self):
        """Waits until every client has had more answers."""
        before = {client: client.count() for client in self.all()}
        behind = set(self.all())

        def none_behind():
            for client in list(behind):
                if client.program.process.poll() is not None:
                    raise AssertionError(
                        f"{client.path} has ended:\n{client.last_lines()}"
                        f"{client.program.stderr}")
                if client.count() >= before[client] + ANSWERS:
                    behind.remove(client)
            return not behind
        try:
            wait_until(none_behind, "every client goes on", HANG_S)
        except AssertionError as error:
            raise AssertionError(f"{error}: " + "; ".join(
                f"{client.path}: {client.last_lines()}"
                for client in behind)) from None

    def end(self):
        """Ends all clients; returns the number of their operations."""
        for client in self.all():
            client.program.signal(signal.SIGTERM)
        for client in self.all():
            if client.program.wait() != 0:
                raise AssertionError(f"{client.path}: {client.last_lines()}"
                                     f"{client.program.stderr}")
        operations = 0
        for job, clients in self.clients.items():
            checked = subprocess.run(
                [OPTIONS.check_history, *(client.path for client in clients)],
                capture_output=True, text=True, check=False)
            if checked.returncode != 0:
                raise AssertionError(f"{job}, seed {OPTIONS.seed}: "
                                     f"{checked.stdout}{checked.stderr}")
            operations += int(checked.stdout)
        return operations


class Faults:
    """Each kind of fault is a method. It returns how long after its beginning
    all clients went on."""

    def __init__(self, fleet, clocks, load):
        self.fleet, self.clocks, self.load = fleet, clocks, load
        self.random = random.Random(OPTIONS.seed)

    def job(self):
        return self.random.choice(list(self.load.clients))

    def owner(self):
        return self.fleet.owner(self.job())

    def await_all(self, since):
        """Waits until all clients go on; returns how long after `since`."""
        self.load.await_answers()
        return time.monotonic() - since

    def owner_kills(self):
        owner = self.owner()
        start = time.monotonic()
        self.fleet.kill(owner)
        # At once: the process of before still has its lease.
        at_once = self.random.random() < 0.5
        if at_once:
            self.fleet.start(owner)
        took = self.await_all(start)
        if not at_once:
            self.fleet.start(owner)
        return took

    def etcd_kills(self):
        member = self.random.randrange(len(self.fleet.etcd.members))
        start = time.monotonic()
        self.fleet.etcd.members[member].kill()
        took = self.await_all(start)
        self.fleet.etcd.members[member] = self.fleet.etcd.start(member)
        self.fleet.etcd.wait()
        return took

    def partitions(self):
        owner = self.owner()
        host, etcd = self.fleet.hosts[owner], self.fleet.hosts[-1]
        start = time.monotonic()
        # Cut off, or it is heard but hears nothing: etcd's answers are lost.
        if self.random.random() < 0.5:
            host.cut(TO_ETCD)
            took = self.await_all(start)
            host.mend(TO_ETCD)
            return took
        route = ("blackhole", self.fleet.etcd_address(host) + "/32")
        etcd.ip("route", "add", *route)
        took = self.await_all(start)
        etcd.ip("route", "del", *route)
        return took

    def stops(self):
        owner = self.owner()
        start = time.monotonic()
        self.fleet.programs[owner].signal(signal.SIGSTOP)
        took = self.await_all(start)
        self.fleet.programs[owner].signal(signal.SIGCONT)
        self.load.await_answers()
        return took

    def clock_jumps(self):
        owner = self.owner()
        start = time.monotonic()
        self.clocks[owner].shift_s(self.random.choice(JUMPS_S))
        return self.await_all(start)

    def moves(self):
        job = self.job()
        owner = self.fleet.owner(job)
        to = self.random.choice(
            [number for number in range(COORDINATORS) if number != owner])
        start = time.monotonic()
        self.fleet.move(job, to)
        return self.await_all(start)

    def drains(self):
        owner = self.owner()
        start = time.monotonic()
        self.fleet.drain(owner)
        took = self.await_all(start)
        self.fleet.start(owner)
        return took


def choose_jobs(owners):
    """Names of jobs that all coordinators own alike."""
    jobs, wanted = [], -(-OPTIONS.jobs // COORDINATORS)
    left = {number: wanted for number in range(COORDINATORS)}
    for number in itertools.count():
        owner = owners[shard(f"job{number}")]
        if left[owner] > 0:
            left[owner] -= 1
            jobs.append(f"job{number}")
        if len(jobs) == OPTIONS.jobs:
            return jobs


class FleetFaultsTest(unittest.TestCase):

    def test_what_the_clients_saw_happened_in_some_order(self):
        kinds = [kind for kind in SHORT
                 for _ in range(getattr(OPTIONS, kind) or 0)]
        random.Random(OPTIONS.seed).shuffle(kinds)
        with laboratory.Laboratory(COORDINATORS + 1, links=2) as lab, \
                Processes() as processes:
            folder = OPTIONS.folder or processes.folder.name
            os.makedirs(folder, exist_ok=True)
            clocks = [Clock(os.path.join(processes.folder.name, f"clock{i}"))
                      for i in range(COORDINATORS)]
            fleet = NumberedFleet(
                processes, OPTIONS.coordinator, OPTIONS.musterctl,
                lease_s=OPTIONS.lease_s, laboratory=lab,
                environments=[clock.environment for clock in clocks],
                # A client that is too late with an answer to a ping, because
                # the machine is busy, is not lost.
                flags=["--reconnect_grace=60s"])
            try:
                self.run_faults(fleet, clocks, folder, kinds)
            finally:
                self.write_logs(processes, folder)

    def test_a_coordinator_keeps_its_lease_whatever_the_date(self):
        with Processes() as processes:
            clock = Clock(os.path.join(processes.folder.name, "clock"))
            fleet = NumberedFleet(
                processes, OPTIONS.coordinator, OPTIONS.musterctl, size=1,
                lease_s=20, environments=[clock.environment])
            for shift_s in JUMPS_S:
                clock.shift_s(shift_s)
                date = subprocess.run(
                    ["date", "+%s"], env={**os.environ, **clock.environment},
                    capture_output=True, text=True, check=True).stdout
                self.assertAlmostEqual(int(date), time.time() + shift_s,
                                       delta=100)
                done = fleet.ctl("kv", "set", "key", "value", "--job=job")
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("shards_lost", fleet.programs[0].stderr)

    def run_faults(self, fleet, clocks, folder, kinds):
        load = Load(fleet, choose_jobs(fleet.owners()), folder)
        faults = Faults(fleet, clocks, load)
        load.await_answers()
        start = time.monotonic()
        took = collections.defaultdict(list)
        for number, kind in enumerate(kinds, 1):
            if time.monotonic() > start + OPTIONS.time_s:
                break
            took[kind].append(getattr(faults, kind)())
            fleet.await_whole()
            print(f"{time.monotonic() - start:6.1f} s: {number} of "
                  f"{len(kinds)}: {kind}: all clients went on after "
                  f"{took[kind][-1]:.2f} s", flush=True)
        load.await_answers()
        lasted = time.monotonic() - start
        operations = load.end()
        for kind, seconds in took.items():
            print(f"{kind}: {len(seconds)}, all clients went on after "
                  f"{statistics.median(seconds):.2f} s (median), "
                  f"{max(seconds):.2f} s (most)")
        print(f"seed {OPTIONS.seed}: {operations} operations of "
              f"{len(load.all())} clients of {len(load.clients)} jobs in "
              f"{lasted:.0f} s; their histories are linearizable")

    @staticmethod
    def write_logs(processes, folder):
        if not OPTIONS.folder:
            return
        for number, program in enumerate(processes.programs):
            with open(os.path.join(folder, f"log.{number}"), "w",
                      encoding="utf-8") as log:
                log.write(" ".join(program.command) + "\n" + program.stdout +
                          "\n" + program.stderr)


if __name__ == "__main__":
    OPTIONS = parse()
    laboratory.inside(OPTIONS.limit_s)
    unittest.main(argv=sys.argv[:1], verbosity=2)
