#!/usr/bin/python3
"""Upgrades a fleet of coordinators, one after another, beside jobs that must not
notice; and lets clients of the last release use a fleet.

Usage: fleet_upgrade_test.py COORDINATOR MUSTER_RUN MUSTERCTL PYTHON_MODULE RELEASED

A client of the release is today's behind a ReleasedRelay (see
tests/golden/neighbours_test.py), which also withholds the payloads of errors:
the release did not know the one that names a job's owner.
"""

import json
import os
import re
import signal
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "golden")]
from etcd_cluster import Cluster  # pylint: disable=C0413
from processes import (Processes, fetch, free_port, metric,  # pylint: disable=C0413
                       wait_until)
from released_relay import ReleasedRelay  # pylint: disable=C0413

COORDINATOR, MUSTER_RUN, MUSTERCTL, MODULE, RELEASED = [
    os.path.abspath(path) for path in sys.argv[1:6]]
SHARDS = 64
STREAM = "/muster.v1.SessionService/Stream"

# A rank that uses the store, a queue and a barrier until rank 0 finds the file.
# Each operation's result shows whether one was lost, or applied twice.
RANK = """
import os, sys
import muster

muster.init()
store = muster.get_default_store()
rank, size = muster.get_rank(), muster.get_world_size()
rounds, last = 0, b""
while last != str(rounds).encode():
    rounds += 1
    store.add("sum", 1)
    store.queue_push(f"to {(rank + 1) % size}", str(rounds))
    item = store.queue_pop(f"to {rank}")
    assert item == str(rounds).encode(), (item, rounds)
    if rank == 0 and os.path.exists(sys.argv[1]):
        store.set("last", str(rounds))
    muster.monitored_barrier(timeout=60)
    # Others may be in the next round.
    total = int(store.get("sum"))
    assert rounds * size <= total <= (rounds + 1) * size, (total, rounds)
    last = store.try_get("last")
    print("round", rounds, flush=True)
muster.monitored_barrier(timeout=60)
assert int(store.get("sum")) == rounds * size
print("all were counted once", flush=True)
muster.destroy()
"""


def shard(job):
    """The job's shard: its FNV-1a hash."""
    value = 0xcbf29ce484222325
    for byte in job.encode():
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value % SHARDS


class WithoutDetails:
    """A call's context that sends no payloads of its status."""

    def __init__(self, context):
        self._context = context

    def __getattr__(self, name):
        return getattr(self._context, name)

    def set_trailing_metadata(self, metadata):
        self._context.set_trailing_metadata(tuple(
            (key, value) for key, value in metadata
            if key != "grpc-status-details-bin"))


class OldClients(ReleasedRelay):
    """Stands between a fleet and clients of the release."""

    def _relay(self, path, requests, context):
        return super()._relay(path, requests, WithoutDetails(context))


class Fleet:
    """Coordinators on loopback, by number, with an etcd."""

    def __init__(self, processes, size):
        self.processes = processes
        self.etcd = Cluster(processes, size=1)
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(size)]
        self.programs, self.https = [None] * size, [None] * size
        for k in range(size):
            self.start(k)
        self.wait_until_ready()

    def start(self, k):
        self.programs[k] = self.processes.start([
            COORDINATOR, f"--listen={self.addresses[k]}",
            "--http_listen=127.0.0.1:0", "--storage=etcd", "--lease=60s",
            "--etcd_endpoints=" + ",".join(self.etcd.endpoints)])
        self.https[k] = self.programs[k].wait_for_line(
            r"^listening grpc=\S+ http=(\S+)").group(1)

    def wait_until_ready(self):
        """Waits until each is in the fleet and serves all that it owns."""
        for http in self.https:
            wait_until(lambda at=http: fetch(at, "/readyz"), "it is ready")
            wait_until(lambda at=http: metric(
                at, "muster_coordinator_fleet_members") == len(self.https),
                       "each knows all")
        wait_until(lambda: sum(
            metric(http, "muster_coordinator_shards_owned")
            for http in self.https) == SHARDS, "all shards have an owner")

    def ctl(self, *arguments, address=None, status=(0,)):
        done = subprocess.run(
            [MUSTERCTL, *arguments,
             "--coordinator=" + (address or ",".join(self.addresses))],
            capture_output=True, text=True, timeout=60, check=False)
        if done.returncode not in status:
            raise AssertionError(f"{arguments}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def owner(self, job, asked):
        """The job's owner, as coordinator `asked` knows it."""
        # 3: some jobs have no owner just now.
        cluster = json.loads(self.ctl(
            "cluster", "--json", address=self.addresses[asked], status=(0, 3)))
        return cluster["shards"][shard(job)]["owner"]

    def move(self, job, to):
        """Moves the job; all coordinators know it at the end."""
        self.ctl("move", job, f"--to={self.addresses[to]}")
        for k in range(len(self.addresses)):
            wait_until(lambda at=k: self.owner(job, at) == self.addresses[to],
                       f"{job} is at {to}")


class JobsTest(unittest.TestCase):

    def setUp(self):
        self.processes = self.enterContext(Processes())
        self.stop_file = f"{self.processes.folder.name}/stop"

    def start_job(self, name, endpoint):
        """Two ranks that run until stop()."""
        return self.processes.start(
            [MUSTER_RUN, f"--rdzv-endpoint={endpoint}", f"--rdzv-id={name}",
             "--nproc-per-node=2", "--", "/usr/bin/python3", "-c", RANK,
             self.stop_file],
            {"PYTHONPATH": os.path.dirname(os.path.dirname(MODULE))})

    @staticmethod
    def count_rounds(job):
        return len(re.findall(r"\[0\]:? ?round", job.stdout))

    def expect_rounds(self, job, more=20):
        before = self.count_rounds(job)

        def went_on():
            self.assertIsNone(job.process.poll(), job.stdout[-2000:] + job.stderr)
            return self.count_rounds(job) >= before + more
        wait_until(went_on, "the job goes on")

    def stop(self, *jobs):
        """Ends the jobs; all that they did was done once."""
        with open(self.stop_file, "w", encoding="utf-8"):
            pass
        for job in jobs:
            self.assertEqual(job.wait(), 0, job.stdout[-2000:] + job.stderr)
            self.assertEqual(job.stdout.count("all were counted once"), 2)


class UpgradeTest(JobsTest):

    def test_no_job_notices_that_each_coordinator_is_replaced(self):
        fleet = Fleet(self.processes, 3)
        endpoint = ",".join(fleet.addresses)
        jobs = {name: self.start_job(name, endpoint) for name in ("a", "b")}
        for job in jobs.values():
            self.expect_rounds(job)
        for k in range(3):
            # One job is where the drain is, and goes back when that coordinator
            # is back: an operator's choice.
            fleet.move("a", k)
            self.expect_rounds(jobs["a"])
            old = fleet.programs[k]
            old.signal(signal.SIGTERM)
            self.assertEqual(old.wait(), 0, old.stderr)
            self.assertIn("shard_handed_over", old.stderr)
            self.assertNotIn("shards_lost", old.stderr)
            for job in jobs.values():
                self.expect_rounds(job)
            fleet.start(k)
            fleet.wait_until_ready()
            wait_until(lambda at=k: fleet.owner("a", at) == fleet.addresses[at],
                       "the job is back")
            for job in jobs.values():
                self.expect_rounds(job)
        for name, job in jobs.items():
            self.assertIn("generation 1, world size 2, 2 alive",
                          fleet.ctl("members", name))
            self.assertNotRegex(job.stderr, r"(?i)\berror\b|failed|session over")
        self.stop(*jobs.values())
        for program in fleet.programs:
            self.assertNotIn("shards_lost", program.stderr)


class OldClientTest(JobsTest):
    """Clients that know one address, and cannot be told another."""

    def setUp(self):
        super().setUp()
        self.fleet = Fleet(self.processes, 2)
        with open(RELEASED, encoding="utf-8") as text:
            self.relay = self.enterContext(
                OldClients(text.read(), self.fleet.addresses[0]))

    def test_a_call_for_the_job_of_another_coordinator_fails_and_says_so(self):
        self.fleet.ctl("kv", "set", "key", "value", "--job=old")
        self.fleet.move("old", 1)
        refused = self.fleet.ctl("kv", "get", "key", "--job=old",
                                 "--timeout=2s", address=self.relay.address,
                                 status=(1,))
        self.assertIn("UNAVAILABLE", refused)
        self.assertIn(self.fleet.addresses[1], refused)
        self.fleet.move("old", 0)
        self.assertEqual(
            self.fleet.ctl("kv", "get", "key", "--job=old",
                           address=self.relay.address), "value\n")

    def test_a_job_waits_for_its_coordinator_and_goes_on(self):
        self.fleet.move("old", 0)
        job = self.start_job("old", self.relay.address)
        self.expect_rounds(job)
        # It asks its one coordinator again and again, which is not the owner.
        self.fleet.move("old", 1)
        asked = self.relay.calls[STREAM]
        wait_until(lambda: self.relay.calls[STREAM] >= asked + 10, "it asks")
        self.fleet.move("old", 0)
        self.expect_rounds(job)
        self.assertIn("generation 1, world size 2, 2 alive",
                      self.fleet.ctl("members", "old"))
        self.stop(job)

    def test_a_job_goes_on_after_an_upgrade_of_the_coordinator_it_knows(self):
        self.fleet.move("old", 0)
        job = self.start_job("old", self.relay.address)
        self.expect_rounds(job)
        old = self.fleet.programs[0]
        old.signal(signal.SIGTERM)
        self.assertEqual(old.wait(), 0, old.stderr)
        # The operator's choice is an address, which the new process has.
        self.fleet.start(0)
        self.fleet.wait_until_ready()
        self.expect_rounds(job)
        self.stop(job)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
