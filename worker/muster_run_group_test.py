#!/usr/bin/env python3
"""muster-run and ranks that form a process group: who hears of whose end."""

import os
import shlex
import sys
import unittest

from muster_run_testing import MusterRunTest

RANK = shlex.quote(os.path.abspath(sys.argv[2]))


class GroupTest(MusterRunTest):

    def test_a_rank_that_leaves_before_the_others_are_done_is_the_first_failure(
            self):
        run = self.launch(f"exec {RANK} leave 1", nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 1, err)
        self.assertIn("reduced to 3", out)
        self.assertRegex(
            err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host \S+ "
            r"ended with status 0 before the others were done\n"
            r"  then: rank \d exited with status 75")

    def test_ranks_that_end_one_after_another_fail_nobody(self):
        run = self.launch(f"exec {RANK}", nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(out.count("reduced to 3"), 3)


if __name__ == "__main__":
    del sys.argv[1:3]
    unittest.main()
