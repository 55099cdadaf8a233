#!/usr/bin/env python3
"""Tests coordinators whose jobs are in etcd: one owns them, another stands by.

Usage: etcd_end2end_test.py COORDINATOR MUSTERCTL
"""

import os
import signal
import subprocess
import sys
import unittest

from processes import Processes, free_port, wait_until

COORDINATOR, MUSTERCTL = sys.argv[1:3]
LEASE_S = 2


class Cluster:
    """etcd's members on loopback."""

    def __init__(self, processes, size=3, flags=()):
        self.processes = processes
        self.flags = flags
        ports = [(free_port(), free_port()) for _ in range(size)]
        self.endpoints = [f"127.0.0.1:{client}" for client, _ in ports]
        self.peers = [f"http://127.0.0.1:{peer}" for _, peer in ports]
        self.members = [self.start(i) for i in range(size)]
        wait_until(lambda: self.ctl("endpoint", "health").returncode == 0,
                   "etcd is healthy")

    def start(self, i):
        return self.processes.start([
            "etcd", f"--name=e{i}",
            f"--data-dir={self.processes.folder.name}/etcd{i}",
            f"--listen-client-urls=http://{self.endpoints[i]}",
            f"--advertise-client-urls=http://{self.endpoints[i]}",
            f"--listen-peer-urls={self.peers[i]}",
            f"--initial-advertise-peer-urls={self.peers[i]}",
            "--initial-cluster=" + ",".join(
                f"e{k}={peer}" for k, peer in enumerate(self.peers)),
            *self.flags])

    def ctl(self, *arguments):
        return subprocess.run(
            ["etcdctl", "--endpoints=" + ",".join(self.endpoints), *arguments],
            env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True,
            text=True, timeout=60, check=False)


class EtcdTest(unittest.TestCase):

    def command(self, etcd):
        return [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=",
                "--storage=etcd", f"--etcd_lease={LEASE_S}s",
                "--etcd_endpoints=" + ",".join(etcd.endpoints)]

    def start(self, etcd):
        return etcd.processes.start(self.command(etcd))

    def address(self, coordinator):
        return coordinator.wait_for_line(r"^listening grpc=(\S+)").group(1)

    def kv(self, address, *arguments, timeout="20s"):
        return subprocess.run(
            [MUSTERCTL, "kv", *arguments, "--job=demo",
             f"--coordinator={address}", f"--timeout={timeout}"],
            capture_output=True, text=True, timeout=60, check=False)

    def set(self, address, key, value):
        done = self.kv(address, "set", key, value)
        self.assertEqual(done.returncode, 0, done.stderr)

    def get(self, address, key):
        done = self.kv(address, "get", key)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.rstrip("\n")

    def test_another_goes_on_with_the_jobs_of_one_that_was_killed(self):
        with Processes() as processes:
            etcd = Cluster(processes)
            first = self.start(etcd)
            address = self.address(first)
            second = self.start(etcd)
            second.wait_for_line(rf"stands_by: owner=.*pid={first.pid}")
            for number in range(20):
                self.set(address, f"key{number}", str(number))
            first.kill()
            address = self.address(second)
            for number in range(20):
                self.assertEqual(self.get(address, f"key{number}"), str(number))

    def test_a_member_of_etcd_that_is_killed_is_not_noticed(self):
        with Processes() as processes:
            etcd = Cluster(processes)
            coordinator = self.start(etcd)
            address = self.address(coordinator)
            for i, member in enumerate(etcd.members):
                member.kill()
                self.set(address, "key", str(i))
                self.assertEqual(self.get(address, "key"), str(i))
                etcd.members[i] = etcd.start(i)
                wait_until(
                    lambda: etcd.ctl("endpoint", "health").returncode == 0,
                    "the member is back")

    def test_one_that_was_stopped_for_longer_than_its_lease_answers_nothing(
            self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1)
            first = self.start(etcd)
            old_address = self.address(first)
            self.set(old_address, "key", "old")
            second = self.start(etcd)
            second.wait_for_line("stands_by: ")
            first.signal(signal.SIGSTOP)
            # Its kernel accepts the connection and takes the calls.
            calls = [subprocess.Popen(
                [MUSTERCTL, "kv", *what, "--job=demo",
                 f"--coordinator={old_address}", "--timeout=60s"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for what in (["get", "key"], ["set", "key", "late"])]
            address = self.address(second)
            self.set(address, "key", "new")
            first.signal(signal.SIGCONT)
            self.assertEqual(first.wait(), 1)
            self.assertIn("another coordinator has the jobs", first.stderr)
            for call in calls:
                out, err = call.communicate(timeout=90)
                self.assertNotEqual(call.returncode, 0, out)
                self.assertNotIn("old", out, err)
            self.assertEqual(self.get(address, "key"), "new")

    def test_a_drained_one_gives_its_jobs_away_at_once(self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1)
            first = self.start(etcd)
            self.set(self.address(first), "key", "value")
            second = self.start(etcd)
            second.wait_for_line("stands_by: ")
            first.signal(signal.SIGTERM)
            self.assertEqual(first.wait(), 0)
            # The lease was revoked, not waited for.
            self.assertNotIn(
                f"pid={first.pid}",
                etcd.ctl("get", "--print-value-only", "/muster/owner").stdout)
            self.assertEqual(self.get(self.address(second), "key"), "value")

    def test_one_that_stands_by_ends_when_it_is_told(self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1)
            self.address(self.start(etcd))
            second = self.start(etcd)
            second.wait_for_line("stands_by: ")
            second.signal(signal.SIGTERM)
            self.assertEqual(second.wait(), 0, second.stderr)

    def test_a_full_etcd_acknowledges_nothing_until_it_has_space(self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1,
                           flags=["--quota-backend-bytes=200000"])
            coordinator = self.start(etcd)
            address = self.address(coordinator)
            self.set(address, "key", "before")
            while "NOSPACE" not in etcd.ctl("alarm", "list").stdout:
                etcd.ctl("put", "filler", "x" * 100_000)
            call = subprocess.Popen(
                [MUSTERCTL, "kv", "set", "key", "after", "--job=demo",
                 f"--coordinator={address}", "--timeout=60s"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            coordinator.wait_for_line(
                "storage_waits: .*database space exceeded")
            self.assertIsNone(call.poll())
            etcd.ctl("del", "filler")
            revision = etcd.ctl("get", "nothing", "-w=fields").stdout
            revision = next(line.split(":")[1].strip()
                            for line in revision.splitlines()
                            if line.startswith('"Revision"'))
            self.assertEqual(etcd.ctl("compact", revision).returncode, 0)
            self.assertEqual(etcd.ctl("defrag").returncode, 0)
            self.assertEqual(etcd.ctl("alarm", "disarm").returncode, 0)
            out, err = call.communicate(timeout=90)
            self.assertEqual(call.returncode, 0, out + err)
            self.assertEqual(self.get(address, "key"), "after")

    def test_users_and_passwords(self):
        with Processes() as processes:
            etcd = Cluster(processes, size=1)
            for command in (["user", "add", "root:secret"],
                            ["user", "grant-role", "root", "root"],
                            ["auth", "enable"]):
                self.assertEqual(etcd.ctl(*command).returncode, 0)
            wrong = processes.start(self.command(etcd) +
                                    ["--etcd_user=root:wrong"])
            self.assertEqual(wrong.wait(), 1)
            self.assertIn("authentication failed", wrong.stderr)
            good = processes.start(
                self.command(etcd),
                {"MUSTER_COORDINATOR_ETCD_USER": "root:secret"})
            address = self.address(good)
            self.set(address, "key", "value")
            self.assertEqual(self.get(address, "key"), "value")
            good.wait_for_line(r"settings=.*--etcd_user=\.\.\.")
            self.assertNotIn("secret", good.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
