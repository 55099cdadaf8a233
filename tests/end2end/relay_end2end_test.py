#!/usr/bin/env python3
"""Tests the relay of muster-run with real processes: its ranks share one
connection to the coordinator; ranks, the relay and the coordinator are killed
or stopped.

Usage: relay_end2end_test.py COORDINATOR MUSTER_RUN TRAIN
"""

import os
import re
import signal
import sys
import unittest

from processes import Processes, fetch, free_port, metric, wait_until

COORDINATOR, MUSTER_RUN, TRAIN = sys.argv[1:4]
# So long that it never ends by itself during a test.
ENDLESS = [TRAIN, "--epochs=1000", "--hidden_units=16"]
RELAYS = "muster_coordinator_relays"
SESSIONS = "muster_coordinator_sessions"


def debug_addresses(http):
    return set(re.findall(r"127\.0\.0\.1:\d+", fetch(http, "/"))) - {http}


def wait_until_training(http, world_size):
    """Waits until every rank makes progress from now on."""
    def steps():
        return {address: metric(address, "muster_dataplane_collectives_total")
                for address in debug_addresses(http)}

    before = {}

    def all_go_on():
        now = steps()
        for address, count in now.items():
            before.setdefault(address, count)
        return sum(count > before[a] + 10
                   for a, count in now.items()) >= world_size

    wait_until(all_go_on, f"{world_size} ranks train")


def connections(pid, port):
    """How many TCP connections of a process go to a port of this host."""
    inodes = set()
    # gRPC uses sockets of IPv6 for both.
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{family}", encoding="utf-8") as table:
            for line in table.readlines()[1:]:
                fields = line.split()
                if (int(fields[2].split(":")[1], 16) == port and
                        fields[3] == "01"):  # established
                    inodes.add(f"socket:[{fields[9]}]")
    count = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{fd}") in inodes
        except OSError:
            pass
    return count


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class RelayTest(unittest.TestCase):

    def launch(self, processes, grpc, job="train", world_size=3, options=()):
        """A muster-run whose ranks train, and the ranks' pids."""
        launcher = processes.start(
            [MUSTER_RUN, f"--rdzv-endpoint={grpc}", f"--rdzv-id={job}",
             f"--nproc-per-node={world_size}", *options, "--", "sh", "-c",
             'echo "pid=$$"; exec "$@"', "sh"] + ENDLESS,
            {"MUSTER_HTTP_PORT": "0"})
        pids = [int(launcher.wait_for_line(rf"\[{r}\]:? ?pid=(\d+)").group(1))
                for r in range(world_size)]
        return launcher, pids

    def relay_of(self, processes, grpc):
        """A muster-run without ranks of muster, and the variable that its
        ranks have."""
        launcher = processes.start(
            [MUSTER_RUN, f"--rdzv-endpoint={grpc}", "--rdzv-id=other",
             "--nproc-per-node=2", "--", "sh", "-c",
             'echo "relay=$MUSTER_HOST_RELAY"; exec sleep 1000'])
        return launcher, launcher.wait_for_line(r"relay=(\S+)").group(1)

    def test_the_ranks_of_a_host_share_one_connection(self):
        with Processes() as processes:
            _, grpc, http = processes.coordinator(COORDINATOR)
            _, pids = self.launch(processes, grpc)
            wait_until_training(http, 3)
            self.assertEqual(metric(http, RELAYS), 1)
            self.assertGreaterEqual(metric(http, SESSIONS), 3)
            for pid in pids:
                self.assertEqual(connections(pid, port_of(grpc)), 0)
            # A second job has its own.
            self.launch(processes, grpc, "second", 2)
            wait_until_training(http, 5)
            self.assertEqual(metric(http, RELAYS), 2)

    def test_without_the_relay_each_rank_has_a_connection(self):
        with Processes() as processes:
            _, grpc, http = processes.coordinator(COORDINATOR)
            _, pids = self.launch(processes, grpc, options=["--relay=false"])
            wait_until_training(http, 3)
            self.assertEqual(metric(http, RELAYS), 0)
            for pid in pids:
                self.assertEqual(connections(pid, port_of(grpc)), 1)

    def test_a_killed_rank_is_lost_at_once_and_named(self):
        with Processes() as processes:
            # Only the end of its connection can tell so soon.
            coordinator, grpc, http = processes.coordinator(
                COORDINATOR, "--lease=10m")
            launcher, pids = self.launch(processes, grpc)
            wait_until_training(http, 3)
            os.kill(pids[1], signal.SIGKILL)
            coordinator.wait_for_line(
                r'member_lost: .*rank=1 .*cause="connection closed')
            self.assertEqual(launcher.wait(), 128 + signal.SIGKILL)
            self.assertRegex(launcher.stderr, r"first failure: rank 1 ")
            wait_until(lambda: metric(http, RELAYS) == 0, "the call is over")

    def test_ranks_go_on_when_their_relay_is_killed(self):
        with Processes() as processes:
            # Much longer than the grace.
            coordinator, grpc, http = processes.coordinator(
                COORDINATOR, "--lease=10m")
            launcher, relay = self.relay_of(processes, grpc)
            address, _, path = relay.partition("@")
            self.assertEqual(address, grpc)
            self.assertEqual(
                os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700)
            ranks = processes.ranks(ENDLESS, 3, grpc, {
                "MUSTER_HTTP_PORT": "0", "MUSTER_HOST_RELAY": relay})
            wait_until_training(http, 3)
            self.assertEqual(metric(http, RELAYS), 1)
            for rank in ranks:
                self.assertEqual(connections(rank.pid, port_of(grpc)), 0)
            launcher.kill()
            coordinator.wait_for_line(r"relay_gone: .*sessions=3")
            for rank in ranks:
                rank.wait_for_line("coordinator disconnected: .*cause=\"the "
                                   "relay of muster-run failed: ")
                rank.wait_for_line("coordinator reconnected: ")
            wait_until_training(http, 3)
            self.assertEqual(metric(http, RELAYS), 0)
            self.assertNotIn("member_lost", coordinator.stderr)
            for rank in ranks:
                self.assertIsNone(rank.process.poll(), rank.stderr)
                self.assertEqual(connections(rank.pid, port_of(grpc)), 1)

    def test_ranks_go_on_when_their_relay_is_stopped(self):
        with Processes() as processes:
            coordinator, grpc, http = processes.coordinator(
                COORDINATOR, "--lease=60s")
            launcher, relay = self.relay_of(processes, grpc)
            ranks = processes.ranks(ENDLESS, 2, grpc, {
                "MUSTER_HTTP_PORT": "0", "MUSTER_HOST_RELAY": relay})
            wait_until_training(http, 2)
            launcher.signal(signal.SIGSTOP)
            # They miss its answers to their pings.
            for rank in ranks:
                rank.wait_for_line("coordinator reconnected: ")
                self.assertEqual(connections(rank.pid, port_of(grpc)), 1)
            launcher.signal(signal.SIGCONT)
            wait_until(lambda: metric(http, RELAYS) == 0, "the call is over")
            wait_until_training(http, 2)
            self.assertNotIn("member_lost", coordinator.stderr)

    def test_ranks_come_back_through_the_relay_to_a_restarted_coordinator(self):
        with Processes() as processes:
            port = free_port()
            flags = [f"--listen=127.0.0.1:{port}", "--storage=rocksdb",
                     f"--storage_path={processes.folder.name}/jobs"]
            coordinator, grpc, http = processes.coordinator(
                COORDINATOR, *flags)
            launcher, pids = self.launch(processes, grpc)
            wait_until_training(http, 3)
            # Killed, drained, killed.
            for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                coordinator.signal(number)
                coordinator.wait()
                coordinator, _, http = processes.coordinator(
                    COORDINATOR, *flags)
                wait_until(lambda h=http: metric(h, SESSIONS) >= 3,
                           "all ranks are back")
                wait_until_training(http, 3)
                self.assertNotIn("member_lost", coordinator.stderr)
            self.assertIsNone(launcher.process.poll(), launcher.stderr)
            self.assertLessEqual(metric(http, RELAYS), 1)
            self.assertLess(
                sum(connections(pid, port) for pid in pids), 3)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
