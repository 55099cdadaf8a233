#!/usr/bin/env python3
"""Runs the same cases on PyTorch's gloo and on muster's, and compares the bits.

torch_test.py MUSTER_RANK

Needs Debian's python3-torch, which the build does not install. Without it the
test only says so.
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

import cases

# Debian's Python, even if PATH has another one first.
PYTHON = "/usr/bin/python3"
LIMIT_S = 120
MUSTER_RANK = ""


def has_torch():
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], check=False,
        capture_output=True).returncode == 0


def run_ranks(command, world_size, case_file, folder, name):
    """Runs the ranks; returns the output of each."""
    outputs = [os.path.join(folder, f"{name}.{rank}")
               for rank in range(world_size)]
    with socket.socket() as reserved:
        # Reserves the port; only a server that also sets SO_REUSEADDR may take
        # it.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        ranks = [
            subprocess.Popen(
                command + [case_file, output],
                env=dict(os.environ, RANK=str(rank), OMP_NUM_THREADS="1",
                         WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1",
                         MASTER_PORT=str(reserved.getsockname()[1]),
                         GLOO_SOCKET_IFNAME="lo"))
            for rank, output in enumerate(outputs)]
        try:
            for rank in ranks:
                assert rank.wait(timeout=LIMIT_S) == 0, (command, rank.returncode)
        finally:
            for rank in ranks:
                rank.kill()
    contents = []
    for output in outputs:
        with open(output, "rb") as file:
            contents.append(file.read())
    return contents


class TorchTest(unittest.TestCase):

    def test_both_give_the_same(self):
        if not has_torch():
            print("python3-torch is not installed: nothing to compare with")
            return
        here = os.path.dirname(os.path.abspath(__file__))
        for world_size in (2, 4):
            with self.subTest(world_size=world_size), \
                    tempfile.TemporaryDirectory() as folder:
                case_file = os.path.join(folder, "cases")
                lines = cases.all_cases(world_size)
                with open(case_file, "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")
                theirs = run_ranks(
                    [PYTHON, os.path.join(here, "torch_rank.py")], world_size,
                    case_file, folder, "torch")
                ours = run_ranks([MUSTER_RANK], world_size, case_file, folder,
                                 "muster")
                self.check(lines, world_size, theirs, ours)

    def check(self, lines, world_size, theirs, ours):
        for rank in range(world_size):
            offset = 0
            for line in lines:
                verb, dtype, _, count, root = line.split()
                size = int(count) * int("".join(filter(
                    str.isdigit, dtype))) // 8
                if verb in ("all_gather", "gather", "all_to_all_single"):
                    size *= world_size
                if verb in ("gather", "reduce") and rank != int(root):
                    continue
                end = offset + size
                self.assertEqual(ours[rank][offset:end],
                                 theirs[rank][offset:end],
                                 f"rank {rank} of {world_size}: {line}")
                offset = end
            self.assertEqual((offset, offset),
                             (len(ours[rank]), len(theirs[rank])))


if __name__ == "__main__":
    MUSTER_RANK = os.path.abspath(sys.argv.pop(1))
    unittest.main()
