#!/usr/bin/env python3
"""board.pml holds in every interleaving, and each of its breaks is found."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

MODEL = os.path.abspath(sys.argv.pop())


def check(*defines):
    """What the checker says of the model with these definitions."""
    with tempfile.TemporaryDirectory() as folder:
        def run(*command):
            return subprocess.run(
                command, cwd=folder, check=True, timeout=600, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

        run("spin", *(f"-D{each}" for each in defines), "-a", MODEL)
        run("gcc", "-O2", "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE",
            "-DMEMLIM=1024", "-o", "pan", "pan.c")
        # As deep as it gets.
        return run("./pan", "-m1000000")


class BoardModelTest(unittest.TestCase):

    def assert_holds(self, said):
        self.assertIn("errors: 0", said)
        self.assertNotIn("search not completed", said.lower())
        self.assertNotIn("max search depth too small", said)
        # That it was no trifle.
        states = float(re.search(r"(\S+) states, stored", said)[1])
        self.assertGreater(states, 1000)

    def test_two_ranks(self):
        self.assert_holds(check("RANKS=2", "ROUNDS=6"))

    def test_two_ranks_one_further_ahead(self):
        self.assert_holds(check("RANKS=2", "ROUNDS=6", "NOTES=3"))

    def test_slots(self):
        self.assert_holds(check("RANKS=2", "ROUNDS=4", "NOTES=4", "SLOTS=1"))

    def test_three_ranks(self):
        self.assert_holds(check("RANKS=3", "ROUNDS=3"))

    def test_a_fence_of_those_who_sleep(self):
        self.assert_holds(check("RANKS=2", "ROUNDS=6", "SLEEPERS_FENCE=1"))
        self.assert_holds(check("RANKS=3", "ROUNDS=2", "SLEEPERS_FENCE=1"))

    def test_sleeping_after_the_last_look_is_found(self):
        self.assertIn("invalid end state", check("RANKS=2", "BREAK=1"))

    def test_writing_without_waiting_is_found(self):
        self.assertIn("assertion violated", check("RANKS=2", "BREAK=2"))

    def test_the_number_before_the_contents_is_found(self):
        self.assertIn("assertion violated", check("RANKS=2", "BREAK=3"))

    def test_the_fence_of_nobody_is_found(self):
        self.assertIn("invalid end state",
                      check("RANKS=2", "SLEEPERS_FENCE=1", "BREAK=4"))

    def test_a_note_written_too_early_is_found(self):
        self.assertIn("assertion violated",
                      check("RANKS=2", "ROUNDS=5", "BREAK=5"))

    def test_a_slot_written_too_early_is_found(self):
        self.assertIn("assertion violated",
                      check("RANKS=2", "ROUNDS=5", "NOTES=4", "SLOTS=1",
                            "BREAK=6"))


if __name__ == "__main__":
    unittest.main()
