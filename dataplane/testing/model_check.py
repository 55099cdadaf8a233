"""Tests of a model for spin(1), the last argument of their program."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

MODEL = os.path.abspath(sys.argv.pop())


class ModelTest(unittest.TestCase):

    def check(self, *defines):
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

    def assert_holds(self, *defines):
        said = self.check(*defines)
        self.assertIn("errors: 0", said)
        self.assertNotIn("search not completed", said.lower())
        self.assertNotIn("max search depth too small", said)
        # That it was no trifle.
        states = float(re.search(r"(\S+) states, stored", said)[1])
        self.assertGreater(states, 1000)

    def assert_found(self, what, *defines):
        self.assertIn(what, self.check(*defines))
