#!/usr/bin/env python3
"""Collectives between hosts that are slow to reach, or cut off."""

import json
import os
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

COORDINATOR, BENCH, RANK = sys.argv[1:4]
LIMIT_S = 150
# Nothing here waits longer.
HANG_S = 60
LEASE_S = 3

VERBS = ["all_reduce", "all_reduce_small", "broadcast", "reduce", "all_gather",
         "gather", "scatter", "reduce_scatter", "all_to_all", "barrier", "send"]
MORE_VERBS = ["all_gather_into_tensor", "reduce_scatter_tensor",
              "all_to_all_single", "all_reduce_coalesced",
              "all_gather_into_tensor_coalesced",
              "reduce_scatter_tensor_coalesced", "all_gather_object",
              "broadcast_object_list", "gather_object", "scatter_object_list",
              "send_object", "batch_isend_irecv"]


def environment(coordinator, job, rank, world_size):
    host, port = coordinator.split(":")
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": host, "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_USE_AGENT_STORE": "True"}


class Watched:
    """A rank, with the time at which it printed each line."""

    def __init__(self, process):
        self.lines = []
        self.changed = threading.Condition()
        self.process = process
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.changed.notify_all()

    def line(self, number):
        """The time and the text of line `number`, once it is there."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.lines) > number,
                                         HANG_S):
                raise AssertionError(f"no line {number} in {self.lines}")
            return self.lines[number]


class LaboratoryTest(unittest.TestCase):

    def test_a_cut_host_is_named_by_every_other_rank_of_every_verb(self):
        # Not all at once: their processes share the machine's cores.
        for verbs in VERBS, MORE_VERBS:
            self.expect_a_cut_host_to_be_named(verbs)

    def expect_a_cut_host_to_be_named(self, verbs):
        with laboratory.Laboratory(4) as lab:
            coordinator = lab.start_coordinator(COORDINATOR,
                                                f"--lease={LEASE_S}s")
            jobs = {
                verb: [Watched(host.start(
                    [RANK, verb], environment(coordinator, verb, rank, 4)))
                    for rank, host in enumerate(lab.hosts)]
                for verb in verbs}
            for ranks in jobs.values():
                for rank in ranks:
                    self.assertEqual(rank.line(0)[1], "running")
            cut = time.monotonic()
            lab.hosts[3].cut()
            for verb, ranks in jobs.items():
                for number, rank in enumerate(ranks[:3]):
                    with self.subTest(verb=verb, rank=number):
                        when, text = rank.line(1)
                        # Thirty minutes is the group's own timeout.
                        self.assertLessEqual(when - cut, LEASE_S + 1, text)
                        self.assertRegex(
                            text, r"^error (DistNetworkError|DistBackendError)"
                                  r" 3: .*rank 3 \(host3, .*"
                                  r"; last progress: ")
                        self.assertEqual(rank.line(2)[1], "other group: 3")

    def test_a_small_all_reduce_takes_few_delays(self):
        delay_s = 0.005
        with laboratory.Laboratory(8, delay_s=delay_s) as lab:
            coordinator = lab.start_coordinator(COORDINATOR)
            file = os.path.join(lab.folder, "figures.json")
            ranks = [host.start(
                [BENCH, "all_reduce", "--minbytes=4K", "--maxbytes=4K",
                 "--iters=5", "--run_cycles=5", f"--json={file}"],
                environment(coordinator, "delay", rank, 8))
                for rank, host in enumerate(lab.hosts)]
            for rank in ranks:
                self.assertEqual(rank.wait(HANG_S), 0)
            with open(file, encoding="utf-8") as figures:
                row = json.load(figures)[0]
            self.assertEqual(row["ranks"], 8)
            # Three steps; the least of five cycles, for the machine's sake.
            self.assertGreaterEqual(row["time_us"]["min"], 3 * delay_s * 1e6)
            self.assertLessEqual(row["time_us"]["min"], 8 * delay_s * 1e6)


if __name__ == "__main__":
    laboratory.inside(LIMIT_S)
    unittest.main(argv=sys.argv[:1], verbosity=2)
