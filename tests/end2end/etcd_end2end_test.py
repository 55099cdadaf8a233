#!/usr/bin/env python3
"""Tests a fleet of coordinators that share their jobs through a real etcd.

Usage: etcd_end2end_test.py COORDINATOR MUSTERCTL
"""

import signal
import subprocess
import sys
import unittest
import urllib.request

from etcd_cluster import Cluster
from fleet import Fleet
from processes import Processes, wait_until

COORDINATOR, MUSTERCTL = sys.argv[1:3]
JOBS = [f"job{i}" for i in range(12)]


class EtcdTest(unittest.TestCase):

    def test_coordinators_share_the_jobs_and_each_tells_whose_one_is(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL)
            cluster = fleet.cluster()
            self.assertEqual({c["address"] for c in cluster["coordinators"]},
                             set(fleet.coordinators))
            self.assertEqual(sum(c["shards"] for c in cluster["coordinators"]),
                             64)
            for job in JOBS:
                fleet.set(job, "key", job)
            # Through one address alone: it names the owner of each.
            for address in fleet.coordinators:
                for job in JOBS:
                    self.assertEqual(fleet.get(job, "key", at=address), job)
                self.assertEqual(fleet.ready(address), (200, "ready\n"))
            listed = fleet.ctl("jobs", "--names").stdout.split()
            self.assertEqual(listed, sorted(JOBS))
            page = urllib.request.urlopen(
                "http://" + next(iter(fleet.coordinators.values())).http + "/",
                timeout=20).read().decode()
            for address in fleet.coordinators:
                self.assertIn(address, page)

    def test_others_go_on_with_the_jobs_of_one_that_was_killed(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL)
            for job in JOBS:
                fleet.set(job, "key", job)
            victim = fleet.owner(JOBS[0])
            fleet.remove(victim).kill()
            for job in JOBS:
                self.assertEqual(fleet.get(job, "key"), job)
            fleet.await_healthy(2)

    def test_a_member_of_etcd_that_is_killed_is_not_noticed(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL, size=2, etcd_size=3)
            for i, member in enumerate(fleet.etcd.members):
                member.kill()
                for job in JOBS[:4]:
                    fleet.set(job, "key", str(i))
                    self.assertEqual(fleet.get(job, "key"), str(i))
                fleet.etcd.members[i] = fleet.etcd.start(i)
                wait_until(
                    lambda: fleet.etcd.ctl("endpoint",
                                           "health").returncode == 0,
                    "the member is back")

    def test_one_that_was_stopped_for_longer_than_its_lease_answers_nothing_old(
            self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL)
            job = JOBS[0]
            fleet.set(job, "key", "old")
            old = fleet.owner(job)
            others = [a for a in fleet.coordinators if a != old]
            fleet.coordinators[old].signal(signal.SIGSTOP)
            # Its kernel accepts the connection and takes the calls.
            calls = [subprocess.Popen(
                [MUSTERCTL, "kv", *what, f"--job={job}",
                 f"--coordinator={old}", "--timeout=60s"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for what in (["get", "key"], ["set", "other", "late"])]
            fleet.set(job, "key", "new", at=",".join(others))
            fleet.coordinators[old].signal(signal.SIGCONT)
            for call in calls:
                # Whether it was answered, by the new owner, or given up.
                self.assertNotIn("old", call.communicate(timeout=90)[0])
            fleet.coordinators[old].wait_for_line("shards_lost: ")
            # It joins again.
            fleet.await_healthy(3)
            self.assertEqual(fleet.get(job, "key", at=old), "new")

    def test_one_that_drains_gives_its_jobs_away_before_it_ends(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL)
            for job in JOBS:
                fleet.set(job, "key", job)
            address = fleet.owner(JOBS[0])
            drained = fleet.remove(address)
            drained.signal(signal.SIGTERM)
            self.assertEqual(drained.wait(), 0)
            self.assertNotIn("shards_lost", drained.stderr)
            self.assertNotIn("failed=1", drained.stderr)
            # Nobody waited for a lease: all shards have owners at once.
            cluster = fleet.cluster()
            self.assertEqual(
                {shard["owner"] for shard in cluster["shards"]},
                set(fleet.coordinators))
            for job in JOBS:
                self.assertEqual(fleet.get(job, "key"), job)

    def test_the_last_one_that_drains_leaves_its_jobs_in_etcd(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL, size=1)
            fleet.set(JOBS[0], "key", "value")
            address = fleet.owner(JOBS[0])
            drained = fleet.remove(address)
            drained.signal(signal.SIGTERM)
            self.assertEqual(drained.wait(), 0)
            # Its lease was revoked, not left to end.
            keys = fleet.etcd.ctl("get", "--prefix", "--keys-only",
                                  "/muster/fleet/owners").stdout
            self.assertEqual(keys.strip(), "")
            fleet.start()
            self.assertEqual(fleet.get(JOBS[0], "key"), "value")

    def test_a_new_one_takes_its_part_and_an_operator_moves_a_job(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL, size=1)
            for job in JOBS:
                fleet.set(job, "key", job)
            new = fleet.start()
            wait_until(
                lambda: min(c["shards"] for c in
                            fleet.cluster()["coordinators"]) >= 20,
                "the new coordinator has its part")
            for job in JOBS:
                self.assertEqual(fleet.get(job, "key"), job)
            for to in [*fleet.coordinators, *fleet.coordinators]:
                done = fleet.ctl("move", JOBS[0], f"--to={to}")
                self.assertEqual(done.returncode, 0, done.stderr)
                wait_until(lambda to=to: fleet.owner(JOBS[0]) == to,
                           "the job has moved")
                self.assertEqual(fleet.get(JOBS[0], "key"), JOBS[0])
            self.assertIn("was moved to", fleet.ctl("cluster").stdout)
            wrong = fleet.ctl("move", JOBS[0], "--to=nobody:1")
            self.assertEqual(wrong.returncode, 1)
            self.assertIn('to is "nobody:1"', wrong.stderr)
            self.assertEqual(
                fleet.ctl("move", JOBS[0]).returncode, 0)
            self.assertNotIn("was moved to", fleet.ctl("cluster").stdout)
            self.assertIn(new, fleet.coordinators)

    def test_while_etcd_is_away_nobody_serves_and_afterwards_all_do(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL, size=2)
            for job in JOBS[:4]:
                fleet.set(job, "key", job)
            fleet.etcd.members[0].signal(signal.SIGSTOP)
            for address in fleet.coordinators:
                wait_until(lambda at=address: fleet.ready(at)[0] == 503,
                           "it is not ready")
            refused = fleet.ctl("kv", "get", "key", f"--job={JOBS[0]}",
                                timeout="2s")
            self.assertEqual(refused.returncode, 1, refused.stdout)
            self.assertIn("no coordinator at the moment", refused.stderr)
            fleet.etcd.members[0].signal(signal.SIGCONT)
            fleet.await_healthy(2)
            for job in JOBS[:4]:
                self.assertEqual(fleet.get(job, "key"), job)

    def test_a_full_etcd_acknowledges_nothing_until_it_has_space(self):
        with Processes() as processes:
            fleet = Fleet(processes, COORDINATOR, MUSTERCTL, size=1,
                          etcd_flags=["--quota-backend-bytes=400000"])
            etcd = fleet.etcd
            fleet.set(JOBS[0], "key", "before")
            while "NOSPACE" not in etcd.ctl("alarm", "list").stdout:
                etcd.ctl("put", "filler", "x" * 100_000)
            call = subprocess.Popen(
                [MUSTERCTL, "kv", "set", "key", "after", f"--job={JOBS[0]}",
                 f"--coordinator={fleet.addresses}", "--timeout=60s"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            coordinator = next(iter(fleet.coordinators.values()))
            coordinator.wait_for_line(
                "storage_waits: .*database space exceeded")
            self.assertIsNone(call.poll())
            # Later calls are refused at once.
            refused = fleet.ctl("kv", "set", "other", "x", f"--job={JOBS[0]}")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("etcd has no space", refused.stderr)
            status, text = fleet.ready(fleet.addresses)
            self.assertEqual(status, 503, text)
            self.assertIn("space exceeded", text)
            etcd.ctl("del", "filler")
            etcd.make_space()
            out, err = call.communicate(timeout=90)
            self.assertEqual(call.returncode, 0, out + err)
            self.assertEqual(fleet.get(JOBS[0], "key"), "after")

    def test_users_and_passwords(self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1)
            for command in (["user", "add", "root:secret"],
                            ["user", "grant-role", "root", "root"],
                            ["auth", "enable"]):
                self.assertEqual(etcd.ctl(*command).returncode, 0)
            command = [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=",
                       "--storage=etcd",
                       "--etcd_endpoints=" + ",".join(etcd.endpoints)]
            wrong = processes.start(command + ["--etcd_user=root:wrong"])
            self.assertEqual(wrong.wait(), 1)
            self.assertIn("authentication failed", wrong.stderr)
            good = processes.start(
                command, {"MUSTER_COORDINATOR_ETCD_USER": "root:secret"})
            good.wait_for_line("shards_acquired: count=64")
            good.wait_for_line(r"settings=.*--etcd_user=\.\.\.")
            self.assertNotIn("secret", good.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
