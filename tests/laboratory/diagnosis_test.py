#!/usr/bin/env python3
"""Runs musterctl diagnose on one host for jobs with ranks on other hosts: a
host is cut off, a process is dead, a rank is in its own code.

diagnosis_test.py COORDINATOR MUSTERCTL LAB_RANK HANG_RANK
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

COORDINATOR, MUSTERCTL, LAB_RANK, HANG_RANK = sys.argv[1:5]
LIMIT_S = 200
HANG_S = 60
RANKS = 3


class DiagnosisTest(unittest.TestCase):

    def start(self, lab, *command, **variables):
        """Starts ranks 0 to 2 on hosts 1 to 3; host 0 is the operator's."""
        # Long enough to examine a job that hangs.
        self.coordinator = lab.start_coordinator(
            COORDINATOR, "--lease=60s", "--reconnect_grace=60s")
        host, port = self.coordinator.split(":")
        ranks = [where.start(command, {
            "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": host,
            "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "job",
            "TORCHELASTIC_USE_AGENT_STORE": "True", "MUSTER_HTTP_PORT": "0",
            **variables}, stderr=subprocess.DEVNULL)
            for rank, where in enumerate(lab.hosts[1:])]
        for rank in ranks:
            self.assertIn(rank.stdout.readline(), ("running\n", "hanging\n"))
        return ranks

    def diagnose(self, lab, *options):
        ctl = lab.hosts[0].start(
            [MUSTERCTL, "diagnose", "job", f"--coordinator={self.coordinator}",
             "--interval=200ms", "--stuck-after=1s", *options])
        text, _ = ctl.communicate(timeout=HANG_S)
        return text

    def culprit(self, lab, rank, state):
        """The culprit of the first stuck group, which must be only that rank,
        in `state`."""
        end = time.monotonic() + HANG_S
        found = {"groups": []}
        while not found["groups"]:
            self.assertLess(time.monotonic(), end, found)
            found = json.loads(self.diagnose(lab, "--json"))
        culprits = found["groups"][0]["culprits"]
        self.assertEqual([(c["rank"], c["state"]) for c in culprits],
                         [(rank, state)], found)
        return culprits[0]

    def test_a_host_that_is_cut_off(self):
        with laboratory.Laboratory(RANKS + 1) as lab:
            self.start(lab, LAB_RANK, "all_reduce",
                       MUSTER_HTTP_ADDRESS="0.0.0.0")
            lab.hosts[3].cut()
            culprit = self.culprit(lab, 2, "cut_off")
            self.assertEqual(culprit["host"], "host3")
            # Also after the kernel has noticed that the host is unreachable.
            for _ in range(2):
                self.assertRegex(
                    self.diagnose(lab), r"\n  rank 2 \(host3, pid \d+\) is "
                    r"cut off: 10\.77\.0\.4:\d+ cannot be reached; ")

    def test_a_process_that_is_dead(self):
        with laboratory.Laboratory(RANKS + 1) as lab:
            ranks = self.start(lab, LAB_RANK, "all_reduce",
                               MUSTER_HTTP_ADDRESS="0.0.0.0")
            ranks[1].send_signal(signal.SIGKILL)
            # The others do not wait for the coordinator's verdict, which takes
            # a minute here, but report it.
            end = time.monotonic() + HANG_S
            while "rank 1" not in (text := self.diagnose(lab)):
                self.assertLess(time.monotonic(), end, text)
            self.assertRegex(text, r"rank 1 .*host2")

    def test_a_rank_whose_pages_are_on_its_own_loopback(self):
        with laboratory.Laboratory(RANKS + 1) as lab:
            self.start(lab, HANG_RANK, "user_code",
                       MUSTER_HTTP_ADDRESS="127.0.0.1")
            # Not dead, although no server listens at that address of this host.
            self.culprit(lab, 1, "user_code")
            self.assertIn("is not reachable from here: it listens on loopback "
                          "of host2 alone",
                          self.diagnose(lab, "--stacks"))


if __name__ == "__main__":
    laboratory.inside(LIMIT_S)
    unittest.main(argv=sys.argv[:1], verbosity=2)
