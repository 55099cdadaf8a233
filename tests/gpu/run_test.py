#!/usr/bin/env python3
"""Tests the bundle's run, with the host's devices and without any.

run_test.py RUN START GPU_CHECKS MUSTER_RUN MUSTER_BENCH TRAIN_FASHION_MNIST
    HOST_DEVICES
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

RUN, START, *PROGRAMS, HOST_DEVICES = (
    os.path.abspath(path) for path in sys.argv[1:])
ONE_CHECK = ("--gtest_filter="
             "GlooOnGpu/BackendConformance.BroadcastCopiesEveryRoot*")
LIMIT_S = 240


class RunTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        shutil.copy(RUN, self.folder)
        for program in PROGRAMS:
            os.symlink(program,
                       os.path.join(self.folder, os.path.basename(program)))

    def run_with(self, library, **environment):
        return subprocess.run(
            [os.path.join(self.folder, "run"), ONE_CHECK],
            env={**os.environ, "MUSTER_CUDA_LIBRARY": library,
                 "MUSTER_NCCL_LIBRARY": library, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=LIMIT_S, check=False)

    @staticmethod
    def rows(output):
        table = output[output.rindex("\n| check | result |\n"):]
        return [line.strip("| ").split(" | ")
                for line in table.splitlines()[3:] if line]

    def test_prints_one_table_of_all(self):
        # The host's devices take new memory for each call.
        done = self.run_with(HOST_DEVICES, MUSTER_HOST_DEVICES="1",
                             MUSTER_BENCH_MAXBYTES="1M")
        self.assertEqual(done.returncode, 0, done.stdout)
        rows = self.rows(done.stdout)
        self.assertEqual([row[0] for row in rows], [
            "GlooOnGpu/BackendConformance",
            "muster-bench --backend=gloo --device=cuda, 4 ranks",
            "train_fashion_mnist --device=cuda, gloo, 4 ranks",
            "muster-bench --backend=nccl, ranks: 1",
            "muster-bench: host time of an all_reduce of 4 bytes, nccl",
            "train_fashion_mnist --device=cuda, nccl, ranks: 1"])
        for row in (rows[1], rows[3]):
            self.assertEqual(row[1], "passed: # all results are right")
        self.assertRegex(rows[4][1], r"^\d+\.\d us$")
        for row in (rows[2], rows[5]):
            self.assertRegex(row[1], "^passed: world sizes 1 and [14]: the "
                             "same loss curve over 200 steps; ")
        self.assertRegex(done.stdout, r"(?m)^\[0\]: # all_reduce, 4 ranks, "
                         "backend gloo, CUDA tensors$")

    def test_says_what_fails(self):
        self.fake("muster-bench", "exit 3\n")
        # The test above runs it.
        self.fake("train_fashion_mnist", "exit 0\n")
        done = self.run_with(HOST_DEVICES, MUSTER_HOST_DEVICES="1")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.rows(done.stdout)[1][1],
                         "FAILED, exit status 3")

    def fake(self, name, text):
        path = os.path.join(self.folder, name)
        os.remove(path)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + text)
        os.chmod(path, 0o755)

    def test_what_hangs_costs_its_own_time_alone(self):
        self.fake("gpu_checks", """
if [[ "$*" == *--gtest_list_tests* ]]; then
  echo 'cuda: runtime 13.0, driver 13.0, devices: 1'
  echo 'no nccl here: no NCCL: nowhere'
  printf 'Stuck/Suite.\n  Good/0  # GetParam() = 1\n  Bad\nFine.\n  One\n'
  printf 'Broken.\n  Two\n'
elif [[ "$*" == *--gtest_filter=Stuck/Suite.Good/0:Stuck/Suite.Bad:* ]]; then
  echo '[ RUN      ] Stuck/Suite.Bad'
  exec tail -f /dev/null
elif [[ "$*" == *--gtest_filter=Broken.Two:* ]]; then
  echo '[ RUN      ] Broken.Two'
  kill -SEGV $$
else
  printf '| check | result |\n|---|---|\n| Fine | 1 of 1 |\n'
fi
""")
        self.fake("muster-run", """
if [[ "$*" == *train* ]]; then exec tail -f /dev/null; fi
echo '[0]: # all results are right'
""")
        done = self.run_with("", MUSTER_GPU_CHECK_SECONDS="3")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.rows(done.stdout), [
            ["Stuck/Suite", "FAILED: not done within 3 s, at Stuck/Suite.Bad"],
            ["Fine", "1 of 1"],
            ["Broken", "FAILED, exit status 139, at Broken.Two"],
            ["muster-bench --backend=gloo --device=cuda, 4 ranks",
             "passed: # all results are right"],
            ["train_fashion_mnist --device=cuda, gloo, 4 ranks",
             "FAILED: not done within 3 s"],
            ["nccl", "not run: no NCCL: nowhere"]])

    def test_programs_that_do_not_even_start_are_a_row(self):
        self.fake("gpu_checks", "exit 127\n")
        done = self.run_with("")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.rows(done.stdout), [
            ["what is here", "FAILED, exit status 127"]])

    def test_what_there_is_no_time_for_is_said(self):
        done = self.run_with("", MUSTER_GPU_SECONDS="0")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(self.rows(done.stdout), [
            ["what is here", "FAILED: not run, no time is left"]])

    def test_without_a_device_nothing_is_run_and_that_is_no_success(self):
        done = self.run_with("/nowhere/lib.so")
        self.assertEqual(done.returncode, 2, done.stdout)
        [[check, result]] = self.rows(done.stdout)
        self.assertEqual(check, "everything")
        self.assertRegex(result, "^not run: no CUDA device here: "
                         "no CUDA runtime: ")


class StartTest(unittest.TestCase):
    """Tests which libraries a program of the bundle loads."""

    def path_with(self, c, cxx):
        with tempfile.TemporaryDirectory() as folder:
            for name, version in (("c", c), ("cxx", cxx)):
                os.makedirs(os.path.join(folder, "lib", name))
                with open(os.path.join(folder, "lib", name, "version"), "w",
                          encoding="utf-8") as file:
                    file.write(version + "\n")
            loader = os.path.join(folder, "lib/c/ld-linux-x86-64.so.2")
            with open(loader, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho own loader: $2\n")
            os.chmod(loader, 0o755)
            os.makedirs(os.path.join(folder, "programs"))
            program = os.path.join(folder, "programs/program")
            # The system's loader runs only real programs: this one prints its
            # path.
            shutil.copy("/usr/bin/env", program)
            start = os.path.join(folder, "program")
            shutil.copy(START, start)
            done = subprocess.run(
                ["bash", "-x", start], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
                check=True)
            last = [line for line in done.stdout.splitlines()
                    if line.startswith("+ exec ")][-1]
            return last.replace(os.path.realpath(folder), "HERE").split()[2:5]

    def test_a_library_that_is_newer_on_the_machine_is_used(self):
        loader, _, path = self.path_with("glibc 2.1", "libstdc++.so.6.0.1")
        self.assertEqual(loader, "/lib64/ld-linux-x86-64.so.2")
        self.assertTrue(path.startswith("HERE/lib:/usr/lib"), path)

    def test_one_that_is_older_is_not(self):
        loader, _, path = self.path_with("glibc 9.9", "libstdc++.so.6.0.999")
        self.assertEqual(loader, "HERE/lib/c/ld-linux-x86-64.so.2")
        self.assertTrue(path.startswith("HERE/lib/cxx:HERE/lib/c:HERE/lib:"),
                        path)

    def test_each_is_judged_by_itself(self):
        loader, _, path = self.path_with("glibc 2.1", "libstdc++.so.6.0.999")
        self.assertEqual(loader, "/lib64/ld-linux-x86-64.so.2")
        self.assertTrue(path.startswith("HERE/lib/cxx:HERE/lib:/usr/lib"), path)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
