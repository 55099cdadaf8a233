#!/usr/bin/env python3
"""The examples as a user runs them: under muster-run, as real processes.

examples_test.py MUSTER_RUN ALL_REDUCE_TWO_RANKS RING_ALL_REDUCE VERBS \
    WORK_QUEUE
"""

import os
import socket
import subprocess
import sys
import unittest

PROGRAMS = {}
LIMIT_S = 60


def launch(nproc, program):
    return subprocess.run(
        [PROGRAMS["muster-run"], "--standalone", f"--nproc-per-node={nproc}",
         "--", PROGRAMS[program]],
        timeout=LIMIT_S, capture_output=True, text=True, check=False)


class ExamplesTest(unittest.TestCase):

    def assert_prints(self, result, lines):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()), sorted(lines))

    def test_all_reduce_two_ranks(self):
        self.assert_prints(launch(2, "all_reduce_two_ranks"), [
            line for rank in range(2) for line in (
                f"[{rank}]: rank {rank}: started",
                f"[{rank}]: rank {rank}: sum 3 30",
                f"[{rank}]: rank {rank}: max 1")])

    def test_all_reduce_two_ranks_refuses_three(self):
        result = launch(3, "all_reduce_two_ranks")
        self.assertEqual(result.returncode, 2)
        self.assertIn("this example is for 2 ranks, not 3", result.stderr)

    def test_ring_all_reduce(self):
        for nproc in (1, 2, 3, 4):
            # Element 999 is 999 * (1 + 2 + ... + nproc).
            value = 999 * nproc * (nproc + 1) // 2
            with self.subTest(nproc=nproc):
                self.assert_prints(launch(nproc, "ring_all_reduce"), [
                    f"[{rank}]: rank {rank}: element 999 is {value}, "
                    "as with AllReduce" for rank in range(nproc)])

    def test_verbs(self):
        # Ranks 0 and 1 are the destinations of some verbs.
        self.assert_prints(launch(4, "verbs"), [
            f"[{rank}]: rank {rank}: {examples} examples came out as they say"
            for rank, examples in enumerate((32, 30, 29, 29))])

    def test_verbs_refuses_three(self):
        result = launch(3, "verbs")
        self.assertEqual(result.returncode, 2)
        self.assertIn("these examples are for 4 ranks, not 3", result.stderr)

    def test_work_queue(self):
        self.assert_prints(launch(3, "work_queue"), [
            f"[{rank}]: rank {rank}: the sum is 328350" for rank in range(3)])

    def test_work_queue_without_a_launcher(self):
        with socket.socket() as reserved:
            # No other process gets the port; a server that sets the same option
            # may.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(("127.0.0.1", 0))
            ranks = [subprocess.Popen(
                [PROGRAMS["work_queue"]], stdout=subprocess.PIPE, text=True,
                env={"RANK": str(rank), "WORLD_SIZE": "3",
                     "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(reserved.getsockname()[1])})
                     for rank in range(3)]
            for rank, process in enumerate(ranks):
                output, _ = process.communicate(timeout=LIMIT_S)
                self.assertEqual(process.returncode, 0)
                self.assertEqual(output, f"rank {rank}: the sum is 328350\n")


if __name__ == "__main__":
    for name in ("muster-run", "all_reduce_two_ranks", "ring_all_reduce",
                 "verbs", "work_queue"):
        PROGRAMS[name] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
