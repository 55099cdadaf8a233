#!/usr/bin/env python3
"""Tests collectives between hosts with slow links, or cut off."""

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
# A process that takes longer has hung.
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
# Verbs in which the ranks of a host first work together.
HOST_VERBS = ["all_reduce", "all_reduce_small", "broadcast", "reduce",
              "all_gather", "reduce_scatter", "barrier"]


def environment(coordinator, job, rank, world_size):
    host, port = coordinator.split(":")
    return {"RANK": str(rank), "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": host, "MASTER_PORT": port,
            "TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_USE_AGENT_STORE": "True"}


class Watched:
    """A rank, with the time of each line that it printed."""

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
        """Waits for line `number`; returns its time and text."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.lines) > number,
                                         HANG_S):
                raise AssertionError(f"no line {number} in {self.lines}")
            return self.lines[number]


class LaboratoryTest(unittest.TestCase):

    def test_a_cut_host_is_named_by_every_other_rank_of_every_verb(self):
        # Not all at once, because the processes share the machine's cores.
        for verbs in VERBS, MORE_VERBS:
            self.expect_a_cut_host_to_be_named(verbs, [0, 1, 2, 3])

    def test_a_cut_host_is_named_also_where_others_share_theirs(self):
        self.expect_a_cut_host_to_be_named(HOST_VERBS, [0, 1, 0, 1, 2])

    def expect_a_cut_host_to_be_named(self, verbs, placement):
        """Cuts the host of the last rank, which no other rank shares;
        `placement`: the host of each rank."""
        last = len(placement) - 1
        cut_host = placement[last]
        with laboratory.Laboratory(cut_host + 1) as lab:
            coordinator = lab.start_coordinator(COORDINATOR,
                                                f"--lease={LEASE_S}s")
            jobs = {
                verb: [Watched(lab.hosts[host].start(
                    [RANK, verb],
                    environment(coordinator, verb, rank, len(placement))))
                    for rank, host in enumerate(placement)]
                for verb in verbs}
            for ranks in jobs.values():
                for rank in ranks:
                    self.assertEqual(rank.line(0)[1], "running")
            # Taking the link down waits for the kernel's only lock of its
            # networks, which the end of another test's namespaces can hold for
            # seconds.
            lab.hosts[cut_host].cut()
            cut = time.monotonic()
            for verb, ranks in jobs.items():
                for number, rank in enumerate(ranks[:last]):
                    with self.subTest(verb=verb, rank=number):
                        when, text = rank.line(1)
                        # The group's own timeout is thirty minutes.
                        self.assertLessEqual(when - cut, LEASE_S + 1, text)
                        self.assertRegex(
                            text, r"^error (DistNetworkError|DistBackendError)"
                                  fr" {last}: .*rank {last} "
                                  fr"\(host{cut_host}, .*; last progress: ")
                        self.assertEqual(rank.line(2)[1],
                                         f"other group: {last}")

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
            # Three steps; the minimum of five cycles, because the machine may
            # be busy.
            self.assertGreaterEqual(row["time_us"]["min"], 3 * delay_s * 1e6)
            self.assertLessEqual(row["time_us"]["min"], 8 * delay_s * 1e6)

    def measure(self, lab, coordinator, job, *options, **variables):
        """muster-bench's output with two ranks per host, round robin."""
        world_size = 2 * len(lab.hosts)
        file = os.path.join(lab.folder, f"{job}.json")
        ranks = [lab.hosts[rank % len(lab.hosts)].start(
            [BENCH, "all_reduce", "--backend=shm", f"--json={file}", *options],
            {**environment(coordinator, job, rank, world_size), **variables})
            for rank in range(world_size)]
        for rank in ranks:
            self.assertEqual(rank.wait(HANG_S), 0)
        with open(file, encoding="utf-8") as figures:
            row = json.load(figures)[0]
        self.assertEqual(row["wrong"], 0)
        return row

    def test_a_small_all_reduce_takes_one_delay_whoever_shares_a_host(self):
        delay_s = 0.01
        with laboratory.Laboratory(4, delay_s=delay_s) as lab:
            row = self.measure(lab, lab.start_coordinator(COORDINATOR), "delay",
                               "--minbytes=4K", "--maxbytes=4K", "--iters=5",
                               "--run_cycles=5")
            self.assertGreaterEqual(row["time_us"]["min"], delay_s * 1e6)
            # An algorithm that ignores which ranks share a host takes two
            # steps.
            self.assertLess(row["time_us"]["min"], 2 * delay_s * 1e6)

    def test_what_ranks_of_a_host_give_to_others_leaves_it_as_one(self):
        sent = {}
        with laboratory.Laboratory(2) as lab:
            coordinator = lab.start_coordinator(COORDINATOR)
            for way, variables in (("hosts", {}), ("flat", {"MUSTER_SHM": "0"})):
                before = lab.hosts[1].sent_bytes()
                self.measure(lab, coordinator, way, "--minbytes=16M",
                             "--maxbytes=16M", "--iters=1", "--run_cycles=1",
                             **variables)
                sent[way] = lab.hosts[1].sent_bytes() - before
        # For n bytes a host sends n. In a ring of four ranks whose neighbours
        # are on the other host, each of its two ranks sends 1.5 n.
        self.assertLess(sent["hosts"], 0.4 * sent["flat"])

    def burst(self, lab, coordinator, job, calls, size, **variables):
        """The seconds that `calls` all_reduces of `size` bytes at the same time
        take, with two ranks per host."""
        world_size = 2 * len(lab.hosts)
        ranks = [lab.hosts[rank % len(lab.hosts)].start(
            [RANK, "burst", str(calls), str(size)],
            {**environment(coordinator, job, rank, world_size), **variables})
            for rank in range(world_size)]
        texts = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
        for rank, text in zip(ranks, texts):
            self.assertEqual(rank.returncode, 0, text)
        return max(float(text) for text in texts)

    def test_collectives_take_turns_on_the_named_interfaces(self):
        calls = 8
        size = 4 << 20
        with laboratory.Laboratory(2, links=2) as lab:
            coordinator = lab.start_coordinator(COORDINATOR)
            links = ["eth0", "eth1"]
            for used in links[:1], links:
                for way, variables in (("hosts", {}),
                                       ("flat", {"MUSTER_SHM": "0"})):
                    job = f"{way}-{len(used)}"
                    before = [lab.hosts[1].sent_bytes(link) for link in links]
                    seconds = self.burst(lab, coordinator, job, calls, size,
                                         GLOO_SOCKET_IFNAME=",".join(used),
                                         **variables)
                    sent = [lab.hosts[1].sent_bytes(link) - at_first
                            for link, at_first in zip(links, before)]
                    print(f"{job}: {seconds:.3f} s, sent {sent} bytes")
                    with self.subTest(job=job):
                        if used != links:
                            self.assertLess(sent[1], size)
                            continue
                        # There are twice as many calls. A host sends at least
                        # the bytes of each call, and a few more for
                        # connections.
                        for link in sent:
                            self.assertGreater(link, calls * size)
                            self.assertLess(link, 0.6 * sum(sent))


if __name__ == "__main__":
    laboratory.inside(LIMIT_S)
    unittest.main(argv=sys.argv[:1], verbosity=2)
