#!/usr/bin/env python3
"""The demonstration with short settings, failures, and an end by Ctrl-C.

demo_test.py DEMO MUSTER_COORDINATOR MUSTER_RUN MUSTERCTL TRAIN_FASHION_MNIST
    TRAIN_TRANSFORMER HOST_DEVICES
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

DEMO = HOST_DEVICES = ""
PROGRAMS = []
LIMIT_S = 600


def alive(marker):
    """Processes that have `marker` among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                arguments = file.read()
        except OSError:
            continue
        if marker.encode() in arguments:
            found.append(int(name))
    return found


class DemoTest(unittest.TestCase):

    def setUp(self):
        # The folder's name is in the arguments of all that the demo starts.
        self.bin = self.temporary_folder()
        self.logs = self.temporary_folder()
        for program in PROGRAMS:
            os.symlink(program, os.path.join(self.bin,
                                             os.path.basename(program)))

    def temporary_folder(self):
        folder = tempfile.TemporaryDirectory(prefix="demo-test-")
        self.addCleanup(folder.cleanup)
        return folder.name

    def start(self, *options, **environment):
        return subprocess.Popen(
            [DEMO, f"--bin={self.bin}", *options], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "TMPDIR": self.logs, **environment})

    def await_training(self, demo):
        """Returns when all ranks have begun to train."""
        for line in demo.stdout:
            if "metrics of rank 1 " in line:
                return
        self.fail("the demo ended before its ranks had begun")

    def finish(self, demo):
        out, _ = demo.communicate(timeout=LIMIT_S)
        self.assertEqual(alive(self.bin), [], out)
        logs = re.search(r"^demo: the logs stay in (\S+)$", out, re.MULTILINE)
        return demo.returncode, out, logs and logs[1]

    def test_passes_and_shows_a_failure_and_what_the_processes_counted(self):
        self.passes()

    def test_passes_with_tensors_on_devices(self):
        # On a fake CUDA.
        self.passes("--device=cuda", MUSTER_CUDA_LIBRARY=HOST_DEVICES)

    def passes(self, *options, **environment):
        # Too short for the accuracy of five epochs; the rank is stopped at the
        # first check after the first epoch.
        epochs = 2
        status, out, logs = self.finish(
            self.start("--nproc=2", f"--epochs={epochs}", *options,
                       **environment))
        self.assertEqual(status, 0, out)
        self.assertTrue(out.endswith("demo: PASS\n"), out)
        self.assertIsNone(logs)
        self.assertRegex(out, r"demo: test accuracy \d+\.\d\d %")
        # The coordinator and both workers are listed with their addresses.
        self.assertEqual(
            len(re.findall(r"^  metrics of .* http://127\.0\.0\.1:\d+/metrics$",
                           out, re.MULTILINE)), 3, out)
        # In this order.
        self.assertRegex(
            out, r"(?s)kill -STOP (\d+) ==\n.*"
            r"\n  group \"world\" is stuck in .*"
            r"\n    rank 1 \(\S+, pid \1\) is stopped .*"
            r"kill -KILL \1 ==\n.*"
            r"\[0\]: rank 0: .*rank 1 \(\S+, pid \1\) was lost.*"
            r"\n\[0\]: going on after \d+ steps, in epoch [12], on 2 ranks\n.*"
            r"\[0\]: parameters are bitwise equal on 2 ranks")
        for rank in range(2):
            row = re.search(rf"worker, rank {rank} +(\d+) +0 +([\d.]+)", out)
            self.assertTrue(row, out)
            # The steps after the failure, which came in the middle.
            self.assertIn(int(row[1]), range(20, epochs * 468), out)
            self.assertGreater(float(row[2]), 20 * 0.4)

    def test_parallel_recovers_from_a_checkpoint_and_one_process_reads_it(self):
        status, out, logs = self.finish(
            self.start("--nproc=4", "--parallel=fsdp,tp", "--steps=40"))
        self.assertEqual(status, 0, out)
        self.assertTrue(out.endswith("demo: PASS\n"), out)
        self.assertIsNone(logs)
        self.assertRegex(
            out, r"(?s)\[0\]: fsdp=2,tp=2: from the beginning\n.*"
            r"kill -KILL (\d+) ==\n.*"
            r"\]: .*rank 3 \(\S+, pid \1\).*"
            r"\n\[0\]: fsdp=2,tp=2: going on after step \d+\n.*"
            r"\n\[0\]: one process: going on after step 40\n.*"
            r"\ndemo: fsdp=2,tp=2: 40 steps, ")

    def test_wrong_arguments_are_named_before_anything_starts(self):
        for options, message in [
                ("--nproc=3", "--nproc must divide 128, the images of a step, "
                 "got 3"),
                ("--nproc=0", "--nproc must divide 128, the images of a step, "
                 "got 0"),
                ("--epochs=0", "--epochs must be 1 or more, got 0"),
                ("--steps=9", "--steps needs --parallel"),
                ("--parallel=tp --steps=0", "--steps must be 1 or more, got 0"),
                ("--parallel=tp --epochs=2", "--epochs has no effect with "
                 "--parallel"),
                ("--parallel=tp --nproc=3", "--nproc must divide 16, the "
                 "sequences of a step, got 3"),
                ("--parallel=rows", "got 'rows'"),
                ("--parallel=", "got ''"),
                ("--parallel=tp --text=/no/text", "--text '/no/text' is not a "
                 "file"),
                ("--nproc=2x", "invalid int value: '2x'")]:
            for check in ([], ["--check"]):
                status, out, _ = self.finish(
                    self.start(*options.split(), *check))
                self.assertEqual(status, 2, out)
                self.assertIn(message, out)
                self.assertNotIn("coordinator at", out)
        status, out, _ = self.finish(self.start("--nproc=2", "--check"))
        self.assertEqual((status, out), (0, ""))

    def test_too_little_accuracy_fails_and_keeps_the_logs(self):
        status, out, logs = self.finish(
            self.start("--nproc=1", "--epochs=1", "--accuracy=100"))
        self.assertEqual(status, 1, out)
        self.assertRegex(out, r"demo: FAIL: test accuracy \S+ % is less than "
                         r"100 %\n")
        self.assertEqual(sorted(os.listdir(logs))[:2],
                         ["coordinator.log", "job.log"])

    def test_failing_job_fails_the_demo_with_its_words(self):
        status, out, _ = self.finish(
            self.start("--nproc=2", "--data_dir=/no/such/folder"))
        self.assertEqual(status, 1, out)
        self.assertIn("/no/such/folder/train-images-idx3-ubyte.gz", out)
        self.assertIn("demo: FAIL: job ended with status 1 before all ranks "
                      "have begun", out)

    def test_missing_program_is_named(self):
        os.unlink(os.path.join(self.bin, "muster-run"))
        status, out, _ = self.finish(self.start())
        self.assertEqual(status, 1, out)
        self.assertIn(f"demo: FAIL: cannot start {self.bin}/muster-run: No such "
                      "file", out)

    def test_ctrl_c_leaves_nothing(self):
        demo = self.start("--nproc=2", "--epochs=1000")
        self.await_training(demo)
        demo.send_signal(signal.SIGINT)
        status, out, logs = self.finish(demo)
        self.assertEqual(status, 130, out)
        self.assertIn("demo: interrupted: SIGINT\n", out)
        self.assertNotIn("FAIL", out)
        self.assertIn("job.log", os.listdir(logs))

    def test_kill_9_leaves_nothing(self):
        demo = self.start("--nproc=2", "--epochs=1000")
        self.await_training(demo)
        demo.kill()
        demo.communicate(timeout=LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while alive(self.bin):
            self.assertLess(time.monotonic(), deadline, alive(self.bin))
            os.sched_yield()


if __name__ == "__main__":
    DEMO, *PROGRAMS, HOST_DEVICES = (
        os.path.abspath(sys.argv.pop(1)) for _ in range(7))
    unittest.main()
