"""Tests of a model for spin(1), which is the last argument of the program.

With MUSTER_FULL_MODELS=1 they check as many rounds as fit into the memory
of a checker, which takes minutes (tests/README.md).
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

MODEL = os.path.abspath(sys.argv.pop())
IS_FULL = os.environ.get("MUSTER_FULL_MODELS") == "1"


def few_or_full(name, few, full):
    """The definition of a bound of the search."""
    return f"{name}={full if IS_FULL else few}"


def rounds(few, many):
    """The definition of the number of rounds."""
    return few_or_full("ROUNDS", few, many)


class ModelTest(unittest.TestCase):

    def check(self, *defines):
        """Returns the checker's output for the model with these definitions."""
        # Optimising takes longer than it saves in a short search.
        optimise = "-O1" if IS_FULL else "-O0"

        with tempfile.TemporaryDirectory() as folder:
            def run(*command):
                return subprocess.run(
                    command, cwd=folder, check=True, timeout=600, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

            run("spin", *(f"-D{each}" for each in defines), "-a", MODEL)
            run("gcc", optimise, "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE",
                "-DMEMLIM=1024", "-o", "pan", "pan.c")
            # No depth limit in practice. A short search needs no large table.
            return run("./pan", "-m100000", *([] if IS_FULL else ["-w20"]))

    def assert_holds(self, *defines):
        said = self.check(*defines)
        self.assertIn("errors: 0", said)
        self.assertNotIn("search not completed", said.lower())
        self.assertNotIn("max search depth too small", said)
        # The search must not be trivial.
        states = float(re.search(r"(\S+) states, stored", said)[1])
        self.assertGreater(states, 1000)

    def assert_found(self, what, *defines):
        self.assertIn(what, self.check(*defines))
