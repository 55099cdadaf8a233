#!/usr/bin/env python3
"""Tests failures of the example training: a rank killed or stopped, the
launcher's report, the coordinator killed, bad data, wrong addresses and
numbers.

Usage: training_end2end_test.py COORDINATOR MUSTER_RUN TRAIN HELLO
"""

import os
import re
import signal
import socket
import sys
import threading
import time
import unittest

from processes import (Processes, fetch, free_port, metric, wait_until)

COORDINATOR, MUSTER_RUN, TRAIN, HELLO = sys.argv[1:5]
HOST = socket.gethostname()
# So long that it never ends by itself during a test.
ENDLESS = [TRAIN, "--epochs=1000", "--hidden_units=16"]


def wait_until_training(http, world_size):
    """Waits until every rank's own metrics count collectives."""
    def all_train():
        page = fetch(http, "/")
        addresses = set(re.findall(r"127\.0\.0\.1:\d+", page)) - {http}
        if len(addresses) < world_size:
            return False
        return all(
            metric(a, "muster_dataplane_collectives_total") > 10
            for a in addresses)

    wait_until(all_train, f"{world_size} ranks train")


class TrainingTest(unittest.TestCase):

    def start_training(self, processes, world_size=4, flags=()):
        coordinator, grpc, http = processes.coordinator(COORDINATOR, *flags)
        ranks = processes.ranks(ENDLESS, world_size, grpc,
                                {"MUSTER_HTTP_PORT": "0"})
        wait_until_training(http, world_size)
        return coordinator, ranks

    def check_all_blame(self, ranks, culprit, began, seconds):
        for rank, program in enumerate(ranks):
            if rank == culprit:
                continue
            status = program.wait(seconds)
            self.assertGreater(status, 0, program.stderr)
            self.assertIn(f"rank {culprit}", program.stderr)
            self.assertIn(HOST, program.stderr)
            self.assertIn("all_reduce", program.stderr)
            self.assertEqual(program.stderr.count("group failed:"), 1,
                             program.stderr)
        self.assertLess(time.monotonic() - began, seconds)

    def test_killed_rank_ends_the_others_who_name_it(self):
        with Processes() as processes:
            _, ranks = self.start_training(processes)
            began = time.monotonic()
            ranks[2].signal(signal.SIGKILL)
            self.check_all_blame(ranks, 2, began, seconds=15)

    def test_killed_rank_zero_ends_the_others_who_name_it(self):
        with Processes() as processes:
            _, ranks = self.start_training(processes)
            began = time.monotonic()
            ranks[0].signal(signal.SIGKILL)
            self.check_all_blame(ranks, 0, began, seconds=15)

    def test_stopped_rank_ends_the_others_within_the_lease(self):
        with Processes() as processes:
            _, ranks = self.start_training(processes, flags=["--lease=2s"])
            began = time.monotonic()
            ranks[1].signal(signal.SIGSTOP)
            self.check_all_blame(ranks, 1, began, seconds=15)
            self.assertIn("no heartbeat", ranks[0].stderr)
            # When it continues, it learns that the others went on without it.
            ranks[1].signal(signal.SIGCONT)
            self.assertGreater(ranks[1].wait(20), 0)

    def test_launcher_names_the_killed_rank_and_takes_its_status(self):
        with Processes() as processes:
            _, grpc, http = processes.coordinator(COORDINATOR)
            launcher = processes.start(
                [MUSTER_RUN, f"--rdzv-endpoint={grpc}", "--rdzv-id=train",
                 "--nproc-per-node=4", "--", "sh", "-c",
                 'echo "pid=$$"; exec "$@"', "sh"] + ENDLESS,
                {"MUSTER_HTTP_PORT": "0"})
            pids = [int(launcher.wait_for_line(rf"\[{r}\]:? ?pid=(\d+)")
                        .group(1)) for r in range(4)]
            wait_until_training(http, 4)
            os.kill(pids[1], signal.SIGKILL)
            self.assertEqual(launcher.wait(30), 128 + signal.SIGKILL)
            self.assertRegex(launcher.stderr, r"rank 1 .*SIGKILL")
            for pid in pids:
                wait_until(lambda p=pid: not os.path.exists(f"/proc/{p}"),
                           f"process {pid} is gone", 10)

    def test_killed_coordinator_is_named_and_nobody_hangs(self):
        with Processes() as processes:
            coordinator, ranks = self.start_training(processes, 2)
            coordinator.kill()
            ranks[1].signal(signal.SIGKILL)
            # No verdict is available; the broken connection names the rank.
            self.assertGreater(ranks[0].wait(30), 0)
            self.assertIn("rank 1", ranks[0].stderr)
            self.assertEqual(ranks[0].stderr.count("group failed:"), 1,
                             ranks[0].stderr)

    def test_training_goes_on_through_five_coordinator_kills(self):
        with Processes() as processes:
            port = free_port()
            flags = [f"--listen=127.0.0.1:{port}", "--storage=rocksdb",
                     f"--storage_path={processes.folder.name}/jobs"]
            coordinator, ranks = self.start_training(processes, flags=flags)
            for kills in range(1, 6):
                coordinator.kill()
                coordinator, _, http = processes.coordinator(
                    COORDINATOR, *flags)
                wait_until(lambda n=kills: all(
                    rank.stderr.count("coordinator reconnected") >= n
                    for rank in ranks), f"all ranks are back, kill {kills}")
            wait_until_training(http, 4)
            for rank in ranks:
                self.assertIsNone(rank.process.poll(), rank.stderr)
                self.assertNotIn("session over", rank.stderr)
            # The coordinator still knows all members.
            began = time.monotonic()
            ranks[2].signal(signal.SIGKILL)
            self.check_all_blame(ranks, 2, began, seconds=15)

    def test_a_coordinator_that_stood_still_blames_nobody(self):
        with Processes() as processes:
            coordinator, grpc, http = processes.coordinator(
                COORDINATOR, "--lease=2s")
            ranks = processes.ranks(ENDLESS, 2, grpc, {"MUSTER_HTTP_PORT": "0"})
            wait_until_training(http, 2)
            for _ in range(3):
                coordinator.signal(signal.SIGSTOP)
                # Longer than the lease: this test is about time.
                threading.Event().wait(3.5)
                coordinator.signal(signal.SIGCONT)
                wait_until_training(http, 2)
            self.assertGreaterEqual(coordinator.stderr.count("stood_still"),
                                    3, coordinator.stderr)
            self.assertNotIn("member_lost", coordinator.stderr)
            # It still detects the next lost member.
            began = time.monotonic()
            ranks[1].signal(signal.SIGSTOP)
            self.check_all_blame(ranks, 1, began, seconds=15)

    def test_bad_data_set_is_an_error_that_names_the_file(self):
        with Processes() as processes:
            folder = processes.folder.name
            program = processes.start(
                [MUSTER_RUN, "--standalone", "--nproc-per-node=2", "--", TRAIN,
                 f"--data_dir={folder}"])
            self.assertEqual(program.wait(30), 1)
            self.assertIn(folder, program.stderr)
            self.assertIn("dataset-fashion-mnist", program.stderr)


class MistakesTest(unittest.TestCase):
    """Common mistakes, with the README's first program."""

    def rank(self, processes, rank, world_size, port, **more):
        return processes.start([HELLO], {
            "RANK": str(rank), "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more})

    def test_nothing_in_the_environment(self):
        with Processes() as processes:
            program = processes.start([HELLO])
            self.assertEqual(program.wait(10), 1)
            self.assertRegex(
                program.stderr, "^hello: Error initializing .*environment "
                "variable RANK expected, but not set: start the program with "
                "`muster-run ")

    def test_rank_zero_embeds_the_coordinator(self):
        with Processes() as processes:
            port = free_port()
            ranks = [self.rank(processes, r, 3, port) for r in (2, 1, 0)]
            for program in ranks:
                self.assertEqual(program.wait(30), 0, program.stderr)
            self.assertIn("rank 2 of 3 has 3", ranks[0].stdout)

    def test_port_in_use(self):
        with Processes() as processes, socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            program = self.rank(processes, 0, 1, port)
            self.assertNotEqual(program.wait(20), 0)
            self.assertIn(f"127.0.0.1:{port}", program.stderr)
            self.assertIn("in use", program.stderr.lower())

    def test_coordinator_on_a_port_in_use(self):
        with Processes() as processes:
            _, grpc, _ = processes.coordinator(COORDINATOR)
            second = processes.start(
                [COORDINATOR, f"--listen={grpc}", "--http_listen=127.0.0.1:0"])
            self.assertEqual(second.wait(10), 1)
            self.assertIn(grpc, second.stderr)
            self.assertIn("in use", second.stderr.lower())

    def test_two_processes_with_one_rank(self):
        with Processes() as processes:
            _, grpc, _ = processes.coordinator(COORDINATOR)
            agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
            port = grpc.rsplit(":", 1)[1]
            twins = [self.rank(processes, 1, 3, port, **agent)
                     for _ in range(2)]
            wait_until(lambda: any(t.process.poll() is not None for t in twins),
                       "one of the twins is refused")
            refused = [t for t in twins if t.process.poll() is not None]
            self.assertEqual(len(refused), 1)
            self.assertNotEqual(refused[0].wait(), 0)
            self.assertIn("rank 1", refused[0].stderr)
            for twin in twins:
                self.assertIn(f"pid {twin.pid}", refused[0].stderr)

    def test_world_sizes_that_differ(self):
        with Processes() as processes:
            _, grpc, _ = processes.coordinator(COORDINATOR)
            agent = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
            port = grpc.rsplit(":", 1)[1]
            both = [self.rank(processes, 0, 3, port, **agent),
                    self.rank(processes, 1, 4, port, **agent)]
            wait_until(lambda: any(t.process.poll() is not None for t in both),
                       "one of the two is refused")
            refused = [t for t in both if t.process.poll() is not None][0]
            self.assertNotEqual(refused.wait(), 0)
            self.assertRegex(refused.stderr, r"world size [34].* for [34]")
            for one in both:
                self.assertIn(f"pid {one.pid}", refused.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
