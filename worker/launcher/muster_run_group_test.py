#!/usr/bin/env python3
"""muster-run and ranks that form a process group: reactions to failures."""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

from muster_run_testing import MusterRunTest

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)),
                             "../../client/testing"))
import protection  # noqa: E402  pylint: disable=wrong-import-position

RANK = shlex.quote(os.path.abspath(sys.argv[2]))
COORDINATOR = os.path.abspath(sys.argv[3])


class GroupTest(MusterRunTest):

    def protected_coordinator(self):
        """Starts one that asks for certificates and tokens, for jobs "job*".

        Returns muster-run's options for it, and its environment.
        """
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        flags, clients = protection.protect(folder.name, "127.0.0.1", "job*")
        coordinator = subprocess.Popen(
            [COORDINATOR, "--listen=127.0.0.1:0", "--http_listen=",
             "--lease=1s", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

        def clean_up():
            coordinator.kill()
            coordinator.wait()
            coordinator.stdout.close()
        self.addCleanup(clean_up)
        port = re.search(r"127\.0\.0\.1:(\d+)", coordinator.stdout.readline())
        # Nobody is at the first of its addresses.
        return ([f"--rdzv-endpoint=127.0.0.1:1,127.0.0.1:{port.group(1)}"],
                {"env": {**os.environ, **clients}})

    def test_a_rank_that_fails_before_it_joins_is_told_to_the_others(self):
        # Otherwise the other ranks would not end.
        runs = [self.launch(f"[ $RANK = 1 ] && exit 3; exec {RANK}",
                            f"--restart={restart}", "--failure-grace=1h",
                            nproc=3)
                for restart in ("none", "all", "rank")]
        for run in runs:
            status, _, err = run.finish()
            self.assertEqual(status, 3, err)
            # The named process is the rank's own.
            pid = err.split("rank 1 (pid ")[1].split(")")[0]
            for rank in (0, 2):
                self.assertRegex(
                    err, rf"\[{rank}\]: .*rank 1 \(\S+, pid {pid}\).*: "
                    "exited with status 3 and will not join")
            self.assertIn("first failure: rank 1 ", err)

    def test_all_that_fail_before_they_join_are_told(self):
        runs = [self.launch(f"[ $RANK != 0 ] && exit $RANK; exec {RANK}",
                            f"--restart={restart}", "--failure-grace=1h",
                            nproc=3)
                for restart in ("none", "all")]
        for run in runs:
            status, _, err = run.finish()
            self.assertIn(status, (1, 2), err)
            self.assertRegex(err, r"\[0\]: .*exited with status \d and will "
                             "not join")

    def test_a_rank_that_ends_with_0_before_it_joins_is_the_first_failure(
            self):
        runs = [self.launch(f"[ $RANK = 1 ] && exit 0; exec {RANK}",
                            f"--restart={restart}", nproc=3)
                for restart in ("all", "none")]
        for run in runs:
            status, _, err = run.finish()
            self.assertEqual(status, 1, err)
            self.assertRegex(err, r"\[0\]: .*rank 1 \(\S+, pid \d+\).*: "
                             "exited with status 0 and will not join")
            self.assertRegex(
                err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host "
                r"\S+ ended with status 0 before the others were done\n"
                r"  then: rank \d exited with status 75")

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

    def test_a_rank_that_hangs_but_ends_by_sigterm_is_the_first_failure(self):
        run = self.launch(f"exec {RANK} hang 1", "--failure-grace=100ms",
                          nproc=3)
        status, _, err = run.finish()
        self.assertEqual(status, 143, err)
        self.assertRegex(
            err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host \S+ "
            r"hung until it was killed by signal 15 \(SIGTERM\)\n"
            r"  then: rank \d exited with status 75")

    def test_a_rank_that_others_wait_for_for_the_hang_timeout_is_killed(self):
        address, environment = self.protected_coordinator()
        runs = [self.launch(f"exec {RANK} stall 1", "--hang-timeout=1s",
                            f"--restart={restart}", *options, nproc=3, **more)
                for restart, options, more in (
                    ("all", (), {}),
                    ("rank", [*address, "--rdzv-id=job-rank"], environment),
                    ("none", [*address, "--rdzv-id=job-none"], environment))]
        for run in runs:
            status, _, err = run.finish()
            self.assertEqual(status, 137, err)
            self.assertRegex(
                err, r"muster-run: rank 1 \(pid \d+\) hangs, killing it: others "
                r'have waited in all_reduce #2 .*on group "world" for \d+\.\ds, '
                "and it is in code of its own: it has not called #2; its last, "
                "#1, is done")
            self.assertRegex(
                err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host "
                r"\S+ hung until it was killed by signal 9 \(SIGKILL\)\n"
                r"  then: rank \d exited with status 75")

    def test_a_rank_that_does_not_join_is_told_and_killed_by_the_hang_timeout(
            self):
        # A child of the rank's process hangs.
        run = self.launch(f"[ $RANK = 1 ] && (sleep 1000; :); exec {RANK}",
                          "--hang-timeout=6s", nproc=3)
        # No rank waits for these.
        never = self.launch("echo up; while :; do sleep 0.01; done",
                            "--hang-timeout=1s", nproc=2)
        status, _, err = run.finish()
        self.assertEqual(status, 137, err)
        self.assertRegex(
            err, r"muster-run: 2 ranks have waited in the rendezvous of 3 for "
            r"\d\.\ds; not joined on this host: rank 1 \(pid \d+\)\n")
        why = (r"2 ranks have waited in the rendezvous of 3 for \d\.\ds, and it "
               r'has not joined; "sleep" \(pid \d+\) sleeps.*, after 0\.\ds on a '
               r"processor\n")
        self.assertRegex(
            err, rf"muster-run: rank 1 \(pid \d+\) hangs, killing it: {why}")
        self.assertRegex(
            err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host \S+ "
            r"hung until it was killed by signal 9 \(SIGKILL\)\n"
            r"(  then: .*\n)?"
            rf"  why it was killed: {why}")
        while b"no rank of this host has come" not in (
                never.process.stderr.readline()):
            pass
        never.process.terminate()
        status, _, err = never.finish()
        self.assertEqual(status, 143, err)
        self.assertNotIn("hangs", err)

    def test_a_rank_that_is_lost_is_killed_at_once_though_all_start_again(self):
        # The lease ends before the grace in which it may end by itself.
        run = self.launch(f"exec {RANK} stop 1", "--max-restarts=1",
                          "--failure-grace=60s", nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(out.count("reduced to 3"), 6)
        self.assertRegex(err, r"rank 1 \(pid \d+\) was lost to the others, "
                         "killing it: no heartbeat for ")
        self.assertRegex(
            err, r"first failure: rank 1 \(local rank 1, pid \d+\) on host \S+ "
            r"hung until it was killed by signal 9 \(SIGKILL\)\n")

    def test_a_rank_that_is_lost_to_a_protected_coordinator_is_killed(self):
        options, environment = self.protected_coordinator()
        run = self.launch(f"exec {RANK} stop 1", "--restart=none", *options,
                          "--rdzv-id=job", nproc=3, **environment)
        status, _, err = run.finish()
        self.assertEqual(status, 137, err)
        self.assertRegex(err, r"rank 1 \(pid \d+\) was lost to the others, "
                         "killing it: no heartbeat for ")

    def test_a_rank_that_was_started_again_is_the_first_failure(self):
        run = self.launch(f"echo told $RANK >&2; exec {RANK} fail 1",
                          "--restart=rank", "--max-restarts=1", nproc=3)
        status, _, err = run.finish()
        self.assertEqual(status, 3, err)
        pid = err.split("rank 1 (pid ")[1].split(")")[0]
        self.assertRegex(
            err, rf"first failure: rank 1 \(local rank 1, pid {pid}\) on host "
            r"\S+ exited with status 3\n"
            r"  then: rank \d exited with status 75")
        self.assertIn("\n    told 1\n", err)

    def test_an_attempt_has_no_keys_of_the_one_before(self):
        run = self.launch(f"exec {RANK} keys 1", "--max-restarts=1", nproc=2)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        # Both ranks of both attempts print it, after both have set a key.
        self.assertEqual(out.count("keys 2\n"), 4, out)

    def test_ranks_that_end_one_after_another_fail_nobody(self):
        run = self.launch(f"exec {RANK}", nproc=3)
        status, out, err = run.finish()
        self.assertEqual(status, 0, err)
        self.assertEqual(out.count("reduced to 3"), 3)


if __name__ == "__main__":
    del sys.argv[1:4]
    unittest.main()
