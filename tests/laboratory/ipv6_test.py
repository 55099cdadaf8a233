#!/usr/bin/env python3
"""Tests hosts with IPv6 alone, and a name that resolves only to IPv6."""

import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import laboratory  # noqa: E402  pylint: disable=wrong-import-position

RUN, BENCH, STORE = sys.argv[1:4]
LIMIT_S = 150
# A process that takes longer has hung.
HANG_S = 60
NAME = "trainer-0"
PORT = "29500"
BENCHMARK = [BENCH, "all_reduce", "--minbytes=1M", "--maxbytes=1M",
             "--iters=2", "--run_cycles=1"]


def name_the_first_host():
    """Only for the laboratory's processes."""
    with open("/run/hosts", "w", encoding="utf-8") as hosts:
        hosts.write("127.0.0.1 localhost\n::1 localhost\n"
                    f"fd77::1 {NAME}\n")
    laboratory.run("mount", "--bind", "/run/hosts", "/etc/hosts")


class Ipv6Test(unittest.TestCase):

    def setUp(self):
        self.lab = laboratory.Laboratory(2)
        self.lab.__enter__()
        self.addCleanup(self.lab.__exit__, None, None, None)
        for number, host in enumerate(self.lab.hosts):
            host.ip("-4", "addr", "flush", "dev", "eth0")
            host.ip("addr", "add", f"fd77::{number + 1}/64", "dev", "eth0",
                    "nodad")

    def outputs(self, processes):
        """The output of processes, which must succeed. Omits log lines: a rank
        may start before the one that it connects to."""
        outputs = []
        for process in processes:
            output, _ = process.communicate(timeout=HANG_S)
            self.assertEqual(process.returncode, 0, output)
            outputs.append(re.sub(r"^[IWE] \d{4}-.*\n", "", output, flags=re.M))
        return outputs

    def start_everywhere(self, command_of, environment_of=lambda number: {}):
        return [host.start(command_of(number), environment_of(number),
                           stderr=subprocess.STDOUT)
                for number, host in enumerate(self.lab.hosts)]

    def test_rank_0_listens_and_the_others_reach_it_by_name(self):
        self.outputs(self.start_everywhere(
            lambda rank: BENCHMARK,
            lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2",
                          "MASTER_ADDR": NAME, "MASTER_PORT": PORT}))

    def test_the_launchers_meet_by_name(self):
        self.outputs(self.start_everywhere(
            lambda number: [RUN, "--nnodes=2", f"--node-rank={number}",
                            f"--master-addr={NAME}", f"--master-port={PORT}",
                            "--nproc-per-node=1", "--", *BENCHMARK]))

    def test_a_tcp_store_serves_a_name(self):
        outputs = self.outputs(self.start_everywhere(
            lambda rank: [STORE, NAME, PORT, str(rank), "2"]))
        self.assertEqual(outputs, ["turn: 0\nall: 1\n", "turn: 1\nall: 1\n"])

    def test_a_tcp_store_serves_an_address_in_brackets(self):
        for host in "[::1]", "::1", "[fd77::1]":
            with self.subTest(host=host):
                outputs = self.outputs([
                    self.lab.hosts[0].start([STORE, host, PORT, str(rank), "2"],
                                            stderr=subprocess.STDOUT)
                    for rank in range(2)])
                self.assertEqual(outputs,
                                 ["turn: 0\nall: 1\n", "turn: 1\nall: 1\n"])


if __name__ == "__main__":
    laboratory.inside(LIMIT_S)
    name_the_first_host()
    unittest.main(argv=sys.argv[:1])
