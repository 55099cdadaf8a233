#!/usr/bin/env python3
"""The examples as a user runs them: under muster-run, as real processes.

examples_test.py MUSTER_RUN ALL_REDUCE_TWO_RANKS RING_ALL_REDUCE
"""

import os
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


if __name__ == "__main__":
    for name in ("muster-run", "all_reduce_two_ranks", "ring_all_reduce"):
        PROGRAMS[name] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
